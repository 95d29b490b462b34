package usage

import (
	"context"
	"errors"
	"fmt"
)

// Usage is what a tree occupies.
type Usage struct {
	// Bytes is the number of bytes that are allocated: blocks of 512 bytes, including those of directories.
	Bytes int64
	// Inodes is the number of files, directories and links of every kind, the root included.
	Inodes int64
	// ByQuota says that the numbers are what the kernel counts for the project of the root, and that nothing was walked.
	ByQuota bool
}

// FSInfo is how full a filesystem is. The numbers are those that Kubernetes calls FsInfo, with blocks in units of
// f_frsize, as POSIX has it for statvfs.
type FSInfo struct {
	// Capacity is the size of the filesystem in bytes, without what it needs for itself (f_blocks).
	Capacity int64
	// Available is what an ordinary user may still write, in bytes (f_bavail).
	Available int64
	// Used is what is not free, in bytes (f_blocks - f_bfree). Used and Available are less than Capacity together where
	// blocks are kept for root.
	Used int64
	// Inodes is the number of files that there can be (f_files). It and the other two are zero where the filesystem does
	// not count inodes, as btrfs does not.
	Inodes int64
	// InodesFree is how many more there can be (f_ffree).
	InodesFree int64
	// InodesUsed is the difference.
	InodesUsed int64
	// Device is the device number (st_dev) of what the path led to.
	Device uint64
}

// Expect says which filesystem is meant. The zero value takes whatever is there.
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

// ErrStuck says that a call was not begun because one that was abandoned for the same path has not returned, or
// because too many have not ([Meter.MaxAbandoned]). It comes with an error that is transient: a later call may work.
var ErrStuck = errors.New("an earlier call has not returned")

// ErrWrongFilesystem is what every [WrongFilesystemError] matches.
var ErrWrongFilesystem = errors.New("not the filesystem that is meant")

// WrongFilesystemError says that a path does not lead to the filesystem that [Expect] asks for. It matches
// [ErrWrongFilesystem].
type WrongFilesystemError struct {
	// Path is the path that was asked for.
	Path string
	// Expected is what should have been there.
	Expected Expect
	// MountPoint says whether the path is the root of a mount.
	MountPoint bool
	// Device is the device number of what the path led to.
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
	// Call is what it was last seen in: "walk", "open" or "statfs".
	Call string
	// Path is the path that it is about.
	Path string
}

// Measure returns what the tree at root occupies, by a walk. It is [Meter.Measure] for who measures once: nothing is
// known of calls that were abandoned earlier.
func Measure(ctx context.Context, root string) (Usage, error) {
	m := &Meter{walksOnly: true}
	return m.Measure(ctx, root)
}

// FS returns how full the filesystem at path is. It is [Meter.FS] for who asks once: nothing is known of calls that were
// abandoned earlier.
func FS(ctx context.Context, path string, expect Expect) (FSInfo, error) {
	return new(Meter).FS(ctx, path, expect)
}
