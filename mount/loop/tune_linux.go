package loop

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/abandonable"
	"github.com/volumekit/volumekit/mount"
)

func (m *Manager) tune(ctx context.Context, h handle, tuning Tuning) (Device, error) {
	return locked(ctx, h, func(f backing) (Device, error) {
		if err := m.index.catchUp(ctx, 0); err != nil {
			return Device{}, err
		}
		device, err := m.index.oneOf(f)
		if err == nil {
			device, err = m.tuneDevice(ctx, device, tuning)
		}
		if err != nil {
			return Device{}, fmt.Errorf("cannot tune the device of %q: %w", f.name, err)
		}
		return device, nil
	})
}

// tuneDevice applies the tuning, and returns the new state of the device.
func (m *Manager) tuneDevice(ctx context.Context, device Device, tuning Tuning) (Device, error) {
	node, err := m.nodes.open(device.Number, unix.O_RDONLY)
	if err != nil {
		return Device{}, err
	}
	defer node.close()
	now, attached, err := inspectNode(node, device.Number) // which stays so while it is open
	if err != nil {
		return Device{}, err
	}
	if !attached || !sameFile(now, device) {
		return Device{}, fmt.Errorf("%s: %w", device.Path, ErrNotAttached)
	}
	if err := abandonable.Begin(ctx, "LOOP_SET_DIRECT_IO"); err != nil {
		return Device{}, err
	}
	if want := tuning.DirectIO; want != nil && *want != now.DirectIO {
		on := map[bool]int{true: 1}
		if err := setDirectIO(node, on[*want]); err != nil {
			return Device{}, fmt.Errorf("LOOP_SET_DIRECT_IO of %s: %w", device.Path, err)
		}
	}
	// The last, since the kernel computes it anew when it changes direct I/O.
	if want := tuning.ReadAhead; want != nil {
		if err := setReadAhead(node, *want); err != nil {
			return Device{}, fmt.Errorf("BLKRASET of %s: %w", device.Path, err)
		}
	}
	now, attached, err = inspectNode(node, device.Number)
	if err == nil && !attached {
		err = fmt.Errorf("%s: %w", device.Path, ErrNotAttached)
	}
	return now, err
}

// setDirectIO switches direct I/O on with 1 and off with 0. The kernel writes the pages of the backing file out first.
func setDirectIO(node handle, value int) error {
	err := ignoringEINTR(func() error { return unix.IoctlSetInt(node.fd, unix.LOOP_SET_DIRECT_IO, value) })
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("the filesystem of the file, or the sector size of the device, does not allow it: %w: %w", mount.ErrUnsupported, err)
	}
	return err
}

// setReadAhead sets the read-ahead, which the kernel takes in sectors of 512 bytes.
func setReadAhead(node handle, bytes int64) error {
	return ignoringEINTR(func() error { return unix.IoctlSetInt(node.fd, unix.BLKRASET, int(bytes/defaultSector)) })
}
