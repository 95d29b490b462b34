package mount

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

// maxRefsAsked is how many references are asked for one by one, before reading the whole table is faster.
const maxRefsAsked = 500

// refsSnapshot are the references of one mount as they were found without reading the table.
type refsSnapshot struct {
	witness

	of    glance
	paths []string
}

// mountRefs is GetMountRefs. The first time it asks the kernel for the numbers of all mounts, and for words only of those
// that are on the same filesystem; when nothing has changed since, it answers from memory; and who asks for the references
// of several mounts has the table read.
func (m *Mounter) mountRefs(ctx context.Context, name string) ([]string, error) {
	g, err := m.glanceCached(name)
	if err != nil || g.isRoot && g.uniqueID == 0 {
		return m.refsInTable(ctx, name, g)
	}
	if !g.isRoot {
		return nil, nil
	}
	if s := m.current.table.Load(); s != nil && s.isFresh() {
		if paths, ok := s.refsOf(g); ok {
			return paths, nil
		}
	}
	if s := m.current.refs.Load(); s != nil && s.isFresh() {
		if s.of == g {
			return s.paths, nil
		}
		return m.refsInTable(ctx, name, g)
	}
	s, err := m.askRefs(g)
	if err != nil {
		return m.refsInTable(ctx, name, g)
	}
	m.current.keepRefs(s)
	return s.paths, nil
}

// refsInTable answers from the whole table: about the mount that was seen, or about the one that the table has at name.
func (m *Mounter) refsInTable(ctx context.Context, name string, g glance) ([]string, error) {
	s, err := m.snapshot(ctx)
	if err != nil {
		return nil, err
	}
	if paths, ok := s.refsOf(g); ok {
		return paths, nil
	}
	found, is := lookup(s.table, name)
	if !is {
		return nil, nil
	}
	return s.index().refs(&found), nil
}

// refsOf returns the references of the mount that was seen. It reports false when the table does not have it.
func (s *snapshot) refsOf(g glance) (paths []string, ok bool) {
	at, ok := slices.BinarySearchFunc(s.table, g.uniqueID, func(m MountPoint, id uint64) int {
		return cmp.Compare(m.UniqueID, id)
	})
	if g.uniqueID == 0 || !ok {
		return nil, false
	}
	return s.index().refs(&s.table[at]), true
}

// errManyRefs says that there are so many references that the table had better be read.
var errManyRefs = errors.New("many references")

// askRefs asks for the references of the mount that was seen.
func (m *Mounter) askRefs(g glance) (*refsSnapshot, error) {
	own, err := m.facts(g.uniqueID)
	if err != nil {
		return nil, err
	}
	s := &refsSnapshot{of: g}
	if _, err := s.open(); err != nil {
		return nil, err
	}
	if s.paths, err = refsOnDevice(own); err != nil {
		s.forget()
		return nil, err
	}
	return s, nil
}

// refsOnDevice returns the paths of the other mounts that show the same as own.
func refsOnDevice(own MountPoint) ([]string, error) {
	ids, err := listMounts(0)
	if err != nil {
		return nil, err
	}
	search := refsSearch{own: own, parts: slices.Collect(slices.Chunk(ids, refsPart))}
	search.found = make([][]string, len(search.parts))
	search.run()
	if search.tooMany() {
		return nil, errManyRefs
	}
	return slices.Clip(slices.Concat(search.found...)), nil // who appends to it gets a copy
}

const (
	// refsPart is how many mounts a goroutine asks for before it looks for more work.
	refsPart = 128
	// maxRefsWorkers is how many goroutines there are at most, as they all want the kernel's lock of the mount namespace.
	maxRefsWorkers = 4
)

// refsSearch looks for references, one part of all mounts after the other.
type refsSearch struct {
	own   MountPoint
	parts [][]uint64   // unique ids
	found [][]string   // the paths of each part
	next  atomic.Int32 // part that nobody has taken
	asked atomic.Int32 // mounts that were asked for their paths
}

// run looks through all parts, and returns after every goroutine that it has started.
func (s *refsSearch) run() {
	var others sync.WaitGroup
	for range min(maxRefsWorkers, runtime.GOMAXPROCS(0), len(s.parts)/2) - 1 {
		others.Go(s.work)
	}
	s.work()
	others.Wait()
}

func (s *refsSearch) work() {
	for !s.tooMany() {
		i := int(s.next.Add(1)) - 1
		if i >= len(s.parts) {
			return
		}
		s.found[i] = s.in(s.parts[i])
	}
}

func (s *refsSearch) tooMany() bool { return s.asked.Load() > maxRefsAsked }

// in returns the paths of those mounts among the ids that show the same.
func (s *refsSearch) in(ids []uint64) (paths []string) {
	var status mountStatus
	var buffer [statmountBuffer]byte
	for _, id := range ids {
		if id == s.own.UniqueID || statmountBasic(id, statmountSBBasic, &status) != nil {
			continue // it has gone since
		}
		if status.devMajor != s.own.Major || status.devMinor != s.own.Minor {
			continue
		}
		if s.asked.Add(1); s.tooMany() {
			return nil
		}
		status, text, err := statmount(id, statmountMntRoot|statmountMntPoint, buffer[:])
		if err != nil {
			continue
		}
		if words := string(text); cString(words, status.mntRoot) == s.own.Root {
			paths = append(paths, cString(words, status.mntPoint))
		}
	}
	return paths
}
