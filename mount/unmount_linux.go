package mount

import (
	"context"
	"errors"
	"fmt"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/abandonable"
)

const (
	// maxStack limits the mounts that one call unmounts at one path: another process may keep mounting there.
	maxStack = 4096
	// busyInterval is the time between two attempts to unmount a busy mount.
	busyInterval = 20 * time.Millisecond
	// maxAfterForce limits the plain unmounts after MNT_FORCE, while the aborted callers leave the mount.
	maxAfterForce = 15
)

// unmount is Unmount.
func (m *Mounter) unmount(ctx context.Context, name string, options UnmountOptions) error {
	if err := m.helpers.clearStage(ctx, name); err != nil {
		return fmt.Errorf("unmounting %q: what a helper has left: %w", name, err)
	}
	p, err := m.reader.openParent(ctx, name)
	if err != nil {
		return m.unreachable(ctx, name, err)
	}
	defer p.close()
	taken, err := p.unmountAll(ctx, options)
	if err != nil {
		if len(taken) > 0 {
			err = fmt.Errorf("%w: %d mounts were taken off: %w", ErrUncertain, len(taken), err)
		}
		return fmt.Errorf("unmounting %q: %w", name, err)
	}
	if len(taken) == 0 {
		return fmt.Errorf("unmounting %q: %w", name, ErrNotMounted)
	}
	if err := m.verifyGone(ctx, name, taken); err != nil {
		return fmt.Errorf("unmounting %q: %w", name, err)
	}
	return nil
}

// verifyGone checks that the unmounted mounts are gone: the result of umount2 is no proof. It queries them by their unique ids.
// On a kernel without unique ids it reads the table.
func (m *Mounter) verifyGone(ctx context.Context, name string, taken []topMount) error {
	err := m.verifyIDs(taken)
	if !errors.Is(err, ErrUnsupported) {
		return err
	}
	still, err := m.reader.isInTable(ctx, name)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrUncertain, err)
	case still:
		return fmt.Errorf("the mount table still has it: %w: %w", ErrUncertain, unix.EBUSY)
	}
	return nil
}

// verifyIDs is verifyGone by unique ids. The error matches ErrUnsupported if the kernel has none.
func (m *Mounter) verifyIDs(taken []topMount) error {
	for _, mount := range taken {
		if mount.id == 0 {
			return ErrUnsupported
		}
		switch still, err := m.reader.existsID(mount.id); {
		case err != nil:
			return err
		case still:
			return fmt.Errorf("mount %d is still there: %w: %w", mount.id, ErrUncertain, unix.EBUSY)
		}
	}
	return nil
}

// unreachable returns the error of an unmount if the parent of name could not be opened because of err.
func (m *Mounter) unreachable(ctx context.Context, name string, err error) error {
	if isAbsent(err) && m.reader.isDirMissing(ctx, path.Dir(name)) {
		return fmt.Errorf("unmounting %q: %w: %w", name, ErrNotMounted, err)
	}
	mounted, tableErr := m.reader.isInTable(ctx, name)
	if tableErr != nil {
		return fmt.Errorf("unmounting %q: %w", name, errors.Join(err, tableErr))
	}
	if !mounted && isAbsent(err) {
		return fmt.Errorf("unmounting %q: %w: %w", name, ErrNotMounted, err)
	}
	return fmt.Errorf("unmounting %q: %w", name, err)
}

// topMount is the uppermost mount at a path, if there is one.
type topMount struct {
	mounted bool
	id      uint64 // unique; 0 if the kernel has no unique ids
}

// findTop returns the uppermost mount, by one system call if the kernel can.
func (p *entry) findTop(ctx context.Context) (topMount, error) {
	if p.reader.without.has(FeatureStatxMountRoot) {
		mounted, err := p.mounted(ctx)
		return topMount{mounted: mounted}, err
	}
	if err := abandonable.Begin(ctx, "statx"); err != nil {
		return topMount{}, err
	}
	g, err := statPath(p.parent, p.base)
	if err != nil {
		mounted, err := p.mounted(ctx)
		return topMount{mounted: mounted}, err
	}
	return topMount{mounted: g.isRoot, id: p.reader.onlyKnown(g).uniqueID}, nil
}

// unmountAll unmounts one mount after the other until there is none, and returns those that it has unmounted.
func (p *entry) unmountAll(ctx context.Context, options UnmountOptions) (taken []topMount, err error) {
	for len(taken) < maxStack {
		top, err := p.findExpected(ctx, options.Expect)
		if err != nil && (top.mounted || !isAbsent(err)) {
			return taken, err
		}
		if !top.mounted {
			return taken, nil
		}
		t := topUnmount{entry: p, options: options, top: top}
		if err := t.run(ctx); err != nil {
			return taken, err
		}
		taken = append(taken, top)
	}
	return taken, fmt.Errorf("another process keeps mounting there: %w", unix.EBUSY)
}

// topUnmount unmounts one mount: the uppermost that findExpected has found.
type topUnmount struct {
	*entry
	options UnmountOptions
	top     topMount
}

// run unmounts the mount: plainly, then by force, then lazily, as far as the options allow.
func (t *topUnmount) run(ctx context.Context) error {
	var err error
	if t.options.Force > 0 {
		err = t.umountByForce(ctx)
	} else {
		err = t.plain(ctx)
	}
	if err == nil || ctx.Err() != nil {
		return err
	}
	there, lookErr := t.isMounted(ctx)
	switch {
	case lookErr == nil && !there:
		return nil // the call failed, or another process was faster, and yet it is gone
	case !t.options.Lazy || !errors.Is(err, unix.EBUSY):
		return err
	case lookErr != nil:
		return errors.Join(err, lookErr)
	}
	return t.umount(ctx, unix.MNT_DETACH)
}

// isMounted reports whether the mount is still the uppermost at its path. The error is errCovered if another mount covers it.
func (t *topUnmount) isMounted(ctx context.Context) (bool, error) {
	now, err := t.findExpected(ctx, t.options.Expect)
	if err != nil || !now.mounted {
		return false, err
	}
	if t.top.id == 0 || t.top.id == now.id {
		return true, nil
	}
	if still, err := t.reader.existsID(t.top.id); err == nil && !still {
		return false, nil
	}
	return false, fmt.Errorf("%w: %w", errCovered, unix.EBUSY)
}

// plain is one plain unmount: of the expected mount, or of the uppermost one if the caller expects none in particular.
func (t *topUnmount) plain(ctx context.Context) error {
	if t.options.Expect == (Identity{}) {
		return t.umount(ctx, 0)
	}
	return t.umountExpected(ctx)
}

func (p *entry) umount(ctx context.Context, flags int) error {
	if err := abandonable.Begin(ctx, "umount2"); err != nil {
		return err
	}
	return p.umount2(flags)
}

func (p *entry) umount2(flags int) error {
	err := unix.Unmount(p.name(), flags|unix.UMOUNT_NOFOLLOW)
	switch {
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("umount2: not mounted, or mounted from outside of this user namespace: %w", err)
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("umount2: still in use (open file, working directory or a mount below): %w", err)
	case err != nil:
		return fmt.Errorf("umount2: %w", err)
	}
	return nil
}

// umountByForce tries plain unmounts for UnmountOptions.Force, whether they fail as busy or do not return. Then it aborts the
// mount, which makes its callers fail and leave, and tries plain unmounts again. It returns after each call that it has begun
// has returned.
func (t *topUnmount) umountByForce(ctx context.Context) error {
	timer := time.NewTimer(t.options.Force)
	defer timer.Stop()
	for {
		if err := abandonable.Begin(ctx, "umount2"); err != nil {
			return err
		}
		result := make(chan error, 1)
		go func() { result <- t.plain(ctx) }()
		select {
		case err := <-result:
			if !errors.Is(err, unix.EBUSY) {
				return err
			}
		case <-timer.C:
			return t.force(ctx, result)
		}
		select {
		case <-time.After(busyInterval):
		case <-timer.C:
			return t.force(ctx, nil)
		case <-ctx.Done():
		}
	}
}

// force aborts the mount, unless the context of the call has ended. pending is the result of a plain unmount that has not
// returned, or nil. Such a call may have removed the mount from the tree already and wait for its server. Then another mount is
// at the path, and force does not touch it.
func (t *topUnmount) force(ctx context.Context, pending <-chan error) error {
	err := t.abort(ctx)
	if pending != nil {
		abandonable.Note(ctx, "umount2")
		if plainErr := <-pending; plainErr == nil {
			return nil
		}
	}
	for range maxAfterForce {
		if !errors.Is(err, unix.EBUSY) {
			return err
		}
		select {
		case <-time.After(busyInterval):
		case <-ctx.Done():
			return err
		}
		err = t.plain(ctx)
	}
	return err
}

// abort makes all callers of the mount fail, if the mount is still the uppermost at its path.
func (t *topUnmount) abort(ctx context.Context) error {
	there, err := t.isMounted(ctx)
	if err != nil || !there {
		return err
	}
	if err := abandonable.Begin(ctx, "umount2(MNT_FORCE)"); err != nil {
		return err
	}
	return t.umount2(unix.MNT_FORCE)
}
