package mount

import "context"

// FilesystemReport is what a filesystem on a block device tells of its own health, beside its options. The zero value is that of
// a filesystem that tells nothing.
type FilesystemReport struct {
	// ShutDown says that the filesystem was shut down after a failure. An xfs shows this in no option.
	ShutDown bool
	// Errors is how many errors it has on record, over all mounts until a check clears them: those that ext4 has found in
	// itself (ext2 and ext3, too), those of the device of a btrfs.
	Errors uint64
	// LastError says where and when ext4 found the last error; empty if that is not known.
	LastError string
	// Complaints is how often ext4 has written to the kernel's log since it was mounted, and Warnings how many of that were
	// warnings. It complains of each failed write of data, and of harmless things too: more complaints are a reason to look,
	// and no proof.
	Complaints, Warnings uint64
}

// Report returns what the filesystem of a mount tells, which is found as [Mounter.Lookup] has returned it. ext2, ext3, ext4,
// xfs and btrfs tell something, others nothing. Of ext4 it reads files of sysfs, which no storage can hold up; the root
// directory of an xfs or a btrfs is opened, so that this mount is busy for a moment. The call returns when ctx ends, with a
// [*AbandonedError] when the root could not be opened by then.
//
// The error matches [ErrNotMounted] when another mount than found is at its path.
func (m *Mounter) Report(ctx context.Context, found MountPoint) (FilesystemReport, error) {
	return m.report(ctx, found)
}
