package usage

import (
	"context"
	"errors"
	"fmt"
)

// Usage is the disk usage of a tree.
type Usage struct {
	// Bytes is the number of bytes that are allocated: blocks of 512 bytes, including those of directories.
	Bytes int64
	// Inodes is the number of files, directories and links of every kind, the root included.
	Inodes int64
	// ByQuota says that the numbers are the kernel's count for the project of the root, without a walk.
	ByQuota bool
}

// FSInfo is the size and the usage of a filesystem. It has the numbers of Kubernetes' FsInfo. Blocks are in units of f_frsize, like in
// POSIX statvfs.
type FSInfo struct {
	// Capacity is the size of the filesystem in bytes, without its own structures (f_blocks).
	Capacity int64
	// Available is how many bytes an ordinary user can still write (f_bavail).
	Available int64
	// Used is how many bytes are not free (f_blocks - f_bfree). If blocks are reserved for root, Used and Available together are less
	// than Capacity.
	Used int64
	// Inodes is the largest number of files (f_files). It, InodesFree and InodesUsed are zero if the filesystem does not count
	// inodes, like btrfs.
	Inodes int64
	// InodesFree is the number of free inodes (f_ffree).
	InodesFree int64
	// InodesUsed is the difference of Inodes and InodesFree.
	InodesUsed int64
	// Device is the device number (st_dev) of the file or directory at the path.
	Device uint64
}

// Expect says which filesystem is expected. The zero value accepts any.
type Expect struct {
	// MountPoint says that the path must be the root of a mount. Without a mount the path leads to the filesystem of the
	// directory above, whose numbers are not those of the volume.
	MountPoint bool
	// Device is the device number (st_dev, as stat(2) has it) that the path must have; zero means any. For btrfs that is
	// the number of the subvolume, which is not the one in the mount table.
	Device uint64
}

// ErrChanged says that the tree was moved while it was measured, so that the walk could not find its way. Measure again.
var ErrChanged = errors.New("the tree was moved while it was measured")

// ErrStuck says that a call did not begin because an abandoned call for the same path has not returned, or because there are too many
// abandoned calls ([Measurer.MaxAbandoned]). The error is transient: a later call may work.
var ErrStuck = errors.New("an earlier call has not returned")

// ErrWrongFilesystem matches every [WrongFilesystemError].
var ErrWrongFilesystem = errors.New("not the filesystem that is meant")

// WrongFilesystemError says that a path does not lead to the expected filesystem. It matches [ErrWrongFilesystem].
type WrongFilesystemError struct {
	// Path is the path of the call.
	Path string
	// Expected is the expected filesystem.
	Expected Expect
	// MountPoint says whether the path is the root of a mount.
	MountPoint bool
	// Device is the device number of the file or directory at the path.
	Device uint64
}

// Error says what is wrong.
func (e *WrongFilesystemError) Error() string {
	if e.Expected.MountPoint && !e.MountPoint {
		return fmt.Sprintf("filesystem of %q: nothing is mounted there", e.Path)
	}
	return fmt.Sprintf("filesystem of %q: device number %#x instead of %#x", e.Path, e.Device, e.Expected.Device)
}

// Is reports whether target is ErrWrongFilesystem.
func (e *WrongFilesystemError) Is(target error) bool { return target == ErrWrongFilesystem }

// AbandonedCall is a call that was abandoned and has not ended.
type AbandonedCall struct {
	// Call is the step in which it hangs: "walk", "open" or "statfs".
	Call string
	// Path is the path of the call.
	Path string
}

// Measure returns the disk usage of the tree at root, by a walk. It is [Measurer.Measure] for a single measurement: it does not know of
// earlier abandoned calls.
func Measure(ctx context.Context, root string) (Usage, error) {
	m := &Measurer{walksOnly: true}
	return m.Measure(ctx, root)
}

// FS returns the size and the usage of the filesystem at path. It is [Measurer.FS] for a single call: it does not know of earlier abandoned
// calls.
func FS(ctx context.Context, path string, expect Expect) (FSInfo, error) {
	return new(Measurer).FS(ctx, path, expect)
}
