package loop

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Where the kernel shows its devices.
const (
	sysBlock = "/sys/devices/virtual/block"
	devDir   = "/dev"
)

// loopNumber returns 3 for "loop3".
func loopNumber(name string) (int, bool) {
	digits, ok := strings.CutPrefix(name, "loop")
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(digits)
	return n, err == nil && n >= 0 && strconv.Itoa(n) == digits
}

func nodePath(number int) string { return devDir + "/loop" + strconv.Itoa(number) }

func sysPath(number int, element string) string {
	return sysBlock + "/loop" + strconv.Itoa(number) + "/" + element
}

// open opens the node of a device, and makes it where /dev has none: in a container, say, /dev is not the kernel's
// own and has only the nodes of its first day. The caller gets the device of that number and nothing else.
func (n *nodes) open(number, flags int) (handle, error) {
	path := nodePath(number)
	node, err := open(path, flags)
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeNode(path, number); err != nil {
			return handle{}, err
		}
		node, err = open(path, flags)
	}
	if err != nil {
		return handle{}, openError(err, "cannot open loop device")
	}
	node.rdev, err = n.check(node, number)
	if err != nil {
		node.close()
		return handle{}, err
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

func makeNode(path string, number int) error {
	rdev, err := sysRdev(number)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is gone: %w", path, unix.ENXIO)
	}
	if err != nil {
		return fmt.Errorf("%s does not exist and its number cannot be read: %w: %w", path, ErrNoDevice, err)
	}
	err = unix.Mknod(path, unix.S_IFBLK|0o600, int(rdev))
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("%s does not exist and cannot be made: run 'mknod %s b %d %d', or mount devtmpfs at /dev: %w: %w",
			path, path, unix.Major(rdev), unix.Minor(rdev), ErrNoDevice, err)
	}
	return nil
}

// check makes sure that what was opened is the loop device of that number, and returns its st_rdev. It reads sysfs again when the number
// that was kept does not match.
func (n *nodes) check(node handle, number int) (rdev uint64, err error) {
	st, err := node.stat()
	if err != nil {
		return 0, err
	}
	block := st.Mode&unix.S_IFMT == unix.S_IFBLK
	if block && st.Rdev != 0 && st.Rdev == n.rdev(number) {
		return st.Rdev, nil
	}
	rdev, err = sysRdev(number)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("%s is gone: %w", node.name, unix.ENXIO)
	}
	if err != nil {
		return 0, fmt.Errorf("cannot read the number of %s: %w", node.name, err)
	}
	if !block || st.Rdev != rdev || unix.Major(rdev) != loopMajor {
		return 0, fmt.Errorf("%s is not block device %d:%d: remove it: %w",
			node.name, unix.Major(rdev), unix.Minor(rdev), ErrNoDevice)
	}
	n.keepRdev(number, rdev)
	return rdev, nil
}

// sysRdev reads the number of a device from sysfs: the minor is not the index when devices have partitions.
func sysRdev(number int) (uint64, error) {
	content, err := sysDeviceOf(number).read("dev")
	if err != nil {
		return 0, err
	}
	major, minor, ok := strings.Cut(content, ":")
	ma, errMajor := strconv.ParseUint(major, 10, 32)
	mi, errMinor := strconv.ParseUint(minor, 10, 32)
	if err := errors.Join(errMajor, errMinor); err != nil || !ok {
		return 0, fmt.Errorf("%q is no device number: %w", content, errors.Join(err, unix.EINVAL))
	}
	return unix.Mkdev(uint32(ma), uint32(mi)), nil
}

// freeNumber asks the kernel for a device that is free now; it makes one where all are taken. Others may take it first.
func freeNumber() (int, error) {
	ctl, err := open(filepath.Join(devDir, "loop-control"), unix.O_RDWR)
	if err != nil {
		err = openError(err, "no control device: load the kernel module loop, and mount devtmpfs at /dev")
		return 0, fmt.Errorf("%w: %w", ErrNoDevice, err)
	}
	defer ctl.close()
	number := -1
	err = ignoringEINTR(func() (err error) { number, err = unix.IoctlRetInt(ctl.fd, unix.LOOP_CTL_GET_FREE); return err })
	if err != nil {
		return 0, fmt.Errorf("LOOP_CTL_GET_FREE: %w", err)
	}
	return number, nil
}

// opened opens the block device at path with O_EXCL for an instant.
func opened(ctx context.Context, path string) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, fmt.Errorf("looking whether %q is in use: %w", path, context.Cause(ctx))
	}
	st, err := os.Stat(path)
	if isMissing(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking whether a device is in use: %w", err)
	}
	if st.Mode()&(fs.ModeDevice|fs.ModeCharDevice) != fs.ModeDevice {
		return false, nil
	}
	return hasExclusiveUser(path)
}

// awaitReleased waits until the device is not in exclusive use, unless it is mounted.
func awaitReleased(ctx context.Context, path string) (mounted bool, err error) {
	wait := newWaiter()
	for range maxAttempt {
		if inUse, err := opened(ctx, path); err != nil || !inUse {
			return false, err
		}
		if mounted, err := isMounted(path); err != nil || mounted {
			return mounted, err
		}
		if err := wait.next(ctx); err != nil {
			return false, fmt.Errorf("waiting until %q is not in use: %w", path, err)
		}
	}
	return isInTable(path)
}

// isMounted reports whether the kernel lists the filesystem on the block device at path among those that are mounted, in any mount
// namespace. It has such lists for some types.
func isMounted(path string) (bool, error) {
	rdev, err := numberAt(path)
	if err != nil {
		return false, err
	}
	node, err := os.Readlink(sysDir(rdev))
	if err != nil {
		return false, fmt.Errorf("the name of device %d:%d: %w", unix.Major(rdev), unix.Minor(rdev), err)
	}
	name := filepath.Base(node)
	for _, list := range []string{"/sys/fs/ext4/", "/sys/fs/xfs/", "/sys/fs/btrfs/*/devices/"} {
		if found, err := filepath.Glob(list + name); err != nil || len(found) > 0 {
			return true, err
		}
	}
	return false, nil
}

// isInTable looks for the block device at path in the mount tables of all processes. If no table has it, the error is an
// *InUseError.
func isInTable(path string) (bool, error) {
	rdev, err := numberAt(path)
	if err != nil {
		return false, err
	}
	if len(mountedBy(Device{Path: path, Major: unix.Major(rdev), Minor: unix.Minor(rdev)})) > 0 {
		return true, nil
	}
	return false, &InUseError{Path: path}
}

func hasExclusiveUser(path string) (bool, error) {
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
