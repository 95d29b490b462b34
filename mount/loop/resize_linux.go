package loop

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/abandonable"
	"github.com/volumekit/volumekit/mount"
)

func (m *Manager) resize(ctx context.Context, h handle) (Device, error) {
	return locked(ctx, h, func(f backing) (Device, error) {
		if err := m.index.catchUp(ctx, 0); err != nil {
			return Device{}, err
		}
		device, err := m.index.oneOf(f)
		if err == nil {
			err = m.resizeDevice(ctx, f, device)
		}
		if err != nil {
			return Device{}, fmt.Errorf("cannot resize the device of %q: %w", f.name, err)
		}
		return device, nil
	})
}

// resizeDevice makes the device as large as the file, and looks whether it is.
func (m *Manager) resizeDevice(ctx context.Context, f backing, device Device) error {
	node, err := m.nodes.open(device.Number, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer node.close()
	now, attached, err := inspectNode(node, device.Number) // which stays so while it is open
	if err != nil {
		return err
	}
	if !attached || !sameFile(now, device) {
		return fmt.Errorf("%s: %w", device.Path, ErrNotAttached)
	}
	want := sizeOf(f, now)
	has, err := node.ioctlUint64(unix.BLKGETSIZE64)
	if err != nil {
		return fmt.Errorf("BLKGETSIZE64 of %s: %w", device.Path, err)
	}
	switch {
	case has == want:
		return nil
	case has > want:
		return fmt.Errorf("%s has %d bytes and the file allows %d: %w", device.Path, has, want, ErrShrink)
	}
	if err := abandonable.Begin(ctx, "LOOP_SET_CAPACITY"); err != nil {
		return err
	}
	if err := ignoringEINTR(func() error { return unix.IoctlSetInt(node.fd, unix.LOOP_SET_CAPACITY, 0) }); err != nil {
		return fmt.Errorf("LOOP_SET_CAPACITY of %s: %w", device.Path, err)
	}
	has, err = node.ioctlUint64(unix.BLKGETSIZE64)
	if err != nil {
		return fmt.Errorf("BLKGETSIZE64 of %s: %w: %w", device.Path, mount.ErrUncertain, err)
	}
	if has < want {
		return fmt.Errorf("%s has %d bytes after LOOP_SET_CAPACITY, and not %d: %w", device.Path, has, want, mount.ErrUncertain)
	}
	return nil
}

// sizeOf is the size that a device over the file has: whole sectors of 512 bytes.
func sizeOf(f backing, device Device) uint64 {
	size := uint64(max(f.size, 0))
	size -= min(size, device.Offset)
	if device.SizeLimit > 0 {
		size = min(size, device.SizeLimit)
	}
	return size &^ (defaultSector - 1)
}
