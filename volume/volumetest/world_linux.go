package volumetest

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Capacity asks statfs.
func (kernelWorld) Capacity(name string) (int64, error) {
	var fsInfo unix.Statfs_t
	if err := unix.Statfs(name, &fsInfo); err != nil {
		return 0, &fs.PathError{Op: "statfs", Path: name, Err: err}
	}
	return int64(fsInfo.Blocks) * fsInfo.Frsize, nil //nolint:gosec // No filesystem has 2^63 bytes.
}

// Group asks lstat.
func (kernelWorld) Group(name string) (gid int64, mayWrite bool, err error) {
	info, err := os.Lstat(name)
	if err != nil {
		return 0, false, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false, fmt.Errorf("%s: lstat does not tell the group", name)
	}
	return int64(stat.Gid), info.Mode().Perm()&0o020 != 0, nil
}

// CanGive tries it on a file of its own.
func (kernelWorld) CanGive() bool {
	file, err := os.CreateTemp("", "volumetest-")
	if err != nil {
		return false
	}
	defer func() { _, _ = file.Close(), os.Remove(file.Name()) }()
	return file.Chown(-1, int(fsGroup)) == nil
}
