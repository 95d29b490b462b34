package files

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/owned"
	"github.com/volumekit/volumekit/mount/safepath"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volume/atomicwriter"
	"github.com/volumekit/volumekit/volume/ownership"
)

// Directories makes, fills and removes the directories of volumes. Paths are absolute and clean. fake.Mounter implements it in
// memory.
type Directories interface {
	// MakeDirectory makes the directory base/name, and base if it is missing, with exactly that mode: the umask does not count. If
	// the directory exists, MakeDirectory adds the missing bits of the mode. It reports whether the directory was missing before.
	// It follows no link in base/name.
	MakeDirectory(ctx context.Context, base, name string, mode fs.FileMode) (made bool, err error)
	// Publish replaces the content of dir by the files of payload in one step, like volume/atomicwriter. If group is not nil, the
	// files belong to that group and it can read them, before a workload sees them.
	Publish(ctx context.Context, dir string, payload map[string]atomicwriter.FileProjection, group *int64) error
	// RemoveAll removes the directory base/name with all its content. A missing directory is no error. It follows no link and enters
	// no mount: if the mount table shows one inside, it removes nothing, and the error matches safepath.ErrMounted.
	RemoveAll(ctx context.Context, base, name string) error
}

// MeasuredDirectories is an optional interface of [Directories]. Without it the plugin measures the path on this machine, which is
// wrong for directories in memory.
type MeasuredDirectories interface {
	// Metrics returns the metrics provider of the volume at path. It does no I/O.
	Metrics(path string) volume.MetricsProvider
}

// ownedDirectories are [Directories] on a real filesystem: they prove which directories they have made.
type ownedDirectories interface {
	// MakeOwned is MakeDirectory, and records the directory. It refuses an existing directory that is not empty, unless the proof
	// shows that MakeOwned made it.
	MakeOwned(ctx context.Context, dir owned.Directory, mode fs.FileMode) (made bool, err error)
	// RemoveOwned is RemoveAll for a directory that is proven to be MakeOwned's; see [owned.Directory.Remove].
	RemoveOwned(ctx context.Context, dir owned.Directory) error
	// Prove returns an error unless RemoveOwned may be called; see [owned.Directory.Prove].
	Prove(ctx context.Context, dir owned.Directory) error
}

var _ ownedDirectories = nodeDirectories{}

// nodeDirectories are directories on the filesystems of this node.
type nodeDirectories struct{ mount mount.Interface }

var _ Directories = nodeDirectories{}

func (d nodeDirectories) MakeDirectory(ctx context.Context, base, name string, mode fs.FileMode) (made bool, err error) {
	parent, err := safepath.OpenOrMake(ctx, base, safepath.MkdirOptions{Mode: 0o750}, safepath.Options{Mounter: d.mount})
	if err != nil {
		return false, err
	}
	defer func() { _ = parent.Close() }() // nothing was written to it
	return parent.MakeDirectory(ctx, name, mode)
}

// MakeOwned implements ownedDirectories.
func (d nodeDirectories) MakeOwned(ctx context.Context, dir owned.Directory, mode fs.FileMode) (made bool, err error) {
	paths := safepath.Options{Mounter: d.mount}
	if err := dir.Prove(ctx, paths); err != nil && (!errors.Is(err, fs.ErrNotExist) || errors.Is(err, owned.ErrUnproven)) {
		return false, err
	}
	if made, err = d.MakeDirectory(ctx, filepath.Dir(dir.Path), filepath.Base(dir.Path), mode); err != nil {
		return made, err
	}
	if made {
		return made, d.record(ctx, dir)
	}
	if recorded, err := dir.IsRecorded(ctx, paths); err != nil || recorded {
		return false, err
	}
	return false, d.record(ctx, dir) // It is empty: a kill came before the record.
}

func (d nodeDirectories) record(ctx context.Context, dir owned.Directory) error {
	paths := safepath.Options{Mounter: d.mount}
	root, err := safepath.Open(ctx, dir.Path, paths)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // nothing was written to it
	file, err := root.Directory(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // likewise
	return dir.Record(ctx, file, paths)
}

// RemoveOwned implements ownedDirectories.
func (d nodeDirectories) RemoveOwned(ctx context.Context, dir owned.Directory) error {
	return dir.Remove(ctx, d.mount)
}

// Prove implements ownedDirectories.
func (d nodeDirectories) Prove(ctx context.Context, dir owned.Directory) error {
	return dir.Prove(ctx, safepath.Options{Mounter: d.mount})
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
