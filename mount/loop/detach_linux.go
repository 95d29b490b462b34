package loop

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/abandonable"
	"github.com/volumekit/volumekit/mount"
)

// maxDetachChecks is how often a detach is checked before the device counts as in use: about a second.
const maxDetachChecks = 28

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

// beginDetach tells the kernel to detach the device if it still has the file. False: the device is proven to be free, or to have
// another file.
func (m *Manager) beginDetach(ctx context.Context, device Device) (bool, error) {
	node, err := m.openExclusively(ctx, device.Number)
	switch {
	case isGone(err):
		return false, nil
	case errors.Is(err, unix.EBUSY):
		return false, m.inUseError(device)
	case err != nil:
		return false, err
	}
	// While it is open here, it keeps the file that it has: LOOP_CLR_FD waits for the last close.
	if has, err := stillHas(node, device); err != nil || !has {
		node.close()
		return false, err
	}
	// Write the dirty pages of the device to the file now: otherwise the close would wait for them.
	_ = unix.SyncFileRange(node.fd, 0, 0, unix.SYNC_FILE_RANGE_WRITE|unix.SYNC_FILE_RANGE_WAIT_AFTER)
	lingers, err := m.changes.detach(ctx, node, device)
	if errors.Is(err, unix.EBUSY) {
		return false, m.inUseError(device)
	}
	return lingers, err
}

// maxExclusiveOpens limits the attempts of openExclusively: other users of this package open a device with O_EXCL for a moment.
const maxExclusiveOpens = 5

// openExclusively opens the device with O_EXCL.
func (m *Manager) openExclusively(ctx context.Context, number int) (handle, error) {
	wait := newWaiter()
	for try := 1; ; try++ {
		node, err := m.nodes.open(number, unix.O_RDONLY|unix.O_EXCL)
		node.exclusive = err == nil
		if !errors.Is(err, unix.EBUSY) || try == maxExclusiveOpens {
			return node, err
		}
		if ctxErr := wait.next(ctx); ctxErr != nil {
			return handle{}, fmt.Errorf("%w: %w", err, ctxErr)
		}
	}
}

// inUseError returns an *InUseError, or nil if the device has another file by now.
func (m *Manager) inUseError(device Device) error {
	has, err := m.inspector.has(device)
	if err != nil || !has {
		return err
	}
	return &InUseError{Path: device.Path, Holders: mountedBy(device)}
}

// stillHas reports whether an open device still has its file. If the sequence number is the same, it does. Otherwise stillHas
// compares the files: the same file may have been attached again.
func stillHas(node handle, device Device) (bool, error) {
	if device.DiskSeq != 0 {
		if seq, err := node.ioctlUint64(unix.BLKGETDISKSEQ); err == nil && seq == device.DiskSeq {
			return true, nil
		}
	}
	now, attached, err := inspectNode(node, device.Number)
	return attached && sameFile(now, device), err
}

func sameFile(a, b Device) bool {
	return a.BackingDevice == b.BackingDevice && a.BackingInode == b.BackingInode
}

// waitGone waits until the device is proven to be free or to have another file. A process that only reads the device, such as
// udev after a change, makes the kernel delay the detach until the last close.
func (m *Manager) waitGone(ctx context.Context, device Device) error {
	wait := newWaiter()
	for range maxDetachChecks {
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
