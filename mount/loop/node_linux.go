package loop

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// openNode opens the node of a device, and makes it where /dev has none: in a container, say, /dev is not the kernel's
// own and has only the nodes of its first day. The caller gets the device of that number and nothing else.
func openNode(number, flags int) (*os.File, error) {
	path := filepath.Join(devDir, "loop"+strconv.Itoa(number))
	node, err := openDevice(path, flags)
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeNode(path, number); err != nil {
			return nil, err
		}
		node, err = openDevice(path, flags)
	}
	if err != nil {
		return nil, openError(err, "cannot open loop device")
	}
	if err := checkNode(node, number); err != nil {
		node.Close()
		return nil, err
	}
	return node, nil
}

// openError says what to do: as otherwise, unless it is only a matter of permission.
func openError(err error, otherwise string) error {
	if errors.Is(err, fs.ErrPermission) {
		otherwise = "loop devices need root, and in a container CAP_SYS_ADMIN and access to block devices of major 7"
	}
	return fmt.Errorf("%s: %w", otherwise, err)
}

func openDevice(path string, flags int) (*os.File, error) {
	return os.OpenFile(path, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
}

func makeNode(path string, number int) error {
	major, minor, err := deviceNumber(number)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is gone: %w", path, unix.ENXIO)
	}
	if err != nil {
		return fmt.Errorf("%s does not exist and its number cannot be read: %w: %w", path, ErrNoDevice, err)
	}
	err = unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(major, minor)))
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("%s does not exist and cannot be made: run 'mknod %s b %d %d', or mount devtmpfs at /dev: %w: %w",
			path, path, major, minor, ErrNoDevice, err)
	}
	return nil
}

// checkNode makes sure that what was opened is the loop device of that number.
func checkNode(node *os.File, number int) error {
	var st unix.Stat_t
	if err := control(node, func(fd int) error { return unix.Fstat(fd, &st) }); err != nil {
		return fmt.Errorf("fstat of %q: %w", node.Name(), err)
	}
	major, minor, err := deviceNumber(number)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is gone: %w", node.Name(), unix.ENXIO)
	}
	if err != nil {
		return fmt.Errorf("cannot read the number of %s: %w", node.Name(), err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK || major != loopMajor || st.Rdev != unix.Mkdev(major, minor) {
		return fmt.Errorf("%s is not block device %d:%d: remove it: %w", node.Name(), major, minor, ErrNoDevice)
	}
	return nil
}

// freeNumber asks the kernel for a device that is free now; it makes one where all are taken. Others may take it first.
func freeNumber() (int, error) {
	ctl, err := openDevice(filepath.Join(devDir, "loop-control"), unix.O_RDWR)
	if err != nil {
		err = openError(err, "no control device: load the kernel module loop, and mount devtmpfs at /dev")
		return 0, fmt.Errorf("%w: %w", ErrNoDevice, err)
	}
	defer ctl.Close()
	number := -1
	err = control(ctl, func(fd int) error {
		return ignoringEINTR(func() (err error) { number, err = unix.IoctlRetInt(fd, unix.LOOP_CTL_GET_FREE); return err })
	})
	if err != nil {
		return 0, fmt.Errorf("LOOP_CTL_GET_FREE: %w", err)
	}
	return number, nil
}

// opened claims the block device at path for an instant.
func opened(ctx context.Context, path string) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, fmt.Errorf("looking whether %q is in use: %w", path, context.Cause(ctx))
	}
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking whether a device is in use: %w", err)
	}
	if st.Mode()&(fs.ModeDevice|fs.ModeCharDevice) != fs.ModeDevice {
		return false, nil
	}
	return claimed(path)
}

func claimed(path string) (bool, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	switch {
	case err == nil:
		_ = unix.Close(fd)
		return false, nil
	case errors.Is(err, unix.EBUSY):
		return true, nil
	case isGone(err), errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOMEDIUM):
		return false, nil
	}
	return false, fmt.Errorf("cannot tell whether device %q is in use: %w", path, err)
}
