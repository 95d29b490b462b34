package loop

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/lostcall"
)

func (m *Manager) holdDevice(ctx context.Context, device *os.File, label string) (Device, error) {
	held, err := withHandle(device, func(h handle) (Device, error) { return m.hold(ctx, h, label) })
	if err != nil {
		return Device{}, fmt.Errorf("cannot hold device %q: %w", device.Name(), err)
	}
	return held, nil
}

func (m *Manager) hold(ctx context.Context, h handle, label string) (Device, error) {
	if err := lostcall.Begin(ctx, "fstat"); err != nil {
		return Device{}, err
	}
	st, err := h.stat()
	if err != nil {
		return Device{}, err
	}
	if label == "" || st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return Device{}, fmt.Errorf("it takes a block device and a label: %w", os.ErrInvalid)
	}
	all, err := m.devices(ctx)
	if err != nil {
		return Device{}, err
	}
	for _, d := range all {
		if d.BackingRdev == st.Rdev && d.Label == cutLabel(label) && !d.AutoClear {
			return d, nil
		}
	}
	return m.attachFree(ctx, attachment{
		file:    backing{handle: h, id: identity{dev: st.Dev, ino: st.Ino}, links: 1},
		mode:    unix.O_RDONLY,
		options: AttachOptions{ReadOnly: true, Label: label},
	})
}
