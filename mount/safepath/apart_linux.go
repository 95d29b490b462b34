package safepath

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/abandonable"
)

// checkOutside refuses a tree that is one of dirs or lies in one.
func (t *tree) checkOutside(ctx context.Context, dirs []string) error {
	above, err := t.above(ctx, t.fd)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		id, err := identityOf(ctx, dir)
		switch {
		case errors.Is(err, unix.ENOENT): // nothing lies in it
		case err != nil:
			return err
		case slices.Contains(above, id):
			return overlaps(dir)
		}
	}
	return nil
}

// checkHoldsNone refuses a tree that is one of dirs or holds one.
func (t *tree) checkHoldsNone(ctx context.Context, dirs []string) error {
	own, err := look(t.fd, "")
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		fd, err := openLowest(ctx, dir)
		if err != nil {
			return err
		}
		above, err := t.above(ctx, fd)
		closeFD(fd)
		if err != nil {
			return err
		}
		if slices.Contains(above, own.id) {
			return overlaps(dir)
		}
	}
	return nil
}

func overlaps(dir string) error {
	return fmt.Errorf("it leads to %s, into it, or to a directory that holds it: use another path: %w", dir, ErrOverlap)
}

// above returns the identities of an open directory and of all directories that hold it, up to the root of the process.
func (t *tree) above(ctx context.Context, dir int) ([]fileID, error) {
	fd, err := openat(dir, ".", unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	var ids []fileID
	for {
		now, err := look(fd, "")
		if err == nil {
			ids = append(ids, now.id)
			err = abandonable.Begin(ctx, "openat")
		}
		if err != nil {
			closeFD(fd)
			return nil, err
		}
		next, err := openat(fd, "..", unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			closeFD(fd)
			return nil, err
		}
		isTop, err := t.same(fd, next)
		closeFD(fd)
		if isTop || err != nil {
			closeFD(next)
			return ids, err
		}
		fd = next
	}
}

// same reports whether two descriptors are of one directory in one mount. Only the root of the process is its own parent.
func (t *tree) same(a, b int) (bool, error) {
	one, err := look(a, "")
	if err != nil {
		return false, err
	}
	two, err := look(b, "")
	if err != nil || one.id != two.id {
		return false, err
	}
	err = t.sameMount(a, b)
	if errors.Is(err, unix.EXDEV) {
		return false, nil
	}
	return err == nil, err
}

// identityOf returns the identity of what a path leads to.
func identityOf(ctx context.Context, dir string) (fileID, error) {
	if err := abandonable.Begin(ctx, "open"); err != nil {
		return fileID{}, err
	}
	fd, err := openat(unix.AT_FDCWD, dir, unix.O_PATH)
	if err != nil {
		return fileID{}, fmt.Errorf("opening %s: %w", dir, err)
	}
	defer closeFD(fd)
	now, err := look(fd, "")
	return now.id, err
}

// openLowest opens the lowest directory at or above dir that exists.
func openLowest(ctx context.Context, dir string) (int, error) {
	for {
		if err := abandonable.Begin(ctx, "open"); err != nil {
			return -1, err
		}
		fd, err := openat(unix.AT_FDCWD, dir, unix.O_PATH|unix.O_DIRECTORY)
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) || dir == "/" {
			return fd, err
		}
		dir = path.Dir(dir)
	}
}
