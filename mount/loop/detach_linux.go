package loop

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/abandonable"
	"github.com/volumekit/volumekit/mount"
)

// maxLinger is how often a device that is about to go is looked at before it counts as held: about a second.
const maxLinger = 28

func (m *Manager) detach(ctx context.Context, device Device) error {
	if err := abandonable.Begin(ctx, "LOOP_CLR_FD"); err != nil {
		return fmt.Errorf("detaching %s: %w", device.Path, context.Cause(ctx))
	}
	begun, err := m.beginDetach(ctx, device)
	if err != nil {
		return fmt.Errorf("cannot detach %s: %w", device.Path, err)
	}
	if !begun {
		return nil
	}
	return m.waitGone(ctx, device)
}

// beginDetach tells the kernel to detach the device if it still has the file. False says that the device is free, or has
// another file, which is proven.
func (m *Manager) beginDetach(ctx context.Context, device Device) (bool, error) {
	node, err := m.claim(ctx, device.Number)
	switch {
	case isGone(err):
		return false, nil
	case errors.Is(err, unix.EBUSY):
		return false, m.claimedError(device)
	case err != nil:
		return false, err
	}
	// While it is open here, it keeps the file that it has: LOOP_CLR_FD waits for the last close.
	if has, err := stillHas(node, device); err != nil || !has {
		node.close()
		return false, err
	}
	// What was written to the device itself goes to the file now, so that the close need not wait for it.
	_ = unix.SyncFileRange(node.fd, 0, 0, unix.SYNC_FILE_RANGE_WRITE|unix.SYNC_FILE_RANGE_WAIT_AFTER)
	lingers, err := m.changes.detach(ctx, node, device)
	if errors.Is(err, unix.EBUSY) {
		return false, m.claimedError(device)
	}
	return lingers, err
}

// maxClaim is how often a claim is tried: a process that attaches or detaches a device claims it for a moment.
const maxClaim = 5

// claim opens the device for this call alone.
func (m *Manager) claim(ctx context.Context, number int) (handle, error) {
	wait := newWaiter()
	for try := 1; ; try++ {
		node, err := m.nodes.open(number, unix.O_RDONLY|unix.O_EXCL)
		node.claimed = err == nil
		if !errors.Is(err, unix.EBUSY) || try == maxClaim {
			return node, err
		}
		if ctxErr := wait.next(ctx); ctxErr != nil {
			return handle{}, fmt.Errorf("%w: %w", err, ctxErr)
		}
	}
}

// claimedError is nil for a device that has another file by now.
func (m *Manager) claimedError(device Device) error {
	has, err := m.inspector.has(device)
	if err != nil || !has {
		return err
	}
	return &InUseError{Path: device.Path, Holders: mountedBy(device)}
}

// stillHas reports whether an open device still has its file. One with the number of the attachment has. Otherwise it is
// the file that counts, for the same one may have been attached once more.
func stillHas(node handle, device Device) (bool, error) {
	if device.DiskSeq != 0 {
		if seq, err := node.ask(unix.BLKGETDISKSEQ); err == nil && seq == device.DiskSeq {
			return true, nil
		}
	}
	now, attached, err := inspectNode(node, device.Number)
	return attached && sameFile(now, device), err
}

func sameFile(a, b Device) bool {
	return a.BackingDevice == b.BackingDevice && a.BackingInode == b.BackingInode
}

// waitGone proves that the device is free or has another file. A process that merely reads the device, as udev does when it
// changes, makes the kernel put the detachment off until the last close, which is soon.
func (m *Manager) waitGone(ctx context.Context, device Device) error {
	wait := newWaiter()
	for range maxLinger {
		has, err := m.inspector.has(device)
		if err != nil {
			return fmt.Errorf("cannot tell whether %s is detached: %w: %w", device.Path, mount.ErrUncertain, err)
		}
		if !has {
			return nil
		}
		if err := wait.next(ctx); err != nil {
			return fmt.Errorf("%w: %w", &InUseError{Path: device.Path, Pending: true}, err)
		}
	}
	return &InUseError{Path: device.Path, Pending: true, Holders: openedBy(device)}
}
