package mount

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// rootOfMount is the filesystem of a mount and the directory of it that the mount shows.
type rootOfMount struct {
	id   uint64 // unique
	dev  uint64
	root string
	scan uint64 // the scan that queried it
}

// rootsOfMounts holds the roots of the mounts of this namespace, ascending by id. It is immutable once it is stored. A mount
// never gets another filesystem, so one query per mount is enough. But the path of its root changes with a rename in that
// filesystem, see isValidFor.
type rootsOfMounts struct {
	scan   uint64
	mounts []rootOfMount
}

func (r *rootsOfMounts) find(id uint64) (rootOfMount, bool) {
	at, found := slices.BinarySearchFunc(r.mounts, id, func(m rootOfMount, id uint64) int { return cmp.Compare(m.id, id) })
	if !found {
		return rootOfMount{}, false
	}
	return r.mounts[at], true
}

// isValidFor reports whether the stored roots still show which mounts have the same root as own, whose root was just queried.
// After a rename, the root of own differs from the stored one. Roots of an earlier scan than own's may be older than such a
// rename. The root directory of a filesystem is never renamed. One case is not detected: a directory was renamed, bound, queried,
// and renamed back.
func (r *rootsOfMounts) isValidFor(own MountPoint) bool {
	if own.Root == "/" {
		return true
	}
	known, found := r.find(own.UniqueID)
	older := func(m rootOfMount) bool { return m.scan < known.scan }
	return found && known.root == own.Root && !slices.ContainsFunc(r.mounts, older)
}

// renew returns the roots of the mounts with the ids, which are ascending. It queries those that are unknown.
func (r *rootsOfMounts) renew(ids []uint64) *rootsOfMounts {
	now := &rootsOfMounts{scan: r.scan + 1, mounts: make([]rootOfMount, 0, len(ids))}
	old := r.mounts
	var unknown []int
	for _, id := range ids {
		for len(old) > 0 && old[0].id < id {
			old = old[1:]
		}
		if len(old) > 0 && old[0].id == id {
			now.mounts = append(now.mounts, old[0])
			continue
		}
		unknown = append(unknown, len(now.mounts))
		now.mounts = append(now.mounts, rootOfMount{id: id, scan: now.scan})
	}
	asking := rootsQuery{mounts: now.mounts, parts: slices.Collect(slices.Chunk(unknown, refsPart))}
	asking.run()
	// A mount that is gone or unreachable has no root.
	now.mounts = slices.DeleteFunc(now.mounts, func(m rootOfMount) bool { return m.root == "" })
	return now
}

const (
	// refsPart is how many mounts a goroutine queries at a time.
	refsPart = 128
	// maxRefsWorkers limits the goroutines: all of them need the kernel's lock of the mount namespace.
	maxRefsWorkers = 4
)

// rootsQuery queries the roots of mounts, part by part.
type rootsQuery struct {
	mounts []rootOfMount
	parts  [][]int      // indexes into mounts
	next   atomic.Int32 // the next part to take
}

// run queries all parts. It returns after every goroutine that it has started has ended.
func (s *rootsQuery) run() {
	var others sync.WaitGroup
	for range min(maxRefsWorkers, runtime.GOMAXPROCS(0), len(s.parts)/2) - 1 {
		others.Go(s.work)
	}
	s.work()
	others.Wait()
}

func (s *rootsQuery) work() {
	var buffer [statmountBuffer]byte
	for {
		i := int(s.next.Add(1)) - 1
		if i >= len(s.parts) {
			return
		}
		for _, at := range s.parts[i] {
			s.mounts[at].query(buffer[:])
		}
	}
}

func (m *rootOfMount) query(buffer []byte) {
	status, text, err := statmount(m.id, statmountSBBasic|statmountMntRoot, buffer)
	if err != nil {
		return
	}
	m.dev, m.root = unix.Mkdev(status.devMajor, status.devMinor), "/"
	if root := cString(string(text), status.mntRoot); root != "/" {
		m.root = root
	}
}

// errManyRefs: there are so many references that reading the table is faster.
var errManyRefs = errors.New("many references")

// maxRefsQueried is the largest number of references that are queried one by one.
const maxRefsQueried = 500

// refsOnDevice returns the paths of the other mounts with the same filesystem and root as own.
func (r *reader) refsOnDevice(ctx context.Context, own MountPoint) ([]string, error) {
	now, err := r.rootsFor(ctx, own)
	if err != nil {
		return nil, err
	}
	return now.refs(own)
}

// rootsFor returns the roots of all mounts, valid for own.
func (r *reader) rootsFor(ctx context.Context, own MountPoint) (*rootsOfMounts, error) {
	if err := r.cache.acquire(ctx); err != nil {
		return nil, err
	}
	defer func() { <-r.cache.reading }()
	known := r.cache.roots.Load()
	if known == nil {
		known = &rootsOfMounts{}
	}
	if !known.isValidFor(own) {
		known = &rootsOfMounts{scan: known.scan}
	}
	ids, err := listMounts(len(known.mounts))
	if err != nil {
		return nil, err
	}
	now := known.renew(ids)
	r.cache.roots.Store(now)
	return now, nil
}

// refs returns the paths of the other mounts that still have the same filesystem and root as own.
func (r *rootsOfMounts) refs(own MountPoint) (paths []string, err error) {
	var buffer [statmountBuffer]byte
	dev, asked := unix.Mkdev(own.Major, own.Minor), 0
	for _, m := range r.mounts {
		if m.id == own.UniqueID || m.dev != dev || m.root != own.Root {
			continue
		}
		if asked++; asked > maxRefsQueried {
			return nil, errManyRefs
		}
		status, text, err := statmount(m.id, statmountMntRoot|statmountMntPoint, buffer[:])
		if err != nil {
			continue // it was unmounted since
		}
		if words := string(text); cString(words, status.mntRoot) == own.Root {
			paths = append(paths, cString(words, status.mntPoint))
		}
	}
	return slices.Clip(paths), nil // an append copies it
}
