package loop

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/lostcall"
	"github.com/volumekit/volumekit/mount"
)

// maxLinger is how often a device that is about to go is looked at before it counts as held: about a second.
const maxLinger = 28

func (m *Manager) detach(ctx context.Context, device Device) error {
	if err := lostcall.Begin(ctx, "LOOP_CLR_FD"); err != nil {
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
	return m.clear(ctx, node, device)
}

// maxClaim is how often a claim is tried: whoever attaches or detaches a device claims it for a moment.
const maxClaim = 5

// claim opens the device for this call alone.
func (m *Manager) claim(ctx context.Context, number int) (handle, error) {
	wait := newWaiter()
	for try := 1; ; try++ {
		node, err := m.openNode(number, unix.O_RDONLY|unix.O_EXCL)
		if !errors.Is(err, unix.EBUSY) || try == maxClaim {
			return node, err
		}
		if ctxErr := wait.next(ctx); ctxErr != nil {
			return handle{}, fmt.Errorf("%w: %w", err, ctxErr)
		}
	}
}

// clear takes the file off an open device and closes that. It reports whether the device may still have the file.
func (m *Manager) clear(ctx context.Context, node handle, device Device) (lingers bool, err error) {
	defer m.table.takeTurn(ctx)()
	m.settle(node, device.Number)
	err = clearFile(node)
	if err == nil {
		// Nobody else has it open: it is free for LOOP_GET_STATUS64 at once, and for others with the close. Any other answer, an
		// error of a dead filesystem too, is that of a device with a file.
		_, err = status(node)
		if lingers = !isGone(err); lingers {
			err = nil
		}
	}
	node.close()
	switch {
	case isGone(err):
		m.table.detached(device.Number, device.DiskSeq)
		return false, nil
	case errors.Is(err, unix.EBUSY):
		return false, m.claimedError(device)
	}
	return lingers, err
}

// settle finds out the number of the detachment before, so that the change that comes next is seen to follow it. node is
// the open node of the device with that number. Detach leaves this to the next change, which has that device open anyway.
func (m *Manager) settle(node handle, number int) {
	switch before := m.table.takePending(); before {
	case noDevice:
	case number:
		m.noteFreeNode(node, number)
	default:
		m.noteFree(before)
	}
}

// noteFree keeps in the table that a device was detached, if it is still free.
func (m *Manager) noteFree(number int) {
	node, err := m.openNode(number, unix.O_RDONLY)
	if err != nil {
		return
	}
	defer node.close()
	m.noteFreeNode(node, number)
}

// noteFreeNode asks for the number first: should the device get another file meanwhile, its number is another.
func (m *Manager) noteFreeNode(node handle, number int) {
	seq, err := node.ask(unix.BLKGETDISKSEQ)
	if err != nil {
		return
	}
	if _, err := status(node); isGone(err) {
		m.table.own(number, row{seq: seq, state: rowFree})
	}
}

// claimedError tells a device that is mounted from one that belongs to somebody else by now.
func (m *Manager) claimedError(device Device) error {
	has, err := m.has(device)
	if err != nil || !has {
		return err
	}
	return &InUseError{Path: device.Path, Holders: mountedBy(device)}
}

// has opens the device to look whether it still has its file.
func (m *Manager) has(device Device) (bool, error) {
	node, err := m.openNode(device.Number, unix.O_RDONLY)
	if isGone(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer node.close()
	return stillHas(node, device)
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

// waitGone proves that the device is free or has another file. Whoever merely reads the device, as udev does when it
// changes, makes the kernel put the detachment off until the last close, which is soon.
func (m *Manager) waitGone(ctx context.Context, device Device) error {
	wait := newWaiter()
	for range maxLinger {
		has, err := m.has(device)
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
