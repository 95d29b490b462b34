// Package format finds out what is on a device, proves that a device is blank, and then makes a filesystem.
//
// # The rule
//
// Only a device that is proven blank is formatted. Tools that search for a signature and find none (blkid exits with 2) also
// report "none" for a device that they cannot read, and for an ext4 filesystem whose first page was lost while its backups are
// whole. Formatting then destroys data that could have been saved. This package proves the opposite: what cannot be read is an
// error, and everything that was read is zero.
//
//	err := format.ProveBlank(ctx, device)      // errors.Is(err, format.ErrNotBlank)
//	err = format.Make(ctx, device, format.MakeOptions{FSType: "ext4"}) // proves it again, on the same descriptor
//	found, err := format.Probe(ctx, device)    // {Type: "ext4", Kind: Filesystem}
//	err = format.Check(ctx, device, "ext4")    // repairs what is safe to repair, before it is mounted
//
// # What blank means
//
// A regular file, such as the image of a loop device, is blank if every allocated byte is zero. Holes, and space that is
// allocated but was never written, are not read (SEEK_DATA), so a new image of any size is proven at once.
//
// A device is blank if every place is zero in which a filesystem, a partition table or a volume manager keeps its signatures:
// the first and the last 8 MiB, the backup superblocks of ext2/3/4 (for every block size) and of btrfs, the allocation group
// headers of xfs, and samples over the whole device. A device of up to 64 MiB is read entirely.
//
// A device of less than 8 MiB is not blank, whatever it holds: a device that is not ready may report a size of 0, and its data
// a moment later. The package holds a device exclusively (O_EXCL) from before it reads it until mkfs has ended.
//
// # Tools
//
// Filesystems are made by mkfs.TYPE and checked by e2fsck, which are found by absolute path in a fixed list of directories,
// never through PATH. A tool runs in a process group of its own, which is killed when the context ends. It gets the device as
// an open descriptor, so it works on the device that was proven and not on a replacement. (mkfs gets a loop device over that
// descriptor, which keeps it exclusive.) It inherits nothing else. The error contains the end of its output. A missing tool is
// an error that matches [ErrNoTool] and names the package to install.
//
// On systems other than Linux every function returns an error that matches mount.ErrUnsupported.
package format
