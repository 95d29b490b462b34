package atomicwriter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const dirMode = 0o755

// fill writes every file of a set into the directory d, which is new.
func (d dir) fill(ctx context.Context, s set) error {
	made := make(map[string]bool)
	for _, f := range s.files {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := d.fillFile(f, made); err != nil {
			return gone(err)
		}
	}
	return nil
}

func (d dir) fillFile(f file, made map[string]bool) error {
	parent, err := d.makeParent(path.Dir(f.path), made)
	if err != nil {
		return err
	}
	defer parent.close()
	return parent.writeFile(path.Base(f.path), f.FileProjection)
}

// makeParent opens the directory at a path below d, and makes what is missing of it. made holds what was made before.
func (d dir) makeParent(below string, made map[string]bool) (dir, error) {
	at, err := d.again()
	if err != nil || below == "." {
		return at, err
	}
	for i, c := range below + "/" {
		if c != '/' {
			continue
		}
		upTo := below[:i]
		next, err := at.makeDir(path.Base(upTo), made[upTo])
		at.close()
		if err != nil {
			return dir{}, err
		}
		made[upTo] = true
		at = next
	}
	return at, nil
}

// again opens the directory once more.
func (d dir) again() (dir, error) {
	fd, err := retryOpen(func() (int, error) { return unix.Openat(d.fd, ".", dirFlags, 0) })
	if err != nil {
		return dir{}, d.failed("open", "", err)
	}
	return dir{fd, d.path, d.w}, nil
}

// makeDir makes and opens a directory. there says that it was made already.
//
//revive:disable-next-line:flag-parameter
func (d dir) makeDir(name string, there bool) (dir, error) {
	if !there {
		if err := d.mkdir(name); err != nil {
			return dir{}, err
		}
	}
	made, err := d.openDir(name)
	if err != nil || there {
		return made, err
	}
	if err := made.setDirMode(); err != nil {
		made.close()
		return dir{}, err
	}
	return made, nil
}

// setDirMode gives a new directory its mode whatever the umask, and keeps the setgid bit that it may have inherited.
func (d dir) setDirMode() error {
	var st unix.Stat_t
	if err := retry(func() error { return unix.Fstat(d.fd, &st) }); err != nil {
		return d.failed("stat", "", err)
	}
	return d.change("chmod", "", func() error { return unix.Fchmod(d.fd, dirMode|st.Mode&unix.S_ISGID) })
}

// writeFile makes one new file.
func (d dir) writeFile(name string, p FileProjection) (err error) {
	fd := -1
	err = d.change("create", name, func() (err error) {
		const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
		fd, err = unix.Openat(d.fd, name, flags, 0o600)
		return err
	})
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), filepath.Join(d.path, name))
	defer func() {
		if closeErr := f.Close(); err == nil && closeErr != nil {
			err = d.failed("close", name, closeErr)
		}
	}()
	return d.finishFile(fd, f, p)
}

func (d dir) finishFile(fd int, f *os.File, p FileProjection) error {
	name := path.Base(f.Name())
	err := d.change("write", name, func() error {
		_, err := f.Write(p.Data)
		return err
	})
	if err != nil {
		return err
	}
	if p.FsUser != nil { // before the mode: a change of owner may take bits of it away
		err = d.change("chown", name, func() error { return unix.Fchown(fd, int(*p.FsUser), -1) })
		if err != nil {
			return fmt.Errorf("giving it to user %d: %w", *p.FsUser, err)
		}
	}
	return d.change("chmod", name, func() error { return unix.Fchmod(fd, uint32(p.Mode)) })
}

// gone explains that a directory which is open has no place any more: only then can a new name in it not exist.
func gone(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("the set was removed meanwhile: %w: %w", ErrConflict, err)
	}
	return err
}

// syncSet waits until all of a set is on the disk, with what SetPerms has changed.
func (d dir) syncSet(ctx context.Context, s set) error {
	for _, f := range s.files {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := d.syncFile(f.path); err != nil {
			return err
		}
	}
	for name := range s.dirs {
		sub, err := d.descend(name)
		if err != nil {
			return err
		}
		err = sub.sync()
		sub.close()
		if err != nil {
			return err
		}
	}
	return d.sync()
}

func (d dir) syncFile(name string) error {
	parent, err := d.descend(path.Dir(name))
	if err != nil {
		return err
	}
	defer parent.close()
	fd, err := parent.openFile(path.Base(name))
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	return parent.change("fsync", path.Base(name), func() error { return unix.Fsync(fd) })
}

// descend opens the directory at a path below d, element by element.
func (d dir) descend(below string) (dir, error) {
	at, err := d.again()
	if err != nil || below == "." {
		return at, err
	}
	for element := range strings.SplitSeq(below, "/") {
		next, err := at.openDir(element)
		at.close()
		if err != nil {
			return dir{}, err
		}
		at = next
	}
	return at, nil
}
