package mount

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxStack bounds the mounts at one path, so that a fight with somebody who keeps mounting there ends.
	maxStack = 4096
	// busyInterval is how often a busy mount is tried again while there is time before the force.
	busyInterval = 20 * time.Millisecond
	// maxAfterForce bounds the plain unmounts after the force, while those who were thrown out leave.
	maxAfterForce = 15
)

// unmount is Unmount.
func (m *Mounter) unmount(ctx context.Context, s *steps, name string, options UnmountOptions) error {
	p, err := m.openPlace(ctx, s, name)
	if err != nil {
		return m.unreachable(ctx, name, err)
	}
	defer p.close()
	taken, err := p.takeAllOff(ctx, s, options)
	if err != nil {
		if taken > 0 {
			err = fmt.Errorf("%w: %d mounts were taken off: %w", ErrUncertain, taken, err)
		}
		return fmt.Errorf("unmounting %q: %w", name, err)
	}
	// What the calls returned is not the truth; the table is.
	still, err := m.isInTable(ctx, name)
	switch {
	case err != nil:
		return fmt.Errorf("unmounting %q: %w: %w", name, ErrUncertain, err)
	case still:
		return fmt.Errorf("unmounting %q: the mount table still has it: %w: %w", name, ErrUncertain, unix.EBUSY)
	case taken == 0:
		return fmt.Errorf("unmounting %q: %w", name, ErrNotMounted)
	}
	return nil
}

// unreachable is the error of an unmount of a path whose parent could not be opened because of err.
func (m *Mounter) unreachable(ctx context.Context, name string, err error) error {
	mounted, tableErr := m.isInTable(ctx, name)
	if tableErr != nil {
		return fmt.Errorf("unmounting %q: %w", name, errors.Join(err, tableErr))
	}
	if !mounted && isAbsent(err) {
		return fmt.Errorf("unmounting %q: %w: %w", name, ErrNotMounted, err)
	}
	return fmt.Errorf("unmounting %q: %w", name, err)
}

// takeAllOff takes off one mount after the other until there is none.
func (p *place) takeAllOff(ctx context.Context, s *steps, options UnmountOptions) (taken int, err error) {
	for taken < maxStack {
		mounted, err := p.mounted(ctx, s)
		if err != nil && !isAbsent(err) {
			return taken, err
		}
		if !mounted {
			return taken, nil
		}
		if err := p.takeOff(ctx, s, options); err != nil {
			return taken, err
		}
		taken++
	}
	return taken, fmt.Errorf("somebody keeps mounting there: %w", unix.EBUSY)
}

// takeOff takes off the uppermost mount: plainly, then by force, then lazily, as far as the options allow.
func (p *place) takeOff(ctx context.Context, s *steps, options UnmountOptions) error {
	var err error
	if options.Force > 0 {
		err = p.umountByForce(ctx, s, options.Force)
	} else {
		err = p.umount(ctx, s, 0)
	}
	if err == nil || ctx.Err() != nil {
		return err
	}
	if mounted, lookErr := p.mounted(ctx, s); lookErr == nil && !mounted {
		return nil // the call failed, or somebody else was faster, and yet it is gone
	}
	if options.Lazy && errors.Is(err, unix.EBUSY) {
		return p.umount(ctx, s, unix.MNT_DETACH)
	}
	return err
}

func (p *place) umount(ctx context.Context, s *steps, flags int) error {
	if err := s.begin(ctx, "umount2"); err != nil {
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

// umountByForce tries a plain unmount for as long as wait, whether it is refused as busy or does not return; then it
// aborts the mount, so that its callers fail and leave, and tries plainly again. It returns after every call that it has
// begun has returned.
func (p *place) umountByForce(ctx context.Context, s *steps, wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		if err := s.begin(ctx, "umount2"); err != nil {
			return err
		}
		result := make(chan error, 1)
		go func() { result <- p.umount2(0) }()
		select {
		case err := <-result:
			if !errors.Is(err, unix.EBUSY) {
				return err
			}
		case <-timer.C:
			return p.force(ctx, s, result)
		}
		select {
		case <-time.After(busyInterval):
		case <-timer.C:
			return p.force(ctx, s, nil)
		case <-ctx.Done():
		}
	}
}

// force aborts the mount, unless the caller has gone. Pending is the result of a plain unmount that has not returned, or
// nil.
func (p *place) force(ctx context.Context, s *steps, pending <-chan error) error {
	err := s.begin(ctx, "umount2(MNT_FORCE)")
	if err == nil {
		err = p.umount2(unix.MNT_FORCE)
	}
	if pending != nil {
		s.note("umount2")
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
		err = p.umount(ctx, s, 0)
	}
	return err
}
