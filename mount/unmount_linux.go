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
	// maxStack bounds the mounts at one path, so that a race with a process that keeps mounting there ends.
	maxStack = 4096
	// busyInterval is how often a busy mount is tried again while there is time before the force.
	busyInterval = 20 * time.Millisecond
	// maxAfterForce bounds the plain unmounts after the force, while those who were thrown out leave.
	maxAfterForce = 15
)

// unmount is Unmount.
func (m *Mounter) unmount(ctx context.Context, name string, options UnmountOptions) error {
	if err := m.helpers.clearStage(ctx, name); err != nil {
		return fmt.Errorf("unmounting %q: what a helper has left: %w", name, err)
	}
	p, err := m.reader.openPlace(ctx, name)
	if err != nil {
		return m.unreachable(ctx, name, err)
	}
	defer p.close()
	taken, err := p.takeAllOff(ctx, options)
	if err != nil {
		if len(taken) > 0 {
			err = fmt.Errorf("%w: %d mounts were taken off: %w", ErrUncertain, len(taken), err)
		}
		return fmt.Errorf("unmounting %q: %w", name, err)
	}
	if len(taken) == 0 { // as the look at the place has told
		return fmt.Errorf("unmounting %q: %w", name, ErrNotMounted)
	}
	if err := m.verifyGone(ctx, name, taken); err != nil {
		return fmt.Errorf("unmounting %q: %w", name, err)
	}
	return nil
}

// verifyGone asks the kernel once more, after a look at the place has found nothing there: what umount2 returned is not
// the truth. By their unique ids it asks for the very mounts that were taken off; where there are none it reads the table.
func (m *Mounter) verifyGone(ctx context.Context, name string, taken []seen) error {
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

// verifyIDs returns an error that matches ErrUnsupported when the ids cannot tell.
func (m *Mounter) verifyIDs(taken []seen) error {
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

// unreachable is the error of an unmount of a path whose parent could not be opened because of err.
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

// seen is what a look at a place has found.
type seen struct {
	mounted bool
	id      uint64 // unique; 0 where the kernel does not tell
}

// look asks what is mounted at the place, in one call where the kernel can.
func (p *place) look(ctx context.Context) (seen, error) {
	if p.reader.without.has(FeatureStatxMountRoot) {
		mounted, err := p.mounted(ctx)
		return seen{mounted: mounted}, err
	}
	if err := abandonable.Begin(ctx, "statx"); err != nil {
		return seen{}, err
	}
	g, err := glanceAt(p.parent, p.base)
	if err != nil {
		mounted, err := p.mounted(ctx)
		return seen{mounted: mounted}, err
	}
	return seen{mounted: g.isRoot, id: p.reader.blind(g).uniqueID}, nil
}

// takeAllOff takes off one mount after the other until there is none, and returns those that were taken.
func (p *place) takeAllOff(ctx context.Context, options UnmountOptions) (taken []seen, err error) {
	for len(taken) < maxStack {
		top, err := p.lookFor(ctx, options.Expect)
		if err != nil && (top.mounted || !isAbsent(err)) {
			return taken, err
		}
		if !top.mounted {
			return taken, nil
		}
		t := takedown{place: p, options: options, top: top}
		if err := t.takeOff(ctx); err != nil {
			return taken, err
		}
		taken = append(taken, top)
	}
	return taken, fmt.Errorf("another process keeps mounting there: %w", unix.EBUSY)
}

// takedown is the end of one mount: the uppermost at its place when that was looked at.
type takedown struct {
	*place
	options UnmountOptions
	top     seen
}

// takeOff takes the mount off: plainly, then by force, then lazily, as far as the options allow.
func (t *takedown) takeOff(ctx context.Context) error {
	var err error
	if t.options.Force > 0 {
		err = t.umountByForce(ctx)
	} else {
		err = t.plain(ctx)
	}
	if err == nil || ctx.Err() != nil {
		return err
	}
	there, lookErr := t.isThere(ctx)
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

// isThere reports whether the mount is still the uppermost at its place, before something is done to whatever is. An error
// says that it is there, but covered by another mount.
func (t *takedown) isThere(ctx context.Context) (bool, error) {
	now, err := t.lookFor(ctx, t.options.Expect)
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

// plain is one plain unmount: of what is uppermost, or, if the caller has said what it must be, of that only.
func (t *takedown) plain(ctx context.Context) error {
	if t.options.Expect == (Identity{}) {
		return t.umount(ctx, 0)
	}
	return t.umountMeant(ctx)
}

func (p *place) umount(ctx context.Context, flags int) error {
	if err := abandonable.Begin(ctx, "umount2"); err != nil {
		return err
	}
	return p.umount2(flags)
}

func (p *place) umount2(flags int) error {
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

// umountByForce tries a plain unmount for as long as the options say, whether it is refused as busy or does not return;
// then it aborts the mount, so that its callers fail and leave, and tries plainly again. It returns after every call that
// it has begun has returned.
func (t *takedown) umountByForce(ctx context.Context) error {
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

// force aborts the mount, unless the caller has gone. Pending is the result of a plain unmount that has not returned, or
// nil: such a call may have taken the mount out of the tree already and wait for its server, and what is at the place then
// is another mount, which is left alone.
func (t *takedown) force(ctx context.Context, pending <-chan error) error {
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

// abort makes all callers of the mount fail, when the mount is still the uppermost at its place.
func (t *takedown) abort(ctx context.Context) error {
	there, err := t.isThere(ctx)
	if err != nil || !there {
		return err
	}
	if err := abandonable.Begin(ctx, "umount2(MNT_FORCE)"); err != nil {
		return err
	}
	return t.umount2(unix.MNT_FORCE)
}
