package csiserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/volumekit/volumekit/mount"
)

// binding is a mount at a path of the caller that shows what the plugin has mounted elsewhere, as it is on record.
type binding struct {
	Target   string
	ReadOnly bool
	// Source is what is bound at Target; empty as long as it is not known.
	Source string `json:",omitempty"`
	// Done says that it is bound, by Mount.
	Done  bool
	Mount mount.Identity
}

// binder makes bindings and takes them off.
type binder struct{ mounter mount.Interface }

// checkUnmounted refuses a target path at which there is a mount that is not on record.
func (b *binder) checkUnmounted(ctx context.Context, target string) error {
	there, err := b.mounter.Lookup(ctx, target)
	switch {
	case errors.Is(err, mount.ErrNotMounted):
		return nil
	case err != nil:
		return err
	}
	return foreign(target, there)
}

func foreign(target string, there mount.MountPoint) error {
	return fmt.Errorf("%s %q is mounted at %q, and not by this driver: unmount it if you know whose it is: %w",
		there.FSType, there.Source, target, mount.ErrForeign)
}

// bind binds the source at the target, unless it is bound there already.
func (b *binder) bind(ctx context.Context, what binding) (mount.MountPoint, error) {
	there, bound, err := b.bound(ctx, what)
	switch {
	case err != nil:
		return there, err
	case bound && slices.Contains(there.Options, "ro") != what.ReadOnly: // of the mount, whatever its filesystem is
		return there, foreign(what.Target, there)
	case bound:
		return there, nil
	}
	options := []string{"bind"}
	if what.ReadOnly {
		options = append(options, "ro")
	}
	if err := b.mounter.Mount(ctx, mount.Request{Source: what.Source, Target: what.Target, Options: options}); err != nil {
		return there, err
	}
	return b.mounter.Lookup(ctx, what.Target)
}

// unbind takes the binding off, and removes its empty directory.
func (b *binder) unbind(ctx context.Context, what binding) error {
	there, bound, err := b.bound(ctx, what)
	if err != nil {
		return err
	}
	options := mount.UnmountOptions{}
	if bound {
		options.Expect = there.Identity()
	}
	return mount.UnmountPath(ctx, b.mounter, what.Target, options)
}

// bound reports whether the source is bound at the target. Another mount there is an error that matches [mount.ErrForeign]: there
// was none when the binding was put on record.
func (b *binder) bound(ctx context.Context, what binding) (mount.MountPoint, bool, error) {
	there, err := b.mounter.Lookup(ctx, what.Target)
	if errors.Is(err, mount.ErrNotMounted) {
		return there, false, nil
	}
	if err != nil {
		return there, false, err
	}
	ours, err := b.isOurs(ctx, what, there)
	if err == nil && !ours {
		err = foreign(what.Target, there)
	}
	return there, err == nil, err
}

// isOurs reports whether a mount at the target is the one on record, or, where the server was killed or could not record the mount,
// one of the source. Both show one file, or one directory of one filesystem. A source that is a mount is not read, since its server
// may hang.
func (b *binder) isOurs(ctx context.Context, what binding, there mount.MountPoint) (bool, error) {
	if what.Done {
		return what.Mount.Is(there), nil
	}
	if what.Source == "" {
		return false, nil // nothing was bound
	}
	source, err := b.mounter.Lookup(ctx, what.Source)
	if errors.Is(err, mount.ErrNotMounted) {
		return mount.RunAbandonable(ctx, "stat", what.Target, func() (bool, error) { return sameFile(what.Source, what.Target) })
	}
	return err == nil && source.Major == there.Major && source.Minor == there.Minor && source.Root == there.Root, err
}

func sameFile(a, b string) (bool, error) {
	first, err := os.Stat(a)
	if err != nil {
		return false, err
	}
	second, err := os.Stat(b)
	return err == nil && os.SameFile(first, second), err
}
