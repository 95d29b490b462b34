package main

import (
	"regexp"
	"slices"

	"golang.org/x/sys/unix"
)

// exception is a system call whose failure need not be reported.
type exception struct {
	call   string // what spell shows, as a regular expression
	errnos []unix.Errno
	again  bool // if it was made once more
	reason string
}

// exceptions returns all of them, with the reasons. A failure that looks like a success, also later, is none: then an
// operation has failed, or a warning was logged.
func exceptions() []exception {
	any, e2fsprogs := faults(), `^(mkfs\.ext4|e2fsck|resize2fs): `
	return []exception{
		{`.`, []unix.Errno{unix.EINTR}, true, "a call that a signal has interrupted was made once more"},

		{e2fsprogs + `pwrite64\(`, any, false, "e2fsprogs writes once more, by write, what pwrite64 did not"},
		{e2fsprogs + `fallocate\(`, any, false, "mkfs.ext4 writes zeros itself where it cannot have them made"},
		{e2fsprogs + `ioctl\(`, any, false, "e2fsprogs asks whether something is a device, and can do without the answer"},
		{`^mkfs\.ext4: fsync\(.*\.partial\)`, any, false, "the plugin syncs the image once more, which fails when anything could not be written"},
		{`^(e2fsck|resize2fs): fsync\(/dev/loop`, any, false, "what was written is in the cache of the device that is mounted next, which tells what cannot be"},
		{`^(e2fsck|resize2fs): write\(/dev/loop`, any, false, "e2fsprogs keeps it to itself; a check follows, which finds what is missing"},

		{`^ioctl\(/dev/loop\*, BLKGETDISKSEQ\)`, any, false, "a loop device without a number is known by its file"},
		{`^ioctl\(/dev/loop\*, LOOP_GET_STATUS64\)`, any, false, "a loop device that does not answer counts as one that has what it had"},

		{`^ioctl\(/dev/loop\*, LOOP_CONFIGURE\)`, []unix.Errno{unix.EBUSY}, true, "another process has taken a free loop device: another was taken"},
		{`^ioctl\(/dev/loop\*, LOOP_CLR_FD\)`, []unix.Errno{unix.EBUSY}, true, "a loop device that is busy was looked at, and detached with the next try"},
		{`^ioctl\(/dev/loop\*, LOOP_CLR_FD\)`, any, false, "the second of two calls asks whether the first was enough; the device is looked at until it has no file"},

		{`^(fsopen|open_tree|mount_setattr)\(`, []unix.Errno{unix.EPERM}, false, "a filter that does not know a call says so: the older one was made"},
		{
			`^(fallocate|pwrite64|fsync)\((root/attachments|run/volumes)/records\.log`, []unix.Errno{unix.ENOSPC}, true,
			"a log of records that has no room was written anew without what is past, and then had room",
		},
		{
			`^[a-z0-9]+\((root/attachments|run/volumes)(, "|/)\.tmp-records\.log`, any, false,
			"a log of records that could not be written anew stays as it was, and says the same",
		},
		{
			`^unlinkat\((root/attachments|run/volumes), "(records\.log|log\.record)"`, any, false,
			"an empty log of records that stays says the same, and goes with the next agent that ends",
		},
		{
			`^fsync\((root/attachments|run/volumes)\)`, any, false,
			"a log of records under its new name says the same as the one before; the name is durable before the next record is told of",
		},
		{`^mkdirat\(\., "root/pods`, any, false, "another volume of the pod has made the directory meanwhile"},
		{
			`^unlinkat\(\., "root/pods/.*, 0x200\)`, []unix.Errno{unix.EBUSY}, false,
			"a directory of a pod that is busy has a mount; it goes after the next volume of the pod",
		},
		{
			`^unlinkat\(root/pods/.*/kubernetes.io~empty-dir, "scratch", 0x0\)`, []unix.Errno{unix.EPERM}, false,
			"that is how some filesystems say that something is a directory, which then went as one",
		},
	}
}

// exceptionFor returns the reason why a failure need not be reported, or "".
func exceptionFor(one failure) string {
	for _, e := range exceptions() {
		if slices.Contains(e.errnos, one.errno) && (one.again || !e.again) && regexp.MustCompile(e.call).MatchString(one.call) {
			return e.reason
		}
	}
	return ""
}
