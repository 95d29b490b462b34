package loop

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Where the kernel shows its devices.
const (
	sysBlock  = "/sys/block"
	devDir    = "/dev"
	loopMajor = 7
)

// devices looks at every device that sysfs shows as attached, and asks the device itself what it has.
func devices(ctx context.Context) ([]Device, error) {
	entries, err := os.ReadDir(sysBlock)
	if err != nil {
		return nil, fmt.Errorf("cannot list loop devices: mount sysfs at /sys: %w", err)
	}
	var all []Device
	for _, entry := range entries {
		number, ok := loopNumber(entry.Name())
		if !ok || !looksAttached(number) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("looking at loop devices: %w", context.Cause(ctx))
		}
		device, attached, err := inspect(number)
		if err != nil {
			return nil, err
		}
		if attached {
			all = append(all, device)
		}
	}
	slices.SortFunc(all, func(a, b Device) int { return cmp.Compare(a.Number, b.Number) })
	return all, nil
}

// loopNumber returns 3 for "loop3".
func loopNumber(name string) (int, bool) {
	digits, ok := strings.CutPrefix(name, "loop")
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(digits)
	return n, err == nil && n >= 0 && strconv.Itoa(n) == digits
}

// looksAttached reports whether sysfs has the directory that a device has only while it is attached. What cannot be
// found out counts as attached, so that the device itself is asked.
func looksAttached(number int) bool {
	_, err := os.Lstat(sysPath(number, "loop"))
	return !errors.Is(err, fs.ErrNotExist)
}

func sysPath(number int, elements ...string) string {
	return filepath.Join(append([]string{sysBlock, "loop" + strconv.Itoa(number)}, elements...)...)
}

func inspectPath(ctx context.Context, path string) (Device, error) {
	if err := ctx.Err(); err != nil {
		return Device{}, fmt.Errorf("looking at %q: %w", path, context.Cause(ctx))
	}
	number, ok := loopNumber(filepath.Base(path))
	if !ok || filepath.Dir(path) != devDir {
		return Device{}, fmt.Errorf("%q is no loop device: %w", path, ErrNotAttached)
	}
	device, attached, err := inspect(number)
	if err == nil && !attached {
		err = fmt.Errorf("%s has no file: %w", path, ErrNotAttached)
	}
	return device, err
}

// inspect asks a device what it has. A device that is free, or gone, is not attached.
func inspect(number int) (Device, bool, error) {
	node, err := openNode(number, unix.O_RDONLY)
	if isGone(err) {
		return Device{}, false, nil
	}
	if err != nil {
		return Device{}, false, err
	}
	defer node.Close()
	return inspectNode(node, number)
}

func inspectNode(node *os.File, number int) (Device, bool, error) {
	info, err := status(node)
	if isGone(err) {
		return Device{}, false, nil
	}
	if err != nil {
		return Device{}, false, fmt.Errorf("LOOP_GET_STATUS64 of %q: %w", node.Name(), err)
	}
	major, minor, err := deviceNumber(number)
	if err != nil {
		return Device{}, false, nil //nolint:nilerr // sysfs lost the device after it had answered: it is gone
	}
	device := Device{
		Path: node.Name(), Number: number, Major: major, Minor: minor,
		BackingDevice: info.Device, BackingInode: info.Inode,
		Label:     string(bytes.TrimRight(info.File_name[:], "\x00")),
		ReadOnly:  info.Flags&unix.LO_FLAGS_READ_ONLY != 0,
		DirectIO:  info.Flags&unix.LO_FLAGS_DIRECT_IO != 0,
		AutoClear: info.Flags&unix.LO_FLAGS_AUTOCLEAR != 0,
		Offset:    info.Offset, SizeLimit: info.Sizelimit,
	}
	device.BackingPath, device.Deleted = backingPath(number)
	return device, true, nil
}

func status(node *os.File) (*unix.LoopInfo64, error) {
	var info *unix.LoopInfo64
	err := control(node, func(fd int) error {
		return ignoringEINTR(func() (err error) { info, err = unix.IoctlLoopGetStatus64(fd); return err })
	})
	return info, err
}

// isGone reports whether err says that the device is free, or is no device any more.
func isGone(err error) bool {
	return errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV)
}

const deletedMark = " (deleted)"

// backingPath reads the path of the backing file from sysfs. It is for people: a file may really be named so.
func backingPath(number int) (path string, deleted bool) {
	content, err := os.ReadFile(sysPath(number, "loop", "backing_file"))
	if err != nil {
		return "", false
	}
	path = strings.TrimSuffix(string(content), "\n")
	trimmed, deleted := strings.CutSuffix(path, deletedMark)
	return trimmed, deleted
}

// deviceNumber reads the number of a device from sysfs: the minor is not the index when devices have partitions.
func deviceNumber(number int) (major, minor uint32, err error) {
	content, err := os.ReadFile(sysPath(number, "dev"))
	if err != nil {
		return 0, 0, err
	}
	if _, err := fmt.Sscanf(string(content), "%d:%d", &major, &minor); err != nil {
		return 0, 0, fmt.Errorf("%q is not a device number: %w", content, err)
	}
	return major, minor, nil
}

// findFile returns the one device that has the file.
func findFile(ctx context.Context, file *os.File) (Device, error) {
	id, err := identify(file)
	if err != nil {
		return Device{}, err
	}
	return findIdentity(ctx, id, file.Name())
}

func findIdentity(ctx context.Context, id identity, name string) (Device, error) {
	all, err := devices(ctx)
	if err != nil {
		return Device{}, err
	}
	var found []Device
	for _, d := range all {
		if d.BackingDevice == id.dev && d.BackingInode == id.ino {
			found = append(found, d)
		}
	}
	switch len(found) {
	case 0:
		return Device{}, fmt.Errorf("%q: %w", name, ErrNotAttached)
	case 1:
		return found[0], nil
	}
	return Device{}, fmt.Errorf("%q is attached to %s and to %s: detach all but one: %w",
		name, found[0].Path, found[1].Path, ErrInUse)
}

func (d Device) has(info os.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && d.BackingDevice == uint64(st.Dev) && d.BackingInode == st.Ino //nolint:unconvert // narrower elsewhere
}
