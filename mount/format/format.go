package format

import (
	"context"
	"errors"
	"fmt"
	"os"
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
// says. Otherwise the error matches [ErrNotBlank], or is why it could not be proven: what cannot be read is never blank.
// It reads at most 64 MiB of data and some samples of a device, and every byte of a file that was ever written.
func ProveBlank(ctx context.Context, path string) error {
	return withFile(path, func(file *os.File) error { return ProveBlankFile(ctx, file) })
}

// ProveBlankFile is [ProveBlank] for what the caller opened for reading.
func ProveBlankFile(ctx context.Context, file *os.File) error { return proveBlank(ctx, file) }

// Probe returns what is on the regular file or block device at path: the zero Signature when nothing was recognised,
// which does not mean that it is blank. It reads the places of the primary marks only, and reports the one that the kernel
// would use. What cannot be read is an error.
func Probe(ctx context.Context, path string) (Signature, error) {
	var found Signature
	err := withFile(path, func(file *os.File) (err error) {
		found, err = ProbeFile(ctx, file)
		return err
	})
	return found, err
}

// ProbeFile is [Probe] for what the caller opened for reading.
func ProbeFile(ctx context.Context, file *os.File) (Signature, error) { return probe(ctx, file) }

// MakeOptions says what filesystem to make.
type MakeOptions struct {
	// FSType is "ext2", "ext3", "ext4", "xfs" or "btrfs". Required.
	FSType string
	// Label is the filesystem's label; empty means none. What it may hold and how long it may be is the filesystem's.
	Label string
}

// Make makes a filesystem on the regular file or block device at path, after it has proven that it is blank, as
// [ProveBlank] does and with the same errors. When ctx ends, the tool is killed and has ended when Make returns: what is
// there then is neither blank nor a filesystem, and so it is after every failure of the tool, a [*ToolError].
//
// Nothing is discarded or punched, so that space which was allocated stays allocated. ext filesystems are made without
// blocks reserved for root, as Kubernetes does.
func Make(ctx context.Context, path string, options MakeOptions) error {
	return withFileFor(path, os.O_RDWR, func(file *os.File) error { return MakeFile(ctx, file, options) })
}

// MakeFile is [Make] for what the caller opened for reading and writing.
func MakeFile(ctx context.Context, file *os.File, options MakeOptions) error {
	return makeFilesystem(ctx, file, options)
}

// CheckResult is what a check did.
type CheckResult struct {
	// Checked is false for a filesystem that checks itself when it is mounted (xfs, btrfs): nothing was done.
	Checked bool
	// Repaired is true when something was wrong and is repaired.
	Repaired bool
}

// Check checks the filesystem of type fsType on the file or device at path, which must not be mounted, and repairs what
// is safe to repair: e2fsck -p for ext2, ext3 and ext4. What is not safe to repair is left as it is and is an error that
// matches [ErrDamaged]. Filesystems that replay their journal and check themselves when they are mounted are left alone.
// A missing e2fsck is an error that matches [ErrNoTool]; the kernel replays a journal without it.
func Check(ctx context.Context, path, fsType string) (CheckResult, error) {
	var result CheckResult
	err := withFileFor(path, os.O_RDWR, func(file *os.File) (err error) {
		result, err = check(ctx, file, fsType)
		return err
	})
	return result, err
}

// CanMake reports whether filesystems of type fsType can be made on this machine: nil, or an error that matches
// [ErrUnknownType] or [ErrNoTool].
func CanMake(fsType string) error { return canMake(fsType) }

func withFile(path string, do func(*os.File) error) error { return withFileFor(path, os.O_RDONLY, do) }

func withFileFor(path string, flags int, do func(*os.File) error) error {
	file, err := openMedium(path, flags)
	if err != nil {
		return err
	}
	defer file.Close()
	return do(file)
}
