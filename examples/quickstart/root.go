package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// rootDir is the directory under which everything of a run is made.
type rootDir struct {
	path string // absolute, without symbolic links
	made bool   // it was not there before
}

// makeRoot makes the root directory of o: a fresh one, or the one that -root names.
func makeRoot(o options) (rootDir, error) {
	if o.root == "" {
		path, err := os.MkdirTemp("", "volumekit-quickstart-")
		if err != nil {
			return rootDir{}, fmt.Errorf("make a root directory: %w: name another place with -root DIR", err)
		}
		return resolve(rootDir{path: path, made: true})
	}
	err := os.Mkdir(o.root, 0o750)
	if err == nil {
		return resolve(rootDir{path: o.root, made: true})
	}
	if !errors.Is(err, os.ErrExist) {
		return rootDir{}, badInput(fmt.Errorf("-root: %w: name a new directory in one that exists and can be written", err))
	}
	entries, err := os.ReadDir(o.root)
	switch {
	case err != nil:
		return rootDir{}, badInput(fmt.Errorf("-root: %w: name a directory", err))
	case len(entries) > 0:
		return rootDir{}, badInput(fmt.Errorf("-root %s is not empty: name a new or empty directory", o.root))
	}
	if err := os.Mkdir(filepath.Join(o.root, containersDir), 0o750); err != nil {
		return rootDir{}, badInput(fmt.Errorf("-root: %w: name a directory that can be written", err))
	}
	return resolve(rootDir{path: o.root})
}

// resolve makes the path one that the kernel shows in its mount table.
func resolve(root rootDir) (rootDir, error) {
	path, err := filepath.Abs(root.path)
	if err != nil {
		return root, fmt.Errorf("root directory: %w", err)
	}
	path, err = filepath.EvalSymlinks(path)
	if err != nil {
		return root, fmt.Errorf("root directory: %w", err)
	}
	root.path = path
	return root, nil
}

// dir returns the path of a directory below the root.
func (r rootDir) dir(name string) string { return filepath.Join(r.path, name) }

// remove removes the empty directories below the root, and the root itself if this run made it.
func (r rootDir) remove() error {
	if err := removeEmptyDirs(r.path); err != nil {
		return err
	}
	if !r.made {
		return nil
	}
	return removeDir(r.path)
}
