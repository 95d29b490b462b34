package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Root is the root directory of a run.
type Root struct {
	// Path is absolute and without symbolic links.
	Path string
	made bool // this run made it
}

// MakeRoot makes the root directory dir, which must be missing or empty. If dir is "", it makes a temporary one. It
// makes the directory first in it, to check that it is writable.
func MakeRoot(dir, first string) (Root, error) {
	if dir == "" {
		path, err := os.MkdirTemp("", "volumekit-quickstart-")
		if err != nil {
			return Root{}, fmt.Errorf("make a root directory: %w: name another place with -root DIR", err)
		}
		return resolve(Root{Path: path, made: true})
	}
	err := os.Mkdir(dir, 0o750)
	if err == nil {
		return resolve(Root{Path: dir, made: true})
	}
	if !errors.Is(err, os.ErrExist) {
		return Root{}, fmt.Errorf("-root: %w: name a new directory in one that exists and can be written", err)
	}
	entries, err := os.ReadDir(dir)
	switch {
	case err != nil:
		return Root{}, fmt.Errorf("-root: %w: name a directory", err)
	case len(entries) > 0:
		return Root{}, fmt.Errorf("-root %s is not empty: name a new or empty directory", dir)
	}
	if err := os.Mkdir(filepath.Join(dir, first), 0o750); err != nil {
		return Root{}, fmt.Errorf("-root: %w: name a directory that can be written", err)
	}
	return resolve(Root{Path: dir})
}

// resolve returns the path as the kernel shows it in its mount table.
func resolve(root Root) (Root, error) {
	path, err := filepath.Abs(root.Path)
	if err != nil {
		return root, fmt.Errorf("root directory: %w", err)
	}
	path, err = filepath.EvalSymlinks(path)
	if err != nil {
		return root, fmt.Errorf("root directory: %w", err)
	}
	root.Path = path
	return root, nil
}

// Dir returns the path of a directory below the root.
func (r Root) Dir(name string) string { return filepath.Join(r.Path, name) }

// Remove removes the empty directories below the root, and the root itself if this run made it.
func (r Root) Remove() error {
	if err := removeEmptyDirs(r.Path); err != nil {
		return err
	}
	if !r.made {
		return nil
	}
	return removeDir(r.Path)
}
