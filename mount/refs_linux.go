package mount

import (
	"cmp"
	"context"
	"slices"
)

// refsSnapshot are the references of one mount as they were found without reading the table.
type refsSnapshot struct {
	witness

	of    glance
	paths []string
}

// mountRefs is GetMountRefs. It asks the kernel for the ids of all mounts, and what they show of those alone that it has not
// asked before (see rootsOfMounts). When nothing has changed since, it answers from memory.
func (r *reader) mountRefs(ctx context.Context, name string) ([]string, error) {
	g, err := r.glanceCached(name)
	if err != nil || g.isRoot && g.uniqueID == 0 {
		return r.refsInTable(ctx, name, g)
	}
	if !g.isRoot {
		return nil, nil
	}
	if s := r.current.table.Load(); s != nil && s.isFresh() {
		if paths, ok := s.refsOf(g); ok {
			return paths, nil
		}
	}
	if s := r.current.refs.Load(); s != nil && s.of == g && s.isFresh() {
		return s.paths, nil
	}
	s, err := r.askRefs(ctx, g)
	if err != nil {
		return r.refsInTable(ctx, name, g)
	}
	r.current.keepRefs(s)
	return s.paths, nil
}

// refsInTable answers from the whole table: about the mount that was seen, or about the one that the table has at name.
func (r *reader) refsInTable(ctx context.Context, name string, g glance) ([]string, error) {
	s, err := r.snapshot(ctx)
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

// askRefs asks for the references of the mount that was seen.
func (r *reader) askRefs(ctx context.Context, g glance) (*refsSnapshot, error) {
	own, err := r.facts(g.uniqueID)
	if err != nil {
		return nil, err
	}
	s := &refsSnapshot{of: g}
	if _, err := s.open(); err != nil {
		return nil, err
	}
	if s.paths, err = r.refsOnDevice(ctx, own); err != nil {
		s.forget()
		return nil, err
	}
	return s, nil
}
