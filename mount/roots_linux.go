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

// rootOfMount is what a mount shows, as the kernel said when it was asked.
type rootOfMount struct {
	id   uint64 // unique
	dev  uint64
	root string
	scan uint64 // in which it was asked
}

// rootsOfMounts are what the mounts of this namespace show, ascending by id. They are never changed once they are kept. A mount
// never gets another filesystem, so that each has to be asked only once, however often a caller looks for references; but the
// path of its root changes with a rename in that filesystem, see speaksFor.
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

// speaksFor reports whether what was kept still tells which mounts show the same as own, whose root the kernel has just said.
// After a rename the root of own is not what it was. What was asked before own was may be older than a rename that came
// first. The root directory of a filesystem is never renamed. (A directory that was renamed and has its first name again may
// have been bound and asked in between; that is not seen.)
func (r *rootsOfMounts) speaksFor(own MountPoint) bool {
	if own.Root == "/" {
		return true
	}
	known, found := r.find(own.UniqueID)
	older := func(m rootOfMount) bool { return m.scan < known.scan }
	return found && known.root == own.Root && !slices.ContainsFunc(r.mounts, older)
}

// renew returns what the mounts with the ids show, which are ascending: those that are not known are asked.
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
	asking := rootsSearch{mounts: now.mounts, parts: slices.Collect(slices.Chunk(unknown, refsPart))}
	asking.run()
	// What has gone meanwhile, or cannot be reached, says nothing.
	now.mounts = slices.DeleteFunc(now.mounts, func(m rootOfMount) bool { return m.root == "" })
	return now
}

const (
	// refsPart is how many mounts a goroutine asks before it looks for more work.
	refsPart = 128
	// maxRefsWorkers is how many goroutines there are at most, as they all want the kernel's lock of the mount namespace.
	maxRefsWorkers = 4
)

// rootsSearch asks mounts what they show, one part after the other.
type rootsSearch struct {
	mounts []rootOfMount
	parts  [][]int      // places in mounts
	next   atomic.Int32 // the next part to take
}

// run asks all parts, and returns after every goroutine that it has started.
func (s *rootsSearch) run() {
	var others sync.WaitGroup
	for range min(maxRefsWorkers, runtime.GOMAXPROCS(0), len(s.parts)/2) - 1 {
		others.Go(s.work)
	}
	s.work()
	others.Wait()
}

func (s *rootsSearch) work() {
	var buffer [statmountBuffer]byte
	for {
		i := int(s.next.Add(1)) - 1
		if i >= len(s.parts) {
			return
		}
		for _, at := range s.parts[i] {
			s.mounts[at].ask(buffer[:])
		}
	}
}

func (m *rootOfMount) ask(buffer []byte) {
	status, text, err := statmount(m.id, statmountSBBasic|statmountMntRoot, buffer)
	if err != nil {
		return
	}
	m.dev, m.root = unix.Mkdev(status.devMajor, status.devMinor), "/"
	if root := cString(string(text), status.mntRoot); root != "/" {
		m.root = root
	}
}

// errManyRefs says that there are so many references that the table had better be read.
var errManyRefs = errors.New("many references")

// maxRefsAsked is how many references are asked for one by one, before reading the whole table is faster.
const maxRefsAsked = 500

// refsOnDevice returns the paths of the other mounts that show the same as own. Mounts are asked once for all who want to know.
func (r *reader) refsOnDevice(ctx context.Context, own MountPoint) ([]string, error) {
	now, err := r.rootsFor(ctx, own)
	if err != nil {
		return nil, err
	}
	return now.refs(own)
}

// rootsFor returns what all mounts show now, of which own is one.
func (r *reader) rootsFor(ctx context.Context, own MountPoint) (*rootsOfMounts, error) {
	if err := r.current.acquire(ctx); err != nil {
		return nil, err
	}
	defer func() { <-r.current.reading }()
	known := r.current.roots.Load()
	if known == nil {
		known = &rootsOfMounts{}
	}
	if !known.speaksFor(own) {
		known = &rootsOfMounts{scan: known.scan}
	}
	ids, err := listMounts(len(known.mounts))
	if err != nil {
		return nil, err
	}
	now := known.renew(ids)
	r.current.roots.Store(now)
	return now, nil
}

// refs returns where those mounts are that still show the same as own.
func (r *rootsOfMounts) refs(own MountPoint) (paths []string, err error) {
	var buffer [statmountBuffer]byte
	dev, asked := unix.Mkdev(own.Major, own.Minor), 0
	for _, m := range r.mounts {
		if m.id == own.UniqueID || m.dev != dev || m.root != own.Root {
			continue
		}
		if asked++; asked > maxRefsAsked {
			return nil, errManyRefs
		}
		status, text, err := statmount(m.id, statmountMntRoot|statmountMntPoint, buffer[:])
		if err != nil {
			continue // it has gone since
		}
		if words := string(text); cString(words, status.mntRoot) == own.Root {
			paths = append(paths, cString(words, status.mntPoint))
		}
	}
	return slices.Clip(paths), nil // who appends to it gets a copy
}
