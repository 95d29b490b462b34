package dockerserver

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/volumekit/volumekit/volume"
)

// mountLine is one line of a mountinfo: the mount's id, which is unique in all namespaces; the device and the directory
// in it that are mounted; and the mount point.
type mountLine struct {
	id   string
	what filesystemDir
	at   string
}

// filesystemDir is a device and a directory in its filesystem, as a mountinfo has them. The zero value is none.
type filesystemDir struct{ device, dir string }

// String returns what a record holds.
func (d filesystemDir) String() string { return strings.TrimSpace(d.device + " " + d.dir) }

func parseFilesystemDir(text string) filesystemDir {
	device, dir, _ := strings.Cut(text, " ")
	return filesystemDir{device, dir}
}

// contains reports whether other is d or beneath it.
func (d filesystemDir) contains(other filesystemDir) bool {
	return d != filesystemDir{} && d.device == other.device && isBeneath(d.dir, other.dir)
}

func isBeneath(dir, path string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// dirShownBy returns what path shows: what is mounted there, or a directory of the mount that it is in. It is the zero value if
// nothing is there.
func dirShownBy(path string) (filesystemDir, error) {
	table, err := mountsOf("/proc/self/mountinfo")
	if err != nil || path == "" {
		return filesystemDir{}, err
	}
	if there, at := shownAt(table, escaped.Replace(path)); at {
		return there, nil // A mount that hangs is not touched.
	}
	resolved, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		return filesystemDir{}, nil
	}
	there, _ := shownAt(table, escaped.Replace(resolved))
	return there, err
}

// shownAt returns what an escaped path shows, and whether it is a mount point.
func shownAt(table []mountLine, path string) (there filesystemDir, isMount bool) {
	var in mountLine
	for _, m := range table {
		if isBeneath(m.at, path) && len(m.at) >= len(in.at) {
			in = m // the uppermost comes last
		}
	}
	there = in.what
	if rest := strings.TrimPrefix(path, strings.TrimSuffix(in.at, "/")); rest != "" && path != in.at {
		there.dir = strings.TrimSuffix(there.dir, "/") + rest
	}
	return there, path == in.at
}

// escaped replaces the characters of a path that would end a field or a line, as a mountinfo does.
var escaped = strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`)

// unusedElsewhere returns an error that matches volume.ErrInUse if a process in another mount namespace, such as a
// container, has a mount of the volume or of a part of it. That is a mount of what path shows, or of what the record names:
// the mount at path may be gone only here. If the mounts of a process cannot be read, the use is unknown, which is an error
// too.
func unusedElsewhere(path, recorded string) error {
	wanted, err := dirShownBy(path)
	if err != nil {
		return err
	}
	before := parseFilesystemDir(recorded)
	if wanted == (filesystemDir{}) && before == (filesystemDir{}) {
		return nil
	}
	table, err := mountsOf("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	ours := map[string]bool{}
	for _, m := range table {
		ours[m.id] = true
	}
	isOurs := func(m mountLine) bool { return ours[m.id] }
	tables, err := filepath.Glob("/proc/[0-9]*/mountinfo")
	if err != nil {
		return err
	}
	for _, name := range tables {
		table, err := mountsOf(name)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) || errors.Is(err, syscall.EINVAL) {
			continue // the process has ended; a zombie has no mounts
		}
		if err != nil {
			return fmt.Errorf("the mounts of a process cannot be seen: %w", err)
		}
		if slices.ContainsFunc(table, isOurs) {
			continue // it is in this mount namespace
		}
		for _, m := range table {
			if wanted.contains(m.what) || before.contains(m.what) {
				return fmt.Errorf("process %s has it mounted: end it first: %w", filepath.Base(filepath.Dir(name)), volume.ErrInUse)
			}
		}
	}
	return nil
}

func mountsOf(mountinfo string) (table []mountLine, err error) {
	file, err := os.Open(mountinfo) //nolint:gosec // a file of /proc
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 4 {
			table = append(table, mountLine{id: fields[0], what: filesystemDir{fields[2], fields[3]}, at: fields[4]})
		}
	}
	return table, lines.Err()
}
