package loop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/abandonable"
	"github.com/volumekit/volumekit/mount"
)

func (m *Manager) hold(ctx context.Context, h handle, label string) (Device, error) {
	if err := abandonable.Begin(ctx, "fstat"); err != nil {
		return Device{}, err
	}
	st, err := h.stat()
	if err != nil {
		return Device{}, err
	}
	if label == "" || st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return Device{}, fmt.Errorf("it takes a block device and a label: %w", os.ErrInvalid)
	}
	unlock, err := lockDisk(ctx, st.Rdev)
	if err != nil {
		return Device{}, err
	}
	defer unlock()
	all, err := m.index.devices(ctx)
	if err != nil {
		return Device{}, err
	}
	for _, d := range all {
		if d.BackingRdev == st.Rdev && d.IsLabelled(label) && !d.AutoClear {
			return d, nil
		}
	}
	return m.attachFree(ctx, attachment{
		file:    backing{handle: h, id: identity{dev: st.Dev, ino: st.Ino}, links: 1},
		mode:    unix.O_RDONLY,
		options: AttachOptions{ReadOnly: true, Label: label},
	})
}

func (m *Manager) whileUnheld(ctx context.Context, path string, do func() error) error {
	rdev, err := mount.RunAbandonable(ctx, "stat", path, func() (uint64, error) { return numberAt(path) })
	if err != nil {
		return err
	}
	unlock, err := lockDisk(ctx, rdev)
	if err != nil {
		return err
	}
	defer unlock()
	if err := m.checkUnheld(ctx, path, rdev); err != nil {
		return err
	}
	return do()
}

// numberAt returns the number of the block device at path.
func numberAt(path string) (uint64, error) {
	var st unix.Stat_t
	if err := ignoringEINTR(func() error { return unix.Stat(path, &st) }); err != nil {
		return 0, fmt.Errorf("stat of %q: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return 0, fmt.Errorf("%q is no block device: %w", path, os.ErrInvalid)
	}
	return st.Rdev, nil
}

// checkUnheld returns an error if a loop device is over the device, its disk, or a part of it.
func (m *Manager) checkUnheld(ctx context.Context, path string, rdev uint64) error {
	all, err := m.index.devices(ctx)
	if err != nil {
		return err
	}
	for _, d := range all {
		if d, err = m.awaitAnswer(ctx, d); err != nil {
			return err
		}
		if d.BackingRdev == 0 {
			continue
		}
		overlap, err := overlaps(d.BackingRdev, rdev)
		if err != nil {
			return err
		}
		if overlap {
			return fmt.Errorf("device %q (%d:%d) is used without a filesystem, and held by %s: unmap it first: %w: %w",
				path, unix.Major(rdev), unix.Minor(rdev), d.Path, ErrInUse, unix.EBUSY)
		}
	}
	return nil
}

// awaitAnswer reads again the state of a device that did not answer in time and may be over a block device. A
// filesystem with the device nodes does not hang, so the machine was only slow. If the device is free by now,
// awaitAnswer returns the zero Device.
func (m *Manager) awaitAnswer(ctx context.Context, d Device) (Device, error) {
	if !d.Silent || !strings.HasPrefix(d.BackingPath, "/dev/") {
		return d, nil
	}
	d, err := m.inspector.at(ctx, d.Path)
	if errors.Is(err, ErrNotAttached) {
		return Device{}, nil
	}
	return d, err
}

// overlaps reports whether two block devices have bytes in common: they are the same, or one is a disk and the other a
// part of it.
func overlaps(a, b uint64) (bool, error) {
	if a == b {
		return true, nil
	}
	diskOfA, err := diskOf(a)
	if err != nil {
		return false, err
	}
	diskOfB, err := diskOf(b)
	return diskOfA == b || diskOfB == a, err
}

// lockDisk takes the lock of a block device's disk against every other program that uses this package. The lock is on a
// directory of sysfs, which is the same for all names of the device. It ends with the process.
func lockDisk(ctx context.Context, rdev uint64) (unlock func(), err error) {
	disk, err := diskOf(rdev)
	if err != nil {
		return nil, err
	}
	dir := sysDir(disk)
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("the lock of device %d:%d: open %s: %w", unix.Major(disk), unix.Minor(disk), dir, err)
	}
	h := handle{fd: fd, name: dir}
	if err := flock(ctx, h); err != nil {
		h.close()
		return nil, err
	}
	return h.close, nil
}

// diskOf returns the number of the disk of a block device; its own number if it is a whole disk.
func diskOf(rdev uint64) (uint64, error) {
	dir := sysDir(rdev)
	if err := unix.Access(dir+"/partition", unix.F_OK); errors.Is(err, unix.ENOENT) {
		return rdev, nil
	}
	content, err := os.ReadFile(dir + "/../dev") // The kernel follows the link before it goes up.
	if err != nil {
		return 0, fmt.Errorf("the disk of device %d:%d: %w", unix.Major(rdev), unix.Minor(rdev), err)
	}
	var major, minor uint32
	if _, err := fmt.Sscanf(string(content), "%d:%d", &major, &minor); err != nil {
		return 0, fmt.Errorf("the disk of device %d:%d: %q: %w", unix.Major(rdev), unix.Minor(rdev), content, err)
	}
	return unix.Mkdev(major, minor), nil
}

func sysDir(rdev uint64) string {
	return fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(rdev), unix.Minor(rdev))
}
