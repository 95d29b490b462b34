package mount

import (
	"slices"
	"strings"
)

// lookup finds the mount that an access to name reaches, and reports whether it is mounted at name itself. It walks from
// the root down as the kernel does, so that a mount which a later one hides is not found.
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
		delete(children, found.ID) // a broken table may hold a circle
	}
	return found, isMountPoint
}

// nearest returns the mount that a walk to name meets first: the one with the shortest path, of equals the last.
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

// content is what mounts have in common that show the same.
type content struct {
	major, minor uint32
	root         string
}

func (m *MountPoint) content() content { return content{m.Major, m.Minor, m.Root} }

// tableIndex finds in a table what shows the same.
type tableIndex struct {
	contents map[content]showing
}

// showing are the mounts that show the same content.
type showing struct {
	ids []uint64
	// paths holds all paths twice, so that all but one are one piece of it, whichever that is.
	paths []string
}

func newTableIndex(table []MountPoint) *tableIndex {
	x := &tableIndex{contents: make(map[content]showing)}
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

// refs returns the paths of the mounts that show the same as m, without that one. The result is part of the index.
func (x *tableIndex) refs(m *MountPoint) []string {
	c := x.contents[m.content()]
	at, n := slices.Index(c.ids, m.ID), len(c.ids)
	if at < 0 || n == 1 {
		return nil
	}
	return c.paths[at+1 : at+n : at+n]
}

// refs returns the paths of the mounts that show the same as the mount at name, without that one.
func refs(table []MountPoint, name string) []string {
	m, ok := lookup(table, name)
	if !ok {
		return nil
	}
	return newTableIndex(table).refs(&m)
}
