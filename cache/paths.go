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

// pathSeat is the place of one use among those of the same path.
type pathSeat = seat[PathUse]

// paths says who uses which path.
type paths struct{ byPath rosters[string, PathUse] }

// move makes seat, which may be nil, that of use, and returns it: nil when use has no path. A use that is there already
// keeps its seat.
func (p *paths) move(old *pathSeat, use PathUse) *pathSeat {
	if old != nil && old.member == use {
		return old
	}
	p.drop(old)
	if use.Path == "" {
		return nil
	}
	s := &pathSeat{member: use}
	p.byPath.join(use.Path, s)
	return s
}

// drop gives up a seat, which may be nil.
func (p *paths) drop(s *pathSeat) {
	if s != nil {
		p.byPath.leave(s.member.Path, s)
	}
}

// at returns what is at a path, by volume, pod and kind.
func (p *paths) at(path string) []PathUse {
	users := p.byPath[path]
	if users.count == 0 {
		return nil
	}
	uses := slices.AppendSeq(make([]PathUse, 0, users.count), users.all)
	slices.SortFunc(uses, func(a, b PathUse) int {
		return cmp.Or(cmp.Compare(a.VolumeName, b.VolumeName), cmp.Compare(a.PodName, b.PodName), cmp.Compare(a.Kind, b.Kind))
	})
	return uses
}
