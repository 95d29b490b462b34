package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/volumekit/volumekit/mount"
)

// maxPartial bounds the retries when other processes remove or create a partial image meanwhile.
const maxPartial = 8

// Begin creates an empty file, with mode 0600, and locks it. The lock lasts while the file is open, here or in a child
// process that outlives this one. So an existing file without a lock is left over from an ended process, and Begin
// removes it. If another process is filling the file, the error matches mount.ErrTransient.
func (d *Dir) Begin(name string) (*os.File, error) {
	for range maxPartial {
		file, err := d.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if err == nil {
			return d.lockNew(name, file)
		}
		if !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("image in %q: %w", d.path, err)
		}
		if err := d.RemoveLeftOver(name); err != nil {
			return nil, err
		}
	}
	return nil, d.errBusy(name, nil)
}

// lockNew locks a new partial image. It fails if another process removed it first, as a left-over.
func (d *Dir) lockNew(name string, file *os.File) (*os.File, error) {
	err := tryLock(file)
	if err == nil {
		var same bool
		if same, err = d.Is(name, file); err == nil && same {
			return file, nil
		}
	}
	file.Close()
	return nil, d.errBusy(name, err)
}

func (d *Dir) errBusy(name string, err error) error {
	busy := fmt.Errorf("%q is being made by another call or process: %w", d.pathOf(name), mount.ErrTransient)
	return errors.Join(busy, err)
}

// RemoveLeftOver removes the partial image of an ended process. It is no error if there is none. If another process is
// filling it, the error matches mount.ErrTransient.
func (d *Dir) RemoveLeftOver(name string) error {
	file, err := d.LockLeftOver(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	return d.Remove(name, file)
}

// LockLeftOver opens and locks the partial image of an ended process. If there is none, the error matches
// fs.ErrNotExist; if another process is filling it, mount.ErrTransient.
func (d *Dir) LockLeftOver(name string) (*os.File, error) {
	file, err := d.Open(name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	if err := tryLock(file); err != nil {
		file.Close()
		return nil, d.errBusy(name, err)
	}
	return file, nil
}

// Publish gives a partial image its final name, which must not exist. The caller must then sync the directory.
func (d *Dir) Publish(partial, name string) error {
	if err := d.publish(partial, name); err != nil {
		return fmt.Errorf("renaming %q to %q: %w", d.pathOf(partial), d.pathOf(name), err)
	}
	return nil
}
