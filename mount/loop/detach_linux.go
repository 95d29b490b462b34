package loop

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// maxLinger is how often a device that is about to go is looked at before it counts as held: about a second.
const maxLinger = 24

func detach(ctx context.Context, device Device) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("detaching %s: %w", device.Path, context.Cause(ctx))
	}
	begun, err := beginDetach(ctx, device)
	if err != nil {
		return fmt.Errorf("cannot detach %s: %w", device.Path, err)
	}
	if !begun {
		return nil
	}
	return waitGone(ctx, device)
}

// beginDetach tells the kernel to detach the device if it still has the file. False says that there is nothing to detach.
func beginDetach(ctx context.Context, device Device) (bool, error) {
	node, err := openNode(device.Number, unix.O_RDONLY|unix.O_EXCL)
	switch {
	case isGone(err):
		return false, nil
	case errors.Is(err, unix.EBUSY):
		return false, claimedError(device)
	case err != nil:
		return false, err
	}
	defer node.Close()
	if err := flock(ctx, node); err != nil {
		return false, err
	}
	if has, err := stillHas(node, device); err != nil || !has {
		return false, err
	}
	err = clearFile(node)
	if isGone(err) {
		return false, nil
	}
	if errors.Is(err, unix.EBUSY) {
		return false, fmt.Errorf("LOOP_CLR_FD: %w: %w", ErrInUse, err)
	}
	return err == nil, err
}

// clearFile tells the kernel to take the file off the device, now or with the last close.
func clearFile(node *os.File) error { return control(node, ioctlClear) }

func ioctlClear(fd int) error {
	return ignoringEINTR(func() error { return unix.IoctlSetInt(fd, unix.LOOP_CLR_FD, 0) })
}

// claimedError tells a device that is mounted from one that belongs to somebody else by now.
func claimedError(device Device) error {
	now, attached, err := inspect(device.Number)
	if err != nil {
		return err
	}
	if !attached || !sameFile(now, device) {
		return nil
	}
	return fmt.Errorf("it is mounted, perhaps in another mount namespace, or claimed: unmount it first: %w: %w",
		ErrInUse, unix.EBUSY)
}

func stillHas(node *os.File, device Device) (bool, error) {
	now, attached, err := inspectNode(node, device.Number)
	return attached && sameFile(now, device), err
}

func sameFile(a, b Device) bool {
	return a.BackingDevice == b.BackingDevice && a.BackingInode == b.BackingInode
}

// waitGone proves that the device is free or has another file. Whoever merely reads the device, as udev does when it
// changes, makes the kernel put the detachment off until the last close, which is soon.
func waitGone(ctx context.Context, device Device) error {
	wait := newWaiter()
	for range maxLinger {
		now, attached, err := inspect(device.Number)
		if err != nil {
			return fmt.Errorf("cannot tell whether %s is detached: %w", device.Path, err)
		}
		if !attached || !sameFile(now, device) {
			return nil
		}
		if err := wait.next(ctx); err != nil {
			return fmt.Errorf("%s is still held and will be detached with its last close: %w: %w", device.Path, ErrInUse, err)
		}
	}
	return fmt.Errorf("%s is still held and will be detached with its last close: %w: %w", device.Path, ErrInUse, unix.EBUSY)
}
