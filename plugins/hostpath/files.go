package hostpath

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/safepath"
)

// Files is the filesystem of the node, as far as the plugin touches it. Paths are absolute and clean. fake.Mounter is one in
// memory.
type Files interface {
	Paths
	Trees
}

// Paths looks at what lies at a path, and makes what is missing. Links are followed.
type Paths interface {
	// ResolveApart does what safepath.ResolveApart does.
	ResolveApart(path string, apart ...string) (string, error)
	// Stat does what os.Stat does.
	Stat(path string) (fs.FileInfo, error)
	// MkdirAll does what os.MkdirAll does.
	MkdirAll(path string, perm fs.FileMode) error
	// CreateNew makes an empty file. What is there, a link too, is an error that matches fs.ErrExist, and is never opened.
	CreateNew(path string, perm fs.FileMode) error
}

// Trees makes and removes what lies beneath a base directory, by its name relative to that. No link beneath the base is
// followed and no mount is entered: where the mount table shows one in what is to be removed, or on the way to it, nothing
// is removed, and the error matches safepath.ErrMounted. A base that is not there is an error that matches fs.ErrNotExist.
type Trees interface {
	// MakeDirectory makes a directory of that mode, whatever the umask of the process. One that is there is given the mode
	// where it lacks a part of it. It reports whether it was not there.
	MakeDirectory(ctx context.Context, base, name string, mode fs.FileMode) (made bool, err error)
	// RemoveAll removes what is there with all that is in it; it succeeds when nothing is there.
	RemoveAll(ctx context.Context, base, name string) error
	// RemoveContent removes all that is in a directory, which must be there.
	RemoveContent(ctx context.Context, base, name string) error
}

// nodeFiles is the filesystem of the node that the program runs on.
type nodeFiles struct{ mount mount.Interface }

var _ Files = nodeFiles{}

func (nodeFiles) ResolveApart(path string, apart ...string) (string, error) {
	return safepath.ResolveApart(path, apart...)
}

func (nodeFiles) Stat(path string) (fs.FileInfo, error) { return os.Stat(path) }

func (nodeFiles) MkdirAll(path string, perm fs.FileMode) error { return os.MkdirAll(path, perm) }

// CreateNew opens with O_EXCL, which never opens what is there, such as a named pipe, which would block.
func (nodeFiles) CreateNew(path string, perm fs.FileMode) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, perm)
	if err != nil {
		return err
	}
	return file.Close()
}

// open opens a base directory. The caller closes it.
func (f nodeFiles) open(ctx context.Context, base string) (*safepath.Root, error) {
	return safepath.Open(ctx, base, safepath.Options{Mounter: f.mount})
}

func (f nodeFiles) MakeDirectory(ctx context.Context, base, name string, mode fs.FileMode) (made bool, err error) {
	root, err := f.open(ctx, base)
	if err != nil {
		return false, err
	}
	defer func() { _ = root.Close() }() // nothing was written to it
	return root.MakeDirectory(ctx, name, mode)
}

func (f nodeFiles) RemoveAll(ctx context.Context, base, name string) error {
	root, err := f.open(ctx, base)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // likewise
	return root.RemoveAll(ctx, name)
}

func (f nodeFiles) RemoveContent(ctx context.Context, base, name string) error {
	root, err := f.open(ctx, base)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // likewise
	if err := f.checkNoMount(ctx, root.Path(), name); err != nil {
		return err
	}
	dir, err := root.Sub(ctx, name)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // likewise
	return dir.RemoveContent(ctx)
}

// checkNoMount refuses a name at which, in which, or on the way to which something is mounted: it may be a tree that is not
// the volume's.
func (f nodeFiles) checkNoMount(ctx context.Context, base, name string) error {
	table, err := f.mount.List(ctx)
	if err != nil {
		return err
	}
	dir := filepath.Join(base, name)
	for _, m := range table {
		inBase := m.Path != base && safepath.Contains(base, m.Path)
		if inBase && (safepath.Contains(m.Path, dir) || safepath.Contains(dir, m.Path)) {
			return fmt.Errorf("%s is a mount of %s (%s): %w", m.Path, m.Source, m.FSType, safepath.ErrMounted)
		}
	}
	return nil
}
