package emptydir

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/volume"
)

const (
	// maxOpen is how many directories are open at once. Deeper ones are moved up before they are emptied.
	maxOpen = 32
	// maxPasses is how often a directory is read again because somebody still writes to it.
	maxPasses = 16
	// batch is how many names are read at once.
	batch = 512
)

// removeTree removes the directory at path and all that is in it. It follows no link and enters no mount: what is mounted
// inside, even of the same filesystem, is an error that matches volume.ErrInUse, and nothing below it is touched. The
// parent of path is the node's own.
func removeTree(ctx context.Context, path string) error {
	parent, err := unix.Open(filepath.Dir(path), openFlags, 0)
	if err != nil {
		return fmt.Errorf("opening %s: %w", filepath.Dir(path), err)
	}
	defer closeFD(parent)
	r := &remover{check: ctx.Err}
	root, err := r.open(parent, filepath.Base(path))
	if err != nil {
		return fmt.Errorf("opening %s: %w", path, err)
	}
	defer closeFD(root)
	r.root = root
	if err := r.empty(root, 0); err != nil {
		return fmt.Errorf("emptying %s: %w", path, err)
	}
	if err := unix.Unlinkat(parent, filepath.Base(path), unix.AT_REMOVEDIR); err != nil {
		return fmt.Errorf("removing %s: %w", path, inUse(err))
	}
	return nil
}

// remover deletes below one directory.
type remover struct {
	root  int
	moved int
	check func() error
}

// empty deletes what is in the directory dir, which is depth directories below the root.
func (r *remover) empty(dir, depth int) error {
	for tries := 0; tries < maxPasses; {
		moved := r.moved
		n, err := r.pass(dir, depth)
		if n == 0 || err != nil {
			return err
		}
		if r.moved == moved {
			tries++
		}
	}
	return fmt.Errorf("somebody still writes to it: stop the pod first: %w", volume.ErrInUse)
}

// pass deletes every entry once and returns how many there were.
func (r *remover) pass(dir, depth int) (int, error) {
	// A descriptor of its own, so that reading starts at the beginning and closing leaves dir open.
	fd, err := unix.Openat(dir, ".", openFlags, 0)
	if err != nil {
		return 0, err
	}
	entries := os.NewFile(uintptr(fd), "directory")
	defer func() { _ = entries.Close() }()
	total := 0
	for {
		names, err := entries.Readdirnames(batch)
		for _, name := range names {
			if err := r.entry(dir, name, depth); err != nil {
				return total, fmt.Errorf("%q: %w", name, err)
			}
		}
		total += len(names)
		if errors.Is(err, io.EOF) {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

// entry deletes one name: a file or a link as it is, a directory with all that is in it.
func (r *remover) entry(dir int, name string, depth int) error {
	if err := r.check(); err != nil {
		return err
	}
	err := unlink(dir, name, 0)
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return err
	}
	if rmdirErr := unlink(dir, name, unix.AT_REMOVEDIR); !errors.Is(rmdirErr, unix.ENOTEMPTY) {
		if errors.Is(rmdirErr, unix.ENOTDIR) {
			return err
		}
		return rmdirErr
	}
	if depth+1 >= maxOpen {
		return r.moveUp(dir, name)
	}
	child, err := r.open(dir, name)
	if err != nil {
		return err
	}
	defer closeFD(child)
	if err := r.empty(child, depth+1); err != nil {
		return err
	}
	return unlink(dir, name, unix.AT_REMOVEDIR)
}

// moveUp puts a directory that is too deep into the root, where the next pass finds it.
func (r *remover) moveUp(dir int, name string) error {
	for range maxPasses {
		free := ".deleted-" + strconv.FormatUint(rand.Uint64(), 36)
		err := unix.Renameat2(dir, name, r.root, free, unix.RENAME_NOREPLACE)
		if !errors.Is(err, unix.EEXIST) {
			r.moved++
			return inUse(err)
		}
	}
	return unix.EEXIST
}

// open opens the directory name of dir if it is on the same mount.
func (r *remover) open(dir int, name string) (int, error) {
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{
		Flags:   openFlags,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_MAGICLINKS,
	})
	switch {
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM):
		return openOld(dir, name)
	case errors.Is(err, unix.EXDEV):
		return -1, fmt.Errorf("something is mounted here: unmount it first: %w: %w", volume.ErrInUse, err)
	}
	return fd, err
}

// openOld is open where openat2 is missing (Linux before 5.6) or forbidden (a sandbox).
func openOld(dir int, name string) (int, error) {
	fd, err := unix.Openat(dir, name, openFlags, 0)
	if err != nil {
		return -1, err
	}
	if err := sameMount(dir, fd); err != nil {
		closeFD(fd)
		return -1, err
	}
	return fd, nil
}

// sameMount compares the ids of the mounts that two descriptors were opened on. Device numbers do not tell: a bind of the
// same filesystem has the same.
func sameMount(a, b int) error {
	one, err := mountID(a)
	if err != nil {
		return err
	}
	two, err := mountID(b)
	if err != nil {
		return err
	}
	if one != two {
		return fmt.Errorf("something is mounted here: unmount it first: %w", volume.ErrInUse)
	}
	return nil
}

// mountID reads the id from the line "mnt_id:" of proc(5).
func mountID(fd int) (string, error) {
	path := "/proc/self/fdinfo/" + strconv.Itoa(fd)
	info, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	for line := range bytes.Lines(info) {
		if id, ok := bytes.CutPrefix(line, []byte("mnt_id:")); ok {
			return string(bytes.TrimSpace(id)), nil
		}
	}
	return "", fmt.Errorf("%s has no mnt_id: %w", path, volume.ErrUnsupported)
}

// unlink removes one name; what is gone already is no error.
func unlink(dir int, name string, flags int) error {
	err := unix.Unlinkat(dir, name, flags)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return inUse(err)
}

// inUse marks the error of a mount point, and of a directory that somebody has written to again.
func inUse(err error) error {
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("%w: %w", volume.ErrInUse, err)
	}
	return err
}
