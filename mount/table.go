package mount

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// parseTable reads a mount table in the format of /proc/self/mountinfo (proc_pid_mountinfo(5)).
func parseTable(content string) ([]MountPoint, error) {
	table := make([]MountPoint, 0, strings.Count(content, "\n"))
	for line := range strings.Lines(content) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" {
			continue
		}
		m, err := parseLine(line)
		if err != nil {
			return nil, fmt.Errorf("mount table, line %q: %w", line, err)
		}
		table = append(table, m)
	}
	return table, nil
}

// parseLine reads one line: id, parent, major:minor, root, path, options, any number of optional fields, a dash, then
// filesystem, source and superblock options. The source may be missing or empty, so fields are split at single blanks.
func parseLine(line string) (MountPoint, error) {
	fields := strings.Split(line, " ")
	if len(fields) < 7 {
		return MountPoint{}, fmt.Errorf("%d fields: %w", len(fields), ErrInvalid)
	}
	dash := slices.Index(fields[6:], "-")
	if dash < 0 || len(fields) < 6+dash+2 {
		return MountPoint{}, fmt.Errorf("no filesystem: %w", ErrInvalid)
	}
	m := MountPoint{
		Root:    unescape(fields[3]),
		Path:    unescape(fields[4]),
		Options: splitOptions(fields[5]),
	}
	if dash > 0 {
		m.Propagation = slices.Clone(fields[6 : 6+dash])
	}
	m.setFilesystem(fields[6+dash+1:])
	return m, m.setNumbers(fields)
}

func (m *MountPoint) setNumbers(fields []string) (err error) {
	if m.ID, err = strconv.ParseUint(fields[0], 10, 64); err != nil {
		return fmt.Errorf("id: %w: %w", ErrInvalid, err)
	}
	if m.ParentID, err = strconv.ParseUint(fields[1], 10, 64); err != nil {
		return fmt.Errorf("parent: %w: %w", ErrInvalid, err)
	}
	major, minor, _ := strings.Cut(fields[2], ":")
	if m.Major, err = parseUint32(major); err != nil {
		return fmt.Errorf("device: %w: %w", ErrInvalid, err)
	}
	if m.Minor, err = parseUint32(minor); err != nil {
		return fmt.Errorf("device: %w: %w", ErrInvalid, err)
	}
	return nil
}

func (m *MountPoint) setFilesystem(fields []string) {
	m.FSType = unescape(fields[0])
	if len(fields) > 1 {
		m.Source = unescape(fields[1])
	}
	if m.Source == "none" {
		m.Source = ""
	}
	if len(fields) > 2 {
		m.SuperOptions = splitOptions(fields[2])
	}
}

func parseUint32(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err
}

func splitOptions(s string) []string {
	if s == "" {
		return nil
	}
	options := strings.Split(s, ",")
	for i, option := range options {
		options[i] = unescape(option)
	}
	return options
}

// unescape decodes what the kernel writes for blank, tab, newline, backslash and the like: a backslash and three octal
// digits.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if c, ok := octal(s[i:]); ok {
			b.WriteByte(c)
			i += 3
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// octal decodes the escape that s begins with.
func octal(s string) (byte, bool) {
	if len(s) < 4 || s[0] != '\\' {
		return 0, false
	}
	n, err := strconv.ParseUint(s[1:4], 8, 8)
	return byte(n), err == nil
}

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

// refs returns the paths of the mounts that show the same as the mount at name, without that one.
func refs(table []MountPoint, name string) []string {
	m, ok := lookup(table, name)
	if !ok {
		return nil
	}
	var paths []string
	for _, other := range table {
		if other.ID != m.ID && other.Major == m.Major && other.Minor == m.Minor && other.Root == m.Root {
			paths = append(paths, other.Path)
		}
	}
	return paths
}
