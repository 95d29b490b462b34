package format

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/volumekit/volumekit/internal/abandonable"
)

// The sentinels of this package. Match them with errors.Is; every one survives any wrapping.
var (
	// ErrNotBlank says that something was found where nothing may be. The error is a [*NotBlankError].
	ErrNotBlank = errors.New("not blank")
	// ErrNoTool says that a program is not installed. The error is a [*ToolError], which names the package.
	ErrNoTool = errors.New("program is not installed")
	// ErrDamaged says that a filesystem has errors that are not safe to repair without a person.
	ErrDamaged = errors.New("filesystem is damaged")
	// ErrUnknownType says that this package does not make or check filesystems of that type.
	ErrUnknownType = errors.New("unknown filesystem type")
	// ErrShrink says that a filesystem is larger than its device, which is never repaired by making the filesystem smaller.
	ErrShrink = errors.New("a filesystem is never made smaller")
	// ErrNotGrown says that an expansion failed, and that the filesystem is whole and has the size that it had.
	ErrNotGrown = errors.New("the filesystem has not grown")
	// ErrInUse says that a device is mounted somewhere, or opened with O_EXCL, and the call needs it unused.
	ErrInUse = errors.New("device in use")
	// ErrTooSmall says that a file or device has no size, or less than a filesystem takes. The error is a [*TooSmallError].
	ErrTooSmall = errors.New("too small for a filesystem")
	// ErrNoMedium says that a path is neither a regular file nor a block device.
	ErrNoMedium = errors.New("neither a regular file nor a block device")
)

// NotBlankError says what was found. It matches [ErrNotBlank].
type NotBlankError struct {
	// Path is the file or device.
	Path string
	// Offset is the place of the first byte that is not zero, in bytes from the start.
	Offset int64
	// Signature is what the content was recognised as; its Type is empty when it was not.
	Signature Signature
}

// Error says what was found and where.
func (e *NotBlankError) Error() string {
	what := "unknown data"
	if e.Signature.Type != "" {
		what = e.Signature.String()
	}
	return fmt.Sprintf("%q holds %s (first at byte %d): it is not formatted; wipe it yourself if it is not needed",
		e.Path, what, e.Offset)
}

// Unwrap returns ErrNotBlank.
func (e *NotBlankError) Unwrap() error { return ErrNotBlank }

// TooSmallError says how small a file or device is. A device that is not ready yet may report the size 0: the caller tries
// again later. It matches [ErrTooSmall].
type TooSmallError struct {
	// Path is the file or device.
	Path string
	// Size is what it has, and Least what a filesystem takes, in bytes.
	Size, Least int64
}

// Error names both sizes.
func (e *TooSmallError) Error() string {
	if e.Size == 0 {
		return fmt.Sprintf("%q has the size 0, as a device that is not ready: it is not taken for blank; try again when it has its size",
			e.Path)
	}
	return fmt.Sprintf("%q has %d bytes and a filesystem takes %d: it is not taken for blank; make it larger", e.Path, e.Size, e.Least)
}

// Unwrap returns ErrTooSmall.
func (e *TooSmallError) Unwrap() error { return ErrTooSmall }

// checkMedium returns an error that matches [ErrNoMedium] unless file is a regular file or a block device.
func checkMedium(file *os.File) (os.FileInfo, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if info.Mode().IsRegular() || info.Mode()&(os.ModeDevice|os.ModeCharDevice) == os.ModeDevice {
		return info, nil
	}
	return nil, fmt.Errorf("%q: %w", file.Name(), ErrNoMedium)
}

// ProveBlank returns nil when the regular file or block device at path is proven to be blank, as the package comment
// says. Otherwise the error matches [ErrNotBlank], or is why it could not be proven: what cannot be read is never blank, nor is
// what has less than the 8 MiB that the smallest filesystem takes ([ErrTooSmall]), as a device that is not ready yet.
// It reads at most 64 MiB of data and some samples of a device, and every byte of a file that was ever written.
func ProveBlank(ctx context.Context, path string) error {
	_, err := onPath(ctx, path, os.O_RDONLY, proveBlankOp)
	return err
}

func proveBlankOp(ctx context.Context, file *os.File) (nothing, error) {
	_, err := proveBlank(ctx, file)
	return nothing{}, err
}

// Probe returns what is on the regular file or block device at path: the zero Signature when nothing was recognised,
// which does not mean that it is blank. It reads the parts with the primary magic numbers only, and reports the one that the kernel
// would use. What cannot be read is an error.
func Probe(ctx context.Context, path string) (Signature, error) {
	return onPath(ctx, path, os.O_RDONLY, probeOp)
}

// ProbeFile is [Probe] for what the caller opened for reading.
func ProbeFile(ctx context.Context, file *os.File) (Signature, error) {
	return onFile(ctx, file, probeOp)
}

func probeOp(ctx context.Context, file *os.File) (Signature, error) {
	abandonable.Note(ctx, "read")
	return probe(ctx, file)
}

// MakeOptions says what filesystem to make.
type MakeOptions struct {
	// FSType is "ext2", "ext3", "ext4", "xfs" or "btrfs". Required.
	FSType string
	// Label is the filesystem's label; empty means none. What it may hold and how long it may be is the filesystem's.
	Label string
}

// Make makes a filesystem on the regular file or block device at path, after it has proven that it is blank, as
// [ProveBlank] does and with the same errors. [ErrTooSmall] also says that it is smaller than SizesOf(FSType).Least.
//
// A block device is open with O_EXCL from before the proof to the end of the tool: no other program mounts or formats it in
// between. If it is in exclusive use already, the error matches [ErrInUse]. The tool works on a loop device over it
// meanwhile, since it claims its device itself; without loop devices nothing is made. One that changes its size meanwhile
// is not formatted. No other process may have a regular file open for writing.
//
// When ctx ends, the tool is killed and has ended when Make returns, unless it
// does not die within a second: what is there then is neither blank nor a filesystem, and so it is after every failure of
// the tool, a [*ToolError]. It is never formatted again: who makes filesystems on devices keeps a record of it.
//
// Nothing is discarded, and a file of which all space was allocated has it afterwards, too. ext filesystems are made without
// blocks reserved for root, as Kubernetes does.
func Make(ctx context.Context, path string, options MakeOptions) error {
	_, err := onPath(ctx, path, os.O_RDWR, options.op)
	return err
}

// MakeFile is [Make] for what the caller opened for reading and writing.
func MakeFile(ctx context.Context, file *os.File, options MakeOptions) error {
	_, err := onFile(ctx, file, options.op)
	return err
}

func (o MakeOptions) op(ctx context.Context, file *os.File) (nothing, error) {
	return nothing{}, makeFilesystem(ctx, file, o)
}

// CheckResult is what a check did.
type CheckResult struct {
	// Checked is false for a filesystem that checks itself when it is mounted (xfs, btrfs): nothing was done.
	Checked bool
	// Repaired is true when something was wrong and is repaired.
	Repaired bool
	// Errors is how many errors an ext2, ext3 or ext4 had on record: those that the kernel had found in it while it was
	// mounted. The check has cleared them, also when it has found nothing to repair.
	Errors int
}

// Check checks the filesystem of type fsType on the file or device at path, which must not be mounted, and repairs what
// is safe to repair: e2fsck -p for ext2, ext3 and ext4, and -f -p for those that have errors on record. What is not safe to repair is left as it is and is an error that
// matches [ErrDamaged]. Filesystems that replay their journal and check themselves when they are mounted are left alone.
// A missing e2fsck is an error that matches [ErrNoTool]; the kernel replays a journal without it.
func Check(ctx context.Context, path, fsType string) (CheckResult, error) {
	return onPath(ctx, path, os.O_RDWR, func(ctx context.Context, file *os.File) (CheckResult, error) {
		return check(ctx, file, fsType)
	})
}

// GrowOptions says where the filesystem is that is to grow.
type GrowOptions struct {
	// MountPath is the absolute path at which the filesystem is mounted for writing, of which no last element may be a
	// symbolic link. Empty: it is mounted nowhere.
	MountPath string
}

// GrowResult is what became of a filesystem. The sizes are its own, in bytes; statfs tells less, since it leaves out what
// the filesystem needs for itself.
type GrowResult struct {
	// Before and After are the sizes of the filesystem.
	Before, After int64
}

// Grown reports whether the filesystem is larger than it was.
func (r GrowResult) Grown() bool { return r.After > r.Before }

// Grow expands the filesystem on the regular file or block device at path to the size of that file or device, and verifies the
// result. A filesystem that has this size already is no error. Grow never shrinks: a filesystem that is larger than its device is an
// error that matches [ErrShrink]. Grow compares the path with the mount: a mount of another filesystem matches mount.ErrForeign.
//
// A mounted ext2, ext3 or ext4 grows by EXT4_IOC_RESIZE_FS, which needs CAP_SYS_RESOURCE. If the kernel's ext2 cannot do that, the
// error matches mount.ErrUnsupported. One that is not mounted grows by e2fsck -f -p and resize2fs, with these errors:
//
//   - [ErrDamaged]: the check found what is not safe to repair;
//   - [ErrInUse]: the device is mounted all the same;
//   - mount.ErrUnsupported: resize2fs would have to move blocks, and nothing repairs that if it is interrupted.
//
// Only [GrowRecoverable] can be killed meanwhile and then be repaired. xfs and btrfs grow only while they are mounted
// (XFS_IOC_FSGROWFSDATA, BTRFS_IOC_RESIZE): without a mount the error matches mount.ErrNotMounted, and they grow after the next
// mount. A mounted filesystem grows by system calls on a descriptor of the mount: no child runs, and no path is resolved twice. Of a
// btrfs on several devices, the device at path grows. If ctx ends meanwhile, the error matches mount.ErrUncertain: the filesystem
// continues to grow and stays valid, and the next Grow finds out how far it came.
func Grow(ctx context.Context, path string, options GrowOptions) (GrowResult, error) {
	mode := os.O_RDWR
	if options.MountPath != "" {
		mode = os.O_RDONLY // the kernel may forbid to write to what is mounted
	}
	return growPath(ctx, path, mode, func(ctx context.Context, file *os.File) (GrowResult, error) {
		return grow(ctx, file, options)
	})
}

func growPath(
	ctx context.Context, path string, mode int, op func(context.Context, *os.File) (GrowResult, error),
) (GrowResult, error) {
	return onPath(ctx, path, mode, func(ctx context.Context, file *os.File) (GrowResult, error) {
		result, err := op(ctx, file)
		if err != nil {
			return result, fmt.Errorf("cannot grow the filesystem on %q: %w", path, err)
		}
		return result, nil
	})
}

// Room says how much of a device a filesystem uses.
type Room struct {
	// Filesystem and Device are the sizes of both, in bytes.
	Filesystem, Device int64
}

// Measure reads how large the filesystem on the regular file or block device at path is, and that itself. It needs one that
// [Grow] knows. Of one that is mounted what the superblock on the device says may be old.
func Measure(ctx context.Context, path string) (Room, error) {
	return onPath(ctx, path, os.O_RDONLY, func(ctx context.Context, file *os.File) (Room, error) {
		room, err := measure(ctx, file)
		if err != nil {
			return Room{}, fmt.Errorf("cannot measure the filesystem on %q: %w", path, err)
		}
		return room, nil
	})
}

// CanMake reports whether filesystems of type fsType can be made on this machine: nil, or an error that matches
// [ErrUnknownType] or [ErrNoTool].
func CanMake(fsType string) error { return canMake(fsType) }
