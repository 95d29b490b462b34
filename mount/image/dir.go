package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/volumekit/volumekit/mount"
)

// ErrNotRegular says that a name is not the name of a regular file. Match it with errors.Is.
var ErrNotRegular = errors.New("not a regular file")

// Dir is an open directory of images. Keep it open for one call only.
type Dir struct {
	root *os.Root
	path string
}

// OpenDir opens a directory by its absolute path. The error for a missing one matches fs.ErrNotExist.
func OpenDir(path string) (*Dir, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("directory of images: %w", err)
	}
	return &Dir{root: root, path: path}, nil
}

// MakeDir opens a directory, and makes it with mode 0700, and its missing parents with mode 0750. They survive a power cut.
func MakeDir(path string) (*Dir, error) {
	if err := makeSynced(path, 0o700); err != nil {
		return nil, fmt.Errorf("directory of images: %w", err)
	}
	return OpenDir(path)
}

// makeSynced makes a directory and its missing parents, and syncs their entries. It also syncs an existing directory's
// entry: the process that made it may have been killed before its sync.
func makeSynced(dir string, perm fs.FileMode) error {
	err := os.Mkdir(dir, perm)
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeSynced(filepath.Dir(dir), 0o750); err != nil {
			return err
		}
		err = os.Mkdir(dir, perm)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return Sync(filepath.Dir(dir))
}

// Close closes the directory.
func (d *Dir) Close() { _ = d.root.Close() }

func (d *Dir) pathOf(name string) string { return filepath.Join(d.path, name) }

// Open opens a regular file of this directory. It does not follow a link: the error then matches [ErrNotRegular]. Flags are
// those of os.OpenFile.
func (d *Dir) Open(name string, flags int) (*os.File, error) {
	before, err := d.root.Lstat(name)
	if err != nil {
		return nil, fmt.Errorf("image in %q: %w", d.path, err)
	}
	if !before.Mode().IsRegular() {
		return nil, fmt.Errorf("%q is %s: %w", d.pathOf(name), before.Mode().Type(), ErrNotRegular)
	}
	file, err := d.root.OpenFile(name, flags, 0)
	if err != nil {
		return nil, fmt.Errorf("image in %q: %w", d.path, err)
	}
	after, err := file.Stat()
	if err == nil && !os.SameFile(before, after) {
		err = fmt.Errorf("%q was replaced while it was opened: %w", d.pathOf(name), mount.ErrTransient)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// Create makes an empty file, with mode 0600. The error for an existing one matches fs.ErrExist.
func (d *Dir) Create(name string) (*os.File, error) {
	file, err := d.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("image in %q: %w", d.path, err)
	}
	return file, nil
}

// Names returns the sorted names of all entries of the directory.
func (d *Dir) Names() ([]string, error) {
	dir, err := d.root.Open(".")
	if err != nil {
		return nil, fmt.Errorf("directory of images: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("directory of images %q: %w", d.path, err)
	}
	slices.Sort(names)
	return names, nil
}

// Is reports whether name still refers to this file.
func (d *Dir) Is(name string, file *os.File) (bool, error) {
	there, err := d.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	info, err := file.Stat()
	return err == nil && os.SameFile(there, info), err
}

// Remove removes name if it still refers to this file, and syncs the directory: the removal survives a power cut.
func (d *Dir) Remove(name string, file *os.File) error {
	same, err := d.Is(name, file)
	if err != nil || !same {
		return err
	}
	if err := d.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("image in %q: %w", d.path, err)
	}
	return d.Sync()
}

// NextSuffix is the suffix of the file that [Dir.Replace] writes. A killed process may leave that file.
const NextSuffix = ".new"

// Replace replaces the content of a small file atomically: readers, and the next start after a power cut, see the old
// content or the new one. Two calls for one name must not run at once. name+[NextSuffix] must not be the name of
// another file.
func (d *Dir) Replace(name string, content []byte) error {
	next := name + NextSuffix
	file, err := d.root.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("file in %q: %w", d.path, err)
	}
	_, err = file.Write(content)
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = d.root.Rename(next, name)
	}
	if err != nil {
		return fmt.Errorf("file %q: %w", d.pathOf(name), errors.Join(err, d.root.Remove(next)))
	}
	return d.Sync()
}

// Sync syncs the directory. After it, files made, renamed or removed in it survive a power cut.
func (d *Dir) Sync() error {
	dir, err := d.root.Open(".")
	if err != nil {
		return fmt.Errorf("directory of images: %w", err)
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil {
		return fmt.Errorf("directory of images %q: %w", d.path, err)
	}
	return nil
}

// Sync syncs the file, device or directory at path.
func Sync(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	return file.Sync()
}
