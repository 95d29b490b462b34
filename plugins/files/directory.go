package files

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/safepath"
	"github.com/volumekit/volumekit/volume/atomicwriter"
	"github.com/volumekit/volumekit/volume/ownership"
)

// Directories makes, fills and removes the directories of volumes. Paths are absolute and clean. fake.Mounter has such in
// memory.
type Directories interface {
	// MakeDirectory makes the directory base/name of that mode, whatever the umask of the process, and base where it is missing. One
	// that is there is given the mode where it lacks a part of it. It reports whether it was not there. No link in base/name is
	// followed.
	MakeDirectory(ctx context.Context, base, name string, mode fs.FileMode) (made bool, err error)
	// Publish makes the files of payload all that dir holds, in one step, as volume/atomicwriter does. Where group is not nil,
	// all of it belongs to that group, which may read it, before anybody sees it.
	Publish(ctx context.Context, dir string, payload map[string]atomicwriter.FileProjection, group *int64) error
	// RemoveAll removes the directory base/name with all that is in it; it succeeds when nothing is there. No link is followed
	// and no mount is entered: where one is shown inside, nothing is removed, and the error matches safepath.ErrMounted.
	RemoveAll(ctx context.Context, base, name string) error
}

// nodeDirectories are those of the node that the program runs on.
type nodeDirectories struct{ mount mount.Interface }

var _ Directories = nodeDirectories{}

func (d nodeDirectories) MakeDirectory(ctx context.Context, base, name string, mode fs.FileMode) (made bool, err error) {
	if err := os.MkdirAll(base, 0o750); err != nil {
		return false, err
	}
	parent, err := safepath.Open(ctx, base, safepath.Options{Mounter: d.mount})
	if err != nil {
		return false, err
	}
	defer func() { _ = parent.Close() }() // nothing was written to it
	return parent.MakeDirectory(ctx, name, mode)
}

func (nodeDirectories) Publish(ctx context.Context, dir string, payload map[string]atomicwriter.FileProjection, group *int64) error {
	options := ownership.Options{Group: group, ReadOnly: true}
	writer, err := atomicwriter.New(dir, atomicwriter.Options{SetPerms: func(ctx context.Context, set *os.File) error {
		_, err := ownership.Apply(ctx, set.Name(), options)
		return err
	}})
	if err != nil {
		return err
	}
	if _, err := writer.Write(ctx, payload); err != nil {
		return err
	}
	_, err = ownership.Apply(ctx, dir, options) // the directory itself, and the links
	return err
}

func (d nodeDirectories) RemoveAll(ctx context.Context, base, name string) error {
	return safepath.RemoveTree(ctx, filepath.Join(base, name), safepath.Options{Mounter: d.mount})
}
