package mount

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/abandonable"
)

// report is Report.
func (m *Mounter) report(ctx context.Context, found MountPoint) (FilesystemReport, error) {
	switch found.FSType {
	case "ext2", "ext3", "ext4":
		return reportOfExt(found)
	case "xfs", "btrfs":
		return abandonable.Value(ctx, m.calls, abandonable.Key{Look: true, Path: found.Path}, func(ctx context.Context) (FilesystemReport, error) {
			return m.reader.reportOfRoot(ctx, found)
		})
	}
	return FilesystemReport{}, nil
}

// reportOfExt reads what ext4 has in sysfs. A kernel that lacks one of the files does not count that.
func reportOfExt(found MountPoint) (r FilesystemReport, err error) {
	device, err := os.Readlink(fmt.Sprintf("/sys/dev/block/%d:%d", found.Major, found.Minor))
	if err != nil {
		return r, fmt.Errorf("the device of the filesystem at %q: %w", found.Path, err)
	}
	facts := extFacts{dir: filepath.Join("/sys/fs/ext4", filepath.Base(device))}
	r.Errors, r.Warnings = facts.number("errors_count"), facts.number("warning_count")
	r.Complaints = r.Errors + r.Warnings + facts.number("msg_count")
	if r.Errors > 0 {
		r.LastError = facts.lastError()
	}
	if facts.err != nil {
		return FilesystemReport{}, fmt.Errorf("what the filesystem at %q tells: %w", found.Path, facts.err)
	}
	return r, nil
}

// extFacts are the files of one ext4, and the first error of reading them.
type extFacts struct {
	dir string
	err error
}

func (f *extFacts) text(name string) string {
	content, err := os.ReadFile(filepath.Join(f.dir, name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) && f.err == nil {
		f.err = err
	}
	return strings.TrimSpace(string(content))
}

func (f *extFacts) number(name string) uint64 {
	text := f.text(name)
	if text == "" {
		return 0
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil && f.err == nil {
		f.err = err
	}
	return n
}

func (f *extFacts) lastError() string {
	where, seconds := f.text("last_error_func"), f.number("last_error_time")
	if where == "" || seconds == 0 {
		return ""
	}
	return fmt.Sprintf("the last one in %s at %s", where, time.Unix(int64(seconds), 0).UTC().Format(time.RFC3339))
}

// reportOfRoot opens the root directory, which an xfs refuses that was shut down, and asks a btrfs for the errors of its device.
func (r *reader) reportOfRoot(ctx context.Context, found MountPoint) (report FilesystemReport, err error) {
	p, err := r.openParent(ctx, found.Path)
	if err != nil {
		return report, err
	}
	defer p.close()
	// A descriptor of O_PATH asks no filesystem, and says which mount it is of.
	root, err := retryOpen(func() (int, error) {
		return unix.Openat(p.parent, p.base, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return report, fmt.Errorf("open %q: %w", found.Path, err)
	}
	defer closeFD(root)
	if id, err := mountID(root); err != nil || id != found.ID {
		return report, fmt.Errorf("another mount is at %q: %w", found.Path, errors.Join(ErrNotMounted, err))
	}
	if err := abandonable.Begin(ctx, "open"); err != nil {
		return report, err
	}
	fd, err := retryOpen(func() (int, error) {
		return unix.Open(fdPath(root), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	})
	if found.FSType == "xfs" && errors.Is(err, unix.EIO) {
		return FilesystemReport{ShutDown: true}, nil
	}
	if err != nil {
		return report, fmt.Errorf("open %q: %w", found.Path, err)
	}
	defer closeFD(fd)
	if found.FSType == "btrfs" {
		report.Errors, err = btrfsErrors(fd)
	}
	return report, err
}

// btrfsDeviceStats is struct btrfs_ioctl_get_dev_stats of linux/btrfs.h.
type btrfsDeviceStats struct {
	device uint64
	items  uint64
	flags  uint64
	// values are the failed writes, reads and flushes, and what was read and was wrong, or of an earlier generation.
	values [5]uint64
	unused [121]uint64
}

// btrfsGetDeviceStats is BTRFS_IOC_GET_DEV_STATS.
const btrfsGetDeviceStats = 0xc4089434

// btrfsErrors returns the errors on record of the first device; a volume has no other.
func btrfsErrors(fd int) (sum uint64, err error) {
	stats := btrfsDeviceStats{device: 1, items: 5}
	err = retry(func() error {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), btrfsGetDeviceStats, uintptr(unsafe.Pointer(&stats))); errno != 0 {
			return errno
		}
		return nil
	})
	if errors.Is(err, unix.ENODEV) {
		return 0, nil // that device was taken out
	}
	if err != nil {
		return 0, fmt.Errorf("BTRFS_IOC_GET_DEV_STATS: %w", err)
	}
	for _, n := range stats.values {
		sum += n
	}
	return sum, nil
}
