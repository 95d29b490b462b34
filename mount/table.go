package mount

import (
	"slices"
	"strings"
)

// lookup finds the mount that an access to name reaches, and reports whether name is its mount point. It walks from the
// root down as the kernel does, so it does not find a mount that a later one hides.
func lookup(table []MountPoint, name string) (found MountPoint, isMountPoint bool) {
	children := make(map[uint64][]MountPoint)
	known := make(map[uint64]bool, len(table))
	for _, m := range table {
		known[m.ID] = true
	}
	var roots []MountPoint
	for _, m := range table {
		if !known[m.ParentID] || m.ParentID == m.ID {
			roots = append(roots, m)
			continue
		}
		children[m.ParentID] = append(children[m.ParentID], m)
	}
	for next, ok := nearest(roots, name); ok; {
		found, isMountPoint = next, next.Path == name
		next, ok = nearest(children[found.ID], name)
		delete(children, found.ID) // A broken table may hold a cycle.
	}
	return found, isMountPoint
}

// nearest returns the mount that a walk to name meets first: the one with the shortest path, the last of several.
func nearest(mounts []MountPoint, name string) (first MountPoint, ok bool) {
	for _, m := range mounts {
		if within(name, m.Path) && (!ok || len(m.Path) <= len(first.Path)) {
			first, ok = m, true
		}
	}
	return first, ok
}

// within reports whether name is dir or lies below it.
func within(name, dir string) bool {
	if dir == "/" || name == dir {
		return true
	}
	return strings.HasPrefix(name, dir) && name[len(dir)] == '/'
}

// content is the filesystem of a mount and the directory of it that the mount shows.
type content struct {
	major, minor uint32
	root         string
}

func (m *MountPoint) content() content { return content{m.Major, m.Minor, m.Root} }

// tableIndex finds the mounts in a table that show the same content.
type tableIndex struct {
	contents map[content]mountsOfContent
}

// mountsOfContent are the mounts with the same content.
type mountsOfContent struct {
	ids []uint64
	// paths holds all paths, twice in a row. The paths of all mounts but one are a slice of it.
	paths []string
}

func newTableIndex(table []MountPoint) *tableIndex {
	x := &tableIndex{contents: make(map[content]mountsOfContent)}
	for i := range table {
		m := &table[i]
		c := x.contents[m.content()]
		c.ids, c.paths = append(c.ids, m.ID), append(c.paths, m.Path)
		x.contents[m.content()] = c
	}
	for key, c := range x.contents {
		c.paths = append(c.paths, c.paths...)
		x.contents[key] = c
	}
	return x
}

// refs returns the paths of the other mounts that show the same as m. The result is part of the index, so it must not be
// changed.
func (x *tableIndex) refs(m *MountPoint) []string {
	c := x.contents[m.content()]
	at, n := slices.Index(c.ids, m.ID), len(c.ids)
	if at < 0 || n == 1 {
		return nil
	}
	return c.paths[at+1 : at+n : at+n]
}

// refs returns the paths of the other mounts that show the same as the mount at name.
func refs(table []MountPoint, name string) []string {
	m, ok := lookup(table, name)
	if !ok {
		return nil
	}
	return newTableIndex(table).refs(&m)
}
