package mount

import (
	"cmp"
	"context"
	"errors"
	"slices"
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
func refsOnDevice(own MountPoint) (paths []string, err error) {
	ids, err := listMounts(0)
	if err != nil {
		return nil, err
	}
	var status mountStatus
	var buffer [statmountBuffer]byte
	for asked, i := 0, 0; i < len(ids); i++ {
		if ids[i] == own.UniqueID || statmountBasic(ids[i], statmountSBBasic, &status) != nil {
			continue // it has gone since
		}
		if status.devMajor != own.Major || status.devMinor != own.Minor {
			continue
		}
		if asked++; asked > maxRefsAsked {
			return nil, errManyRefs
		}
		status, text, err := statmount(ids[i], statmountMntRoot|statmountMntPoint, buffer[:])
		if err != nil {
			continue
		}
		if words := string(text); cString(words, status.mntRoot) == own.Root {
			paths = append(paths, cString(words, status.mntPoint))
		}
	}
	return slices.Clip(paths), nil // who appends to it gets a copy
}
