package hostpath

import (
	"context"
	"errors"
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

// Paths looks at what lies at a path, links followed, and makes what is missing.
type Paths interface {
	// ResolveApart does what safepath.ResolveApart does.
	ResolveApart(path string, apart ...string) (string, error)
	// Stat does what os.Stat does.
	Stat(path string) (fs.FileInfo, error)
	// MkdirApart makes the directory at path, and those above it that are missing, of that mode whatever the umask. The links
	// in what exists of path are followed, but nothing is made in one of the absolute paths in apart: the error then matches
	// safepath.ErrOverlap. What is missing is made beneath the directory that was compared with them, and through no link.
	MkdirApart(ctx context.Context, path string, mode fs.FileMode, apart ...string) error
	// CreateApart makes an empty file of that mode in a directory that exists, likewise. What is there, a link too, is an error
	// that matches fs.ErrExist, and is never opened.
	CreateApart(ctx context.Context, path string, mode fs.FileMode, apart ...string) error
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

func (f nodeFiles) MkdirApart(ctx context.Context, path string, mode fs.FileMode, apart ...string) error {
	root, missing, err := f.openLowest(ctx, path)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // nothing was written to it
	if err := root.CheckOutside(ctx, apart...); err != nil || missing == "" {
		return err
	}
	return root.MkdirAll(ctx, missing, safepath.MkdirOptions{Mode: mode})
}

// openLowest opens the lowest directory at or above path that exists, and returns the rest of path.
func (f nodeFiles) openLowest(ctx context.Context, path string) (root *safepath.Root, missing string, err error) {
	for {
		root, err = f.follow(ctx, path)
		if !errors.Is(err, fs.ErrNotExist) || path == filepath.Dir(path) {
			return root, missing, err
		}
		path, missing = filepath.Dir(path), filepath.Join(filepath.Base(path), missing)
	}
}

// follow opens a directory, links followed. The caller closes it.
func (f nodeFiles) follow(ctx context.Context, path string) (*safepath.Root, error) {
	return safepath.Open(ctx, path, safepath.Options{Mounter: f.mount, FollowLinks: true})
}

// CreateApart creates with O_EXCL, which never opens what is there, such as a named pipe, which would block.
func (f nodeFiles) CreateApart(ctx context.Context, path string, mode fs.FileMode, apart ...string) error {
	root, err := f.follow(ctx, filepath.Dir(path))
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // nothing was written to it
	if err := root.CheckOutside(ctx, apart...); err != nil {
		return err
	}
	return root.Create(ctx, filepath.Base(path), mode)
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
	defer func() { _ = root.Close() }()    // likewise
	dir, err := root.SubOnMount(ctx, name) // a mount on the way may be a tree that is not the volume's
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // likewise
	return dir.RemoveContent(ctx)
}
