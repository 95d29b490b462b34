package usage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/abandonable"
)

// statxNoServer are flags of statx: query no server. The kernel itself knows the results.
const statxNoServer = unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC

// filesystem is FS.
func filesystem(ctx context.Context, path string, expect Expect) (FSInfo, error) {
	return filesystemBy(ctx, locationOf, path, expect)
}

// filesystemBy is filesystem with a function that describes an open file. It checks and measures the same descriptor.
func filesystemBy(
	ctx context.Context, describe func(int) (location, error), path string, expect Expect,
) (FSInfo, error) {
	if err := abandonable.Begin(ctx, "open"); err != nil {
		return FSInfo{}, err
	}
	fd, err := openAt(unix.AT_FDCWD, path, unix.O_PATH)
	if err != nil {
		return FSInfo{}, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer closeFD(fd)
	place, err := describe(fd)
	if err != nil {
		return FSInfo{}, &fs.PathError{Op: "statx", Path: path, Err: err}
	}
	if !expect.met(place) {
		return FSInfo{}, &WrongFilesystemError{
			Path: path, Expected: expect, MountPoint: place.isMountRoot, Device: place.device,
		}
	}
	if err := abandonable.Begin(ctx, "statfs"); err != nil {
		return FSInfo{}, err
	}
	var st unix.Statfs_t
	if err := retry(func() error { return unix.Fstatfs(fd, &st) }); err != nil {
		return FSInfo{}, &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	info := infoOf(&st)
	info.Device = place.device
	return info, nil
}

// location is the device of an open file, and whether the file is the root of a mount.
type location struct {
	device      uint64
	isMountRoot bool
}

func (e Expect) met(p location) bool {
	return (!e.MountPoint || p.isMountRoot) && (e.Device == 0 || e.Device == p.device)
}

// locationOf returns the location of an open file. It queries no server.
func locationOf(fd int) (location, error) {
	var st unix.Statx_t
	err := retry(func() error { return unix.Statx(fd, "", unix.AT_EMPTY_PATH|statxNoServer, 0, &st) })
	switch {
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM): // an old kernel, or a filter that does not know statx
		return locationByIDs(fd)
	case err != nil:
		return location{}, err
	case st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0: // before Linux 5.8
		return locationByIDs(fd)
	}
	return location{
		device:      unix.Mkdev(st.Dev_major, st.Dev_minor),
		isMountRoot: st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0,
	}, nil
}

// locationByIDs is locationOf for kernels that do not say what is the root of a mount. A directory is one when the directory
// above belongs to another mount, or when there is none above.
func locationByIDs(fd int) (location, error) {
	var st, above unix.Stat_t
	if err := retry(func() error { return unix.Fstat(fd, &st) }); err != nil {
		return location{}, err
	}
	p := location{device: st.Dev}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return p, fmt.Errorf("whether a file is mounted there: %w", errors.ErrUnsupported)
	}
	up, err := openAt(fd, "..", unix.O_PATH)
	if err != nil {
		return location{}, err
	}
	defer closeFD(up)
	if err := retry(func() error { return unix.Fstat(up, &above) }); err != nil {
		return location{}, err
	}
	here, err := mountID(fd)
	if err != nil {
		return location{}, err
	}
	there, err := mountID(up)
	p.isMountRoot = !bytes.Equal(here, there) || above.Dev == st.Dev && above.Ino == st.Ino
	return p, err
}

// mountID returns the line of the mount's number in what the kernel says of a descriptor (proc_pid_fdinfo(5)).
func mountID(fd int) ([]byte, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	if err != nil {
		return nil, err
	}
	for line := range bytes.Lines(content) {
		if bytes.HasPrefix(line, []byte("mnt_id:")) {
			return line, nil
		}
	}
	return nil, fmt.Errorf("no mount in /proc/self/fdinfo: %w", errors.ErrUnsupported)
}

// infoOf reads st. The counts of blocks are in units of Frsize; Bsize is but the best size of a transfer.
func infoOf(st *unix.Statfs_t) FSInfo {
	unit := uint64(max(st.Frsize, 0))
	if unit == 0 {
		unit = uint64(max(st.Bsize, 0)) // as the kernel did before it knew f_frsize
	}
	info := FSInfo{
		Capacity:  bytesOf(st.Blocks, unit),
		Available: bytesOf(st.Bavail, unit),
		Used:      bytesOf(less(st.Blocks, st.Bfree), unit),
	}
	if st.Files > 0 {
		info.Inodes = clamp(st.Files)
		info.InodesFree = clamp(st.Ffree)
		info.InodesUsed = clamp(less(st.Files, st.Ffree))
	}
	return info
}

func bytesOf(n, unit uint64) int64 {
	if unit > 0 && n > math.MaxInt64/unit {
		return math.MaxInt64
	}
	return clamp(n * unit)
}

// less returns a-b, and zero for a server that says that more is free than there is.
func less(a, b uint64) uint64 { return a - min(a, b) }

func clamp(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// openAt opens name, never to be inherited by a child process.
func openAt(at int, name string, flags int) (fd int, err error) {
	err = retry(func() (err error) {
		fd, err = unix.Openat(at, name, flags|unix.O_CLOEXEC, 0)
		return err
	})
	return fd, err
}

// closeFD closes a descriptor that was only read from; Linux closes it whatever close returns.
func closeFD(fd int) { _ = unix.Close(fd) }

// retry calls f until it is not interrupted by a signal.
func retry(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
