package cache

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// PathKind says what is at a path of this node.
type PathKind uint8

// The kinds of path.
const (
	DevicePath      PathKind = iota // the device of a volume
	DeviceMountPath                 // where a volume is, or may be, staged
	MountPath                       // where a volume is, or may be, set up for a pod
)

// String returns the kind in lower case.
func (k PathKind) String() string {
	return [...]string{"device", "staging", "set-up"}[k]
}

// PathUse says what a path is to a volume.
type PathUse struct {
	// Path is the absolute path.
	Path string
	// Kind is what is there.
	Kind PathKind
	// VolumeName is the unique name of the volume.
	VolumeName v1.UniqueVolumeName
	// PodName is the unique name of the pod of a set-up; empty otherwise.
	PodName volume.UniquePodName
}

// pathOwner is who uses a path: a volume, or one of its set-ups.
type pathOwner struct {
	volume *knownVolume
	mount  *pair[MountedVolume] // nil: the path is the volume's
	kind   PathKind
}

func (o pathOwner) use(path string) PathUse {
	use := PathUse{Path: path, Kind: o.kind, VolumeName: o.volume.name}
	if o.mount != nil {
		use.PodName = o.mount.pod
	}
	return use
}

// paths says who uses which path. As a rule that is one: the others, if any, are in more. The zero value keeps nothing.
type paths struct {
	first map[string]pathOwner
	more  map[string]map[pathOwner]struct{}
}

func newPaths() paths {
	return paths{first: map[string]pathOwner{}, more: map[string]map[pathOwner]struct{}{}}
}

// move takes an owner from one path to another; empty means none.
func (p *paths) move(owner pathOwner, from, to string) {
	if p.first == nil || from == to {
		return
	}
	if from != "" {
		p.remove(owner, from)
	}
	if to != "" {
		p.add(owner, to)
	}
}

func (p *paths) add(owner pathOwner, path string) {
	if _, taken := p.first[path]; !taken {
		p.first[path] = owner
		return
	}
	if p.more[path] == nil {
		p.more[path] = map[pathOwner]struct{}{}
	}
	p.more[path][owner] = struct{}{}
}

func (p *paths) remove(owner pathOwner, path string) {
	others := p.more[path]
	if len(others) == 0 {
		delete(p.first, path)
		return
	}
	if p.first[path] == owner {
		for owner = range others { // Any of them.
			break
		}
		p.first[path] = owner
	}
	delete(others, owner)
	if len(others) == 0 {
		delete(p.more, path)
	}
}

// at returns what is at a path, by volume, pod and kind.
func (p *paths) at(path string) []PathUse {
	first, taken := p.first[path]
	if !taken {
		return nil
	}
	uses := []PathUse{first.use(path)}
	for owner := range p.more[path] {
		uses = append(uses, owner.use(path))
	}
	slices.SortFunc(uses, func(a, b PathUse) int {
		return cmp.Or(cmp.Compare(a.VolumeName, b.VolumeName), cmp.Compare(a.PodName, b.PodName), cmp.Compare(a.Kind, b.Kind))
	})
	return uses
}
