package mount

import (
	"cmp"
	"context"
	"slices"
)

// refsSnapshot holds the references of one mount, which were found without reading the table.
type refsSnapshot struct {
	tableWatch

	of    pathStat
	paths []string
}

// mountRefs is GetMountRefs. It lists the ids of all mounts, and queries the roots only of those that it has not queried before
// (see rootsOfMounts). If nothing has changed since, it returns the cached result.
func (r *reader) mountRefs(ctx context.Context, name string) ([]string, error) {
	g, err := r.statPathCached(name)
	if err != nil || g.isRoot && g.uniqueID == 0 {
		return r.refsInTable(ctx, name, g)
	}
	if !g.isRoot {
		return nil, nil
	}
	if s := r.cache.table.Load(); s != nil && s.isFresh() {
		if paths, ok := s.refsOf(g); ok {
			return paths, nil
		}
	}
	if s := r.cache.refs.Load(); s != nil && s.of == g && s.isFresh() {
		return s.paths, nil
	}
	s, err := r.queryRefs(ctx, g)
	if err != nil {
		return r.refsInTable(ctx, name, g)
	}
	r.cache.keepRefs(s)
	return s.paths, nil
}

// refsInTable returns references from the whole table: those of the mount of g, or of the mount at name.
func (r *reader) refsInTable(ctx context.Context, name string, g pathStat) ([]string, error) {
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

// refsOf returns the references of the mount of g. It reports false if the table does not have that mount.
func (s *snapshot) refsOf(g pathStat) (paths []string, ok bool) {
	at, ok := slices.BinarySearchFunc(s.table, g.uniqueID, func(m MountPoint, id uint64) int {
		return cmp.Compare(m.UniqueID, id)
	})
	if g.uniqueID == 0 || !ok {
		return nil, false
	}
	return s.index().refs(&s.table[at]), true
}

// queryRefs finds the references of the mount of g without the table.
func (r *reader) queryRefs(ctx context.Context, g pathStat) (*refsSnapshot, error) {
	own, err := r.facts(g.uniqueID)
	if err != nil {
		return nil, err
	}
	s := &refsSnapshot{of: g}
	if _, err := s.open(); err != nil {
		return nil, err
	}
	if s.paths, err = r.refsOnDevice(ctx, own); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}
