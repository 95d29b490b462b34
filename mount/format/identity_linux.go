package format

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/abandonable"
	"github.com/volumekit/volumekit/internal/descriptor"
	"github.com/volumekit/volumekit/mount"
)

func renew(ctx context.Context, file *os.File, fsType string) error {
	r, err := renewerOf(fsType)
	if err != nil {
		return err
	}
	before, err := r.identity(file)
	if err != nil {
		return err
	}
	if err := makeWhole(ctx, file, fsType); err != nil {
		return err
	}
	if err := run(ctx, r.tool, r.pkg, r.args, file); err != nil {
		return err
	}
	after, err := r.identity(file)
	if err == nil && after == before && fsType == "xfs" {
		after, err = r.afterReplay(ctx, file)
	}
	if err == nil && after == before {
		err = fmt.Errorf("%s succeeded and left it as it was: %w", r.tool, ErrDamaged)
	}
	return err
}

// makeWhole brings a filesystem into the state in which its tool works on it, where that takes no mount.
func makeWhole(ctx context.Context, file *os.File, fsType string) error {
	switch fsType {
	case "xfs":
		return nil
	case "btrfs":
		logged, err := hasLogTree(file)
		if err == nil && logged {
			err = fmt.Errorf("it has a log tree: copy it again, or while it is mounted nowhere: %w", ErrInUse)
		}
		return err
	}
	_, err := checkExt(ctx, file, []string{"-f", "-p"})
	return err
}

// btrfsLogRoot is where the superblock has the address of the log tree, from fs/btrfs/ctree.h; zero means none.
const btrfsLogRoot = 0x60

func hasLogTree(file *os.File) (bool, error) {
	address, err := readAt(file, btrfsSuperblock+btrfsLogRoot, 8)
	return err == nil && binary.LittleEndian.Uint64(address) != 0, err
}

// afterReplay is for an xfs that its tool has refused, since its log is not empty. The kernel empties it.
func (r renewer) afterReplay(ctx context.Context, file *os.File) (string, error) {
	if err := replayXFS(ctx, file); err != nil {
		return "", fmt.Errorf("replaying its log: %w", err)
	}
	if err := run(ctx, r.tool, r.pkg, r.args, file); err != nil {
		return "", err
	}
	return r.identity(file)
}

// replayXFS mounts the filesystem in a file where no other process sees it, and unmounts it. Mount and loop device end with their last
// descriptor, that of a process that is killed included.
func replayXFS(ctx context.Context, file *os.File) error {
	device, err := attachForNow(ctx, file)
	if err != nil {
		return err
	}
	defer device.Close()
	return mountForNow(ctx, device.Name())
}

// mountForNow waits for those who have the device for a moment. It cannot be kept from them: the kernel mounts nothing that
// another program has opened alone (O_EXCL), and a program that was told the number of a free device before it was ours may do so.
func mountForNow(ctx context.Context, device string) error {
	return whileBusy(ctx, func() error {
		fs, err := unix.Fsopen("xfs", unix.FSOPEN_CLOEXEC)
		if errors.Is(err, unix.ENOSYS) {
			return fmt.Errorf("fsopen: it takes Linux 5.2: copy the volume while it is not in use: %w: %w", mount.ErrUnsupported, err)
		}
		if err != nil {
			return fmt.Errorf("fsopen: %w", err)
		}
		err = errors.Join(
			unix.FsconfigSetString(fs, "source", device),
			unix.FsconfigSetFlag(fs, "nouuid"), // the original may be mounted
		)
		if err == nil {
			abandonable.Note(ctx, "mount of xfs")
			err = unix.FsconfigCreate(fs)
		}
		return errors.Join(err, unix.Close(fs)) // which unmounts
	})
}

// attachForNow attaches a file to a loop device that the kernel detaches when the descriptor is closed. The kernel goes on
// naming one as free that another program has opened alone, in order to use it.
func attachForNow(ctx context.Context, file *os.File) (device *os.File, err error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	err = whileBusy(ctx, func() error {
		var number int
		err := descriptor.Call(control, func(fd int) (err error) {
			number, err = unix.IoctlRetInt(fd, unix.LOOP_CTL_GET_FREE)
			return err
		})
		if err != nil {
			return fmt.Errorf("LOOP_CTL_GET_FREE: %w", err)
		}
		device, err = configureForNow(fmt.Sprintf("/dev/loop%d", number), file)
		return err
	})
	return device, err
}

// How often a loop device that others have is tried, and how long is waited in between: some seconds in all. They have it for
// the length of a system call or two.
const (
	maxBusy   = 128
	pause     = 200 * time.Microsecond
	longPause = 50 * time.Millisecond
)

// whileBusy does something again as long as others have the loop device, unless they keep it.
func whileBusy(ctx context.Context, do func() error) error {
	wait := pause
	for try := 1; ; try++ {
		if err := abandonable.Begin(ctx, "loop device"); err != nil {
			return err
		}
		err := do()
		if !errors.Is(err, unix.EBUSY) {
			return err
		}
		if try == maxBusy {
			return fmt.Errorf("others keep the loop device: %w: %w", ErrInUse, err)
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done(): // which is told by what comes next
			timer.Stop()
		}
		wait = min(2*wait, longPause)
	}
}

func configureForNow(path string, file *os.File) (*os.File, error) {
	device, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	err = descriptor.Call(file, func(backing int) error {
		sector, err := sectorOf(backing)
		if err != nil {
			return err
		}
		return descriptor.Call(device, func(fd int) error {
			return unix.IoctlLoopConfigure(fd, &unix.LoopConfig{
				Fd: uint32(backing), Size: sector, Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR},
			})
		})
	})
	if err != nil {
		device.Close()
		return nil, fmt.Errorf("LOOP_CONFIGURE of %s: %w", path, err)
	}
	return device, nil
}

// sectorOf returns how many bytes a sector of a block device has, so that a loop device over it has such ones, too; 0, which
// leaves the choice to the kernel, for a file.
func sectorOf(fd int) (uint32, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return 0, err
	}
	sector, err := unix.IoctlGetInt(fd, unix.BLKSSZGET)
	if err != nil {
		return 0, fmt.Errorf("BLKSSZGET: %w", err)
	}
	return uint32(sector), nil
}
