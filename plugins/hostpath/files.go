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

// Files is the part of the node's filesystem that the plugin uses. Paths are absolute and clean. fake.Mounter implements it in
// memory.
type Files interface {
	Paths
	Trees
}

// Paths inspects paths, with links followed, and makes missing files and directories.
type Paths interface {
	// ResolveApart does what safepath.ResolveApart does.
	ResolveApart(path string, apart ...string) (string, error)
	// Stat does what os.Stat does.
	Stat(path string) (fs.FileInfo, error)
	// MkdirApart makes the directory at path and its missing parents, with exactly that mode: the umask does not count. It follows
	// the links in the existing part of path. If that leads into one of the absolute paths in apart, MkdirApart makes nothing, and
	// the error matches safepath.ErrOverlap. It makes the missing part beneath the directory that it has compared, through no link.
	MkdirApart(ctx context.Context, path string, mode fs.FileMode, apart ...string) error
	// CreateApart makes an empty file in an existing directory, with the same guarantees. If the path exists, also as a link, the
	// error matches fs.ErrExist. CreateApart never opens an existing file.
	CreateApart(ctx context.Context, path string, mode fs.FileMode, apart ...string) error
}

// Trees makes and removes directories beneath a base directory. Names are relative to the base. No method follows a link beneath the
// base or enters a mount: if the mount table shows a mount in the tree to be removed, or on the way to it, the method removes nothing,
// and the error matches safepath.ErrMounted. If the base is missing, the error matches fs.ErrNotExist.
type Trees interface {
	// MakeDirectory makes a directory with exactly that mode: the umask does not count. If the directory exists, MakeDirectory adds
	// the missing bits of the mode. It reports whether the directory was missing before.
	MakeDirectory(ctx context.Context, base, name string, mode fs.FileMode) (made bool, err error)
	// RemoveAll removes a file, or a directory with all its content. A missing one is no error.
	RemoveAll(ctx context.Context, base, name string) error
	// RemoveContent removes all content of an existing directory.
	RemoveContent(ctx context.Context, base, name string) error
}

// nodeFiles is the filesystem of this node.
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

// follow opens a directory, and follows links. The caller closes it.
func (f nodeFiles) follow(ctx context.Context, path string) (*safepath.Root, error) {
	return safepath.Open(ctx, path, safepath.Options{Mounter: f.mount, FollowLinks: true})
}

// CreateApart creates with O_EXCL, which never opens an existing file. Opening a named pipe would block.
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
	dir, err := root.SubOnMount(ctx, name) // a mount on the way may be a foreign tree
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // likewise
	return dir.RemoveContent(ctx)
}
