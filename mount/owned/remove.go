package owned

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"syscall"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/safepath"
)

// Remove removes the directory with its content if the proof shows that it is the one that was made, and then the proof; see
// [safepath.Root.RemoveContent]. It removes a directory without a proof only if it is empty. In every other case it removes nothing, and
// the error matches [ErrUnproven]. A missing directory is no error.
func (d Directory) Remove(ctx context.Context, m mount.Interface) error {
	options := safepath.Options{Mounter: m}
	recorded, err := d.IsRecorded(ctx, options)
	if err != nil {
		return err
	}
	if !recorded {
		return d.removeEmpty(ctx, m)
	}
	if err := d.removeContent(ctx, options); err != nil {
		return err
	}
	if err := m.RemoveTarget(ctx, d.Path); err != nil {
		return err
	}
	return d.Forget(ctx, options)
}

// removeEmpty removes the directory if it is empty. A missing one is no error.
func (d Directory) removeEmpty(ctx context.Context, m mount.Interface) error {
	err := m.RemoveTarget(ctx, d.Path)
	if errors.Is(err, syscall.ENOTEMPTY) {
		return fmt.Errorf("%w, and it is not empty: look whose its content is, and move it away: %w", ErrUnproven, err)
	}
	return err
}

// removeContent deletes the content of the directory through a descriptor.
func (d Directory) removeContent(ctx context.Context, options safepath.Options) error {
	root, err := d.Open(ctx, options)
	if errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ErrUnproven) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // nothing was written to it
	return root.RemoveContent(ctx)
}

// Prove returns nil if the proof shows that the directory is the one that was made. It also returns nil if there is no proof and the
// directory is empty: [Directory.Remove] then only calls rmdir. Otherwise the error matches [ErrUnproven].
func (d Directory) Prove(ctx context.Context, options safepath.Options) error {
	recorded, err := d.IsRecorded(ctx, options)
	if err != nil {
		return err
	}
	if !recorded {
		return checkEmpty(ctx, d.Path, options)
	}
	root, err := d.Open(ctx, options)
	if err != nil {
		return err
	}
	return root.Close()
}

func checkEmpty(ctx context.Context, path string, options safepath.Options) error {
	root, err := safepath.Open(ctx, path, options)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // nothing was written to it
	dir, err := root.Directory(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // likewise
	_, err = dir.Readdirnames(1)
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("%q is not empty: look whose its content is, and move it away: %w", path, ErrUnproven)
}
