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
type mountLine struct{ id, what, at string }

// mountedAt returns the device and the directory mounted at path, or "" for no mount.
func mountedAt(path string) (what string, err error) {
	table, err := mountsOf("/proc/self/mountinfo")
	for _, m := range table {
		if m.at == escaped.Replace(path) {
			what = m.what // the uppermost comes last
		}
	}
	return what, err
}

// escaped replaces the characters of a path that would end a field or a line, as a mountinfo does.
var escaped = strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`)

// unusedElsewhere returns an error that matches volume.ErrInUse if a process in another mount namespace, such as a
// container, has a mount of the volume. That is a mount of what is mounted at path, or of what the record names: the
// mount at path may be gone only here. If the mounts of a process cannot be read, the use is unknown, which is an error
// too.
func unusedElsewhere(path, recorded string) error {
	wanted, err := mountedAt(path)
	if err != nil {
		return err
	}
	if wanted == "" && recorded == "" {
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
			if m.what == wanted || m.what == recorded {
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
			table = append(table, mountLine{id: fields[0], what: fields[2] + " " + fields[3], at: fields[4]})
		}
	}
	return table, lines.Err()
}
