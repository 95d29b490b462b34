package blockmap

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/descriptor"
	"github.com/volumekit/volumekit/mount"
)

// dirMode is the mode of new directories.
const dirMode = 0o750

// openDir opens a directory, one element after the other, and follows no link. It calls missing for each missing element. If missing is
// nil, a missing element is an error.
func openDir(path string, missing func(parent int, name string) error) (*os.File, error) {
	fd, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for element := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
		if err != nil {
			break
		}
		parent := fd
		fd, err = openElement(parent, element)
		if errors.Is(err, unix.ENOENT) && missing != nil {
			if err = missing(parent, element); err == nil {
				fd, err = openElement(parent, element)
			}
		}
		_ = unix.Close(parent)
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

func openElement(parent int, name string) (int, error) {
	return unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

func makeElement(parent int, name string) error {
	if err := unix.Mkdirat(parent, name, dirMode); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

// removeDir removes an empty directory.
func removeDir(path string) error {
	parent, err := openDir(filepath.Dir(path), nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer parent.Close()
	return descriptor.Call(parent, func(fd int) error {
		err := unix.Unlinkat(fd, filepath.Base(path), unix.AT_REMOVEDIR)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return &fs.PathError{Op: "rmdir", Path: path, Err: err}
		}
		return nil
	})
}

// makeLink makes the pod's link. It replaces an older link in one step, and leaves any other file alone.
func makeLink(mapping Mapping) error {
	dir, err := openDir(mapping.PodMapDir, makeElement)
	if err != nil {
		return err
	}
	defer dir.Close()
	return descriptor.Call(dir, func(fd int) error {
		target, err := readLink(fd, mapping)
		switch {
		case err == nil && target == mapping.bindPath():
			return nil
		case err == nil:
			return replaceLink(fd, mapping)
		case !errors.Is(err, unix.ENOENT):
			return err
		}
		if err := unix.Symlinkat(mapping.bindPath(), fd, mapping.LinkName); err != nil {
			return linkError("symlink", mapping, err)
		}
		return nil
	})
}

// replaceLink replaces a wrong link by the right one.
func replaceLink(dir int, mapping Mapping) error {
	temporary := ".new-" + mapping.PodUID
	if err := unix.Unlinkat(dir, temporary, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return linkError("unlink", mapping, err)
	}
	if err := unix.Symlinkat(mapping.bindPath(), dir, temporary); err != nil {
		return linkError("symlink", mapping, err)
	}
	if err := unix.Renameat(dir, temporary, dir, mapping.LinkName); err != nil {
		return linkError("rename", mapping, errors.Join(err, unix.Unlinkat(dir, temporary, 0)))
	}
	return nil
}

// readLink returns where the pod's link leads.
func readLink(dir int, mapping Mapping) (string, error) {
	var buffer [unix.PathMax]byte
	n, err := unix.Readlinkat(dir, mapping.LinkName, buffer[:])
	if errors.Is(err, unix.EINVAL) {
		return "", linkError("readlink", mapping, fmt.Errorf("it is no link: %w", mount.ErrForeign))
	}
	if err != nil {
		return "", linkError("readlink", mapping, err)
	}
	return string(buffer[:n]), nil
}

func linkError(call string, mapping Mapping, err error) error {
	return &fs.PathError{Op: call, Path: mapping.PodMapDir + "/" + mapping.LinkName, Err: err}
}

// removeLink removes the pod's link. It leaves any other file alone.
func removeLink(mapping Mapping) error {
	dir, err := openDir(mapping.PodMapDir, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	return descriptor.Call(dir, func(fd int) error {
		_, err := readLink(fd, mapping)
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := unix.Unlinkat(fd, mapping.LinkName, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return linkError("unlink", mapping, err)
		}
		return nil
	})
}
