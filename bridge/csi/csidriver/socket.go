package csidriver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/volumekit/volumekit/volume"
)

// ErrUntrustedSocket says that users other than root and this process could replace the driver's socket or connect to
// it.
var ErrUntrustedSocket = errors.New("others may write to it")

// checkSocket returns an error unless only trusted users can serve the socket at path, connect to it or replace it. The
// later connection reaches the checked socket, because no other user can change a directory of the path.
func checkSocket(path string, owners []uint32) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%q is no socket: give the path of the driver's socket: %w", path, volume.ErrInvalid)
	}
	if err := checkWriters(path, info, owners); err != nil {
		return err
	}
	resolved, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return err
	}
	for dir := resolved; ; dir = filepath.Dir(dir) {
		info, err := os.Lstat(dir)
		if err != nil {
			return err
		}
		if err := checkWriters(dir, info, owners); err != nil {
			return fmt.Errorf("socket %q: %w", path, err)
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

// checkWriters returns an error unless only trusted users can write to a socket, or rename entries of a directory.
func checkWriters(path string, info fs.FileInfo, owners []uint32) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%q: owner: %w", path, errors.ErrUnsupported)
	}
	if !isTrusted(stat.Uid, os.Geteuid(), owners) {
		return fmt.Errorf("%q belongs to user %d: have root own it, or name the user in Options.Owners: %w", path, stat.Uid, ErrUntrustedSocket)
	}
	if info.IsDir() && info.Mode()&fs.ModeSticky != 0 {
		return nil // In a sticky directory a user cannot rename the entries of others.
	}
	if info.Mode()&0o002 != 0 || info.Mode()&0o020 != 0 && !isTrusted(stat.Gid, os.Getegid(), nil) {
		return fmt.Errorf("%q has mode %v: take the right to write from group and others: %w", path, info.Mode().Perm(), ErrUntrustedSocket)
	}
	return nil
}

func isTrusted(id uint32, own int, others []uint32) bool {
	return id == 0 || int(id) == own || slices.Contains(others, id)
}
