// Package usage measures how much disk space a directory tree occupies, as du(1) does, and how full a filesystem is, as
// df(1) does. It is for volumes: a volume that shares a filesystem with others is a tree, whose use statfs cannot tell;
// one with a filesystem of its own is asked for by [Meter.FS].
//
// # Words
//
// A tree is a directory, its root, and what is below it. A call is abandoned when its context has ended and a system
// call has not: a server that is dead, or a disk that does not answer, may hold it for ever. A project is a number that
// ext4, xfs and f2fs keep for each file and by which they count blocks and inodes.
//
// # What is counted
//
// What is allocated: blocks of 512 bytes, so that a sparse file counts only what was written to it. A file with several
// hard links counts once, wherever in the tree its names are. A directory counts like a file.
//
// One filesystem: what is mounted below the root does not count, nor does what is below it there. That is so for a
// directory and for a single file on which another is mounted: the rest of their directory counts. It is the mount that
// matters and not the device number: a directory of the same filesystem that is bound into the tree does not count, since
// it lies elsewhere, while a subvolume of btrfs does, and so do the files of an overlay whatever layer they are from.
//
// A symbolic link counts as the file that it is and is never followed; so does a root that is a symbolic link.
//
// # What may happen meanwhile
//
// The tree may change while it is measured: what vanishes is left out, and what is moved may be seen twice or not at
// all. Everything below the root is opened relative to the descriptor of its directory, so that nobody who can write
// there can lead the walk out of the tree, and neither depth nor the number of files costs descriptors.
//
// A caller returns when its context ends, even if the kernel does not. What it leaves behind is listed by [Meter.Lost],
// at most one call for each path and [Meter.MaxAbandoned] in all; until that call has ended, another for the same path fails
// at once with an error that matches [ErrStuck].
//
// # A walk-through
//
//	meter := &usage.Meter{}                               // one for a program; the zero value is ready to use
//	used, err := meter.Measure(ctx, "/var/lib/x/data")    // du -s
//	switch {
//	case errors.Is(err, fs.ErrNotExist):                  // the root is gone
//	case errors.Is(err, usage.ErrStuck):                  // the call before this one still hangs
//	}
//	info, err := meter.FS(ctx, "/var/lib/x/volume", usage.Expect{MountPoint: true}) // df
//	if errors.Is(err, usage.ErrWrongFilesystem) {         // nothing is mounted there: these would be the numbers of /
//	}
//
// # Project quotas
//
// Where the root belongs to a project that its files inherit, and the filesystem counts projects, [Meter.Measure] asks
// the kernel for the count instead of walking. Such a count is of every file of the project wherever it is, and of none
// of another project, so it is believed only while it is that of the tree: see [Meter.Measure] for what is guaranteed.
//
// # When not to use it
//
// To bound what a volume may use: a measurement is late, a quota or a filesystem of its own is not. For a tree that is
// measured more often than it changes, wrap the measurement in a cache.
package usage
