// Package format knows what is on a device, proves that nothing is, and then makes a filesystem.
//
// # The rule
//
// Nothing is formatted that is not proven blank. Tools that look for a signature and find none (blkid exits with 2) say
// so of a device that they cannot read, and of an ext4 filesystem whose first page was lost while its backups are whole;
// formatting then destroys data that could have been saved. Here the proof is the other way round: what cannot be read is
// an error, and what was read is all zeros.
//
//	err := format.ProveBlank(ctx, device)      // errors.Is(err, format.ErrNotBlank)
//	err = format.Make(ctx, device, format.MakeOptions{FSType: "ext4"}) // proves it again, on the same descriptor
//	found, err := format.Probe(ctx, device)    // {Type: "ext4", Kind: Filesystem}
//	err = format.Check(ctx, device, "ext4")    // repairs what is safe to repair, before it is mounted
//
// # What blank means
//
// A regular file, such as the image of a loop device, is blank when every byte that it has is zero. Holes and space that
// is allocated but was never written need not be read (SEEK_DATA), so that a new image of any size is proven in an
// instant.
//
// A device is blank when all places are zero where a filesystem, a partition table or a volume manager keeps its marks:
// the first and the last 8 MiB, the backup superblocks of ext2/3/4 (for every block size) and of btrfs, the places where
// xfs puts the heads of its allocation groups, and samples over the whole. A device of up to 64 MiB is read entirely.
//
// What has less than 8 MiB is not blank, whatever it holds: a device that is not ready may report a size of 0, and its data a
// moment later. A device is claimed (O_EXCL) before it is read, and until mkfs has ended.
//
// # Tools
//
// Filesystems are made by mkfs.TYPE and checked by e2fsck, found by absolute path in a fixed list of directories, never by
// the environment's PATH. A tool runs in a process group of its own, which is killed when the context ends; it gets the
// device as an open descriptor, so that it works on what was proven and on nothing that was put in its place (mkfs gets a loop
// device over that descriptor, which keeps the claim); it inherits
// nothing else. The end of its output is part of the error. A missing tool is an error that matches [ErrNoTool] and names
// the package to install.
//
// Everywhere but on Linux every function returns an error that matches mount.ErrUnsupported.
package format
