// Package usage measures how much disk space a directory tree occupies, as du(1) does, and how full a filesystem is, as
// df(1) does. A volume that shares a filesystem with others is a tree, whose use statfs does not report. [Measurer.FS]
// measures a volume with a filesystem of its own.
//
// # Words
//
// A tree is a directory, its root, and everything below it. A call is abandoned when its context has ended and a system
// call has not: a dead server, or a disk that does not answer, may hold it for ever. A project is a number that ext4, xfs
// and f2fs keep for each file, and by which they count blocks and inodes.
//
// # What is counted
//
// Measure counts allocated blocks of 512 bytes, so a sparse file counts only what was written to it. A file with several
// hard links counts once, wherever in the tree its names are. A directory counts like a file.
//
// Measure counts one filesystem. What is mounted below the root does not count, and neither does the content that the
// mount hides. This holds for a directory and for a single file on which another is mounted; the rest of their directory
// counts. The mount matters, not the device number. A directory of the same filesystem that is bound into the tree does
// not count, because it lies elsewhere. A subvolume of btrfs counts, and so do the files of an overlay from every layer.
//
// A symbolic link counts as a file and is never followed, even if it is the root.
//
// # Changes during a measurement
//
// The tree may change while it is measured. Files that are removed meanwhile do not count, and moved files may count
// twice or not at all. Everything below the root is opened relative to the descriptor of its directory. So no writer in
// the tree can lead the walk out of it, and neither depth nor the number of files costs descriptors.
//
// A call returns when its context ends, even if the kernel does not. [Measurer.Abandoned] lists the abandoned calls, at most one
// for each path and [Measurer.MaxAbandoned] in all. Until such a call has ended, another one for the same path fails at once with
// an error that matches [ErrStuck].
//
// # A walk-through
//
//	measurer := &usage.Measurer{}                               // one for a program; the zero value is ready to use
//	used, err := measurer.Measure(ctx, "/var/lib/x/data")    // du -s
//	switch {
//	case errors.Is(err, fs.ErrNotExist):                  // the root is gone
//	case errors.Is(err, usage.ErrStuck):                  // the call before this one still hangs
//	}
//	info, err := measurer.FS(ctx, "/var/lib/x/volume", usage.Expect{MountPoint: true}) // df
//	if errors.Is(err, usage.ErrWrongFilesystem) {         // nothing is mounted there: these would be the numbers of /
//	}
//
// # Project quotas
//
// If the root belongs to a project that its files inherit, and the filesystem counts projects, [Measurer.Measure] reads the
// kernel's count and does not walk. That count covers every file of the project wherever it is, and no file of another
// project. So Measure uses it only while it equals that of the tree: see [Measurer.Measure] for the guarantee.
//
// # When not to use it
//
// Do not use it to limit a volume: a measurement is late, a quota or a filesystem of its own is not. For a tree that is
// measured more often than it changes, wrap the measurement in a cache.
package usage
