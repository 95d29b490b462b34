package format

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/lostcall"
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

// replayXFS mounts the filesystem in a file where nobody sees it, and unmounts it. Mount and loop device end with their last
// descriptor, that of a process that is killed included.
func replayXFS(ctx context.Context, file *os.File) error {
	device, err := attachForNow(ctx, file)
	if err != nil {
		return err
	}
	defer device.Close()
	if err := lostcall.Begin(ctx, "fsopen"); err != nil {
		return err
	}
	fs, err := unix.Fsopen("xfs", unix.FSOPEN_CLOEXEC)
	if errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("fsopen: it takes Linux 5.2: copy the volume while it is not in use: %w: %w", mount.ErrUnsupported, err)
	}
	if err != nil {
		return fmt.Errorf("fsopen: %w", err)
	}
	err = errors.Join(
		unix.FsconfigSetString(fs, "source", device.Name()),
		unix.FsconfigSetFlag(fs, "nouuid"),
	)
	if err == nil {
		lostcall.Note(ctx, "mount of xfs")
		err = unix.FsconfigCreate(fs)
	}
	return errors.Join(err, unix.Close(fs)) // which unmounts
}

// maxAttach is how often others may take a free loop device from under us.
const maxAttach = 64

// attachForNow attaches a file to a loop device that the kernel detaches when the descriptor is closed.
func attachForNow(ctx context.Context, file *os.File) (*os.File, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	for range maxAttach {
		if err := lostcall.Begin(ctx, "LOOP_CONFIGURE"); err != nil {
			return nil, err
		}
		var number int
		err := onDescriptor(control, func(fd int) (err error) {
			number, err = unix.IoctlRetInt(fd, unix.LOOP_CTL_GET_FREE)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("LOOP_CTL_GET_FREE: %w", err)
		}
		device, err := configureForNow(fmt.Sprintf("/dev/loop%d", number), file)
		if !errors.Is(err, unix.EBUSY) {
			return device, err
		}
	}
	return nil, fmt.Errorf("every loop device was taken by others: %w", unix.EBUSY)
}

func configureForNow(path string, file *os.File) (*os.File, error) {
	device, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	err = onDescriptor(file, func(backing int) error {
		return onDescriptor(device, func(fd int) error {
			return unix.IoctlLoopConfigure(fd, &unix.LoopConfig{
				Fd: uint32(backing), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR},
			})
		})
	})
	if err != nil {
		device.Close()
		return nil, fmt.Errorf("LOOP_CONFIGURE of %s: %w", path, err)
	}
	return device, nil
}
