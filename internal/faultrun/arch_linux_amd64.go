package faultrun

import "golang.org/x/sys/unix"

// arch is the architecture whose numbers these are, as a filter is told it.
const arch = unix.AUDIT_ARCH_X86_64

// olderChanging are the calls that this architecture has beside their successors, and that C programs still make.
func olderChanging() []rule {
	rules := always(
		unix.SYS_MKDIR, unix.SYS_RMDIR, unix.SYS_MKNOD, unix.SYS_UNLINK, unix.SYS_RENAME, unix.SYS_RENAMEAT, unix.SYS_LINK,
		unix.SYS_SYMLINK, unix.SYS_CREAT, unix.SYS_CHMOD, unix.SYS_CHOWN, unix.SYS_LCHOWN,
	)
	rules = append(rules, flagged(unix.SYS_OPEN, 1, unix.O_CREAT)...)
	return append(rules, flagged(unix.SYS_OPEN, 1, unix.O_TRUNC)...)
}

// olderFiles are the calls about files that this architecture has beside their successors.
func olderFiles() []rule {
	return always(
		unix.SYS_OPEN, unix.SYS_CREAT, unix.SYS_STAT, unix.SYS_LSTAT, unix.SYS_NEWFSTATAT, unix.SYS_ACCESS, unix.SYS_READLINK,
		unix.SYS_MKDIR, unix.SYS_RMDIR, unix.SYS_MKNOD, unix.SYS_UNLINK, unix.SYS_RENAME, unix.SYS_RENAMEAT, unix.SYS_LINK,
		unix.SYS_SYMLINK, unix.SYS_CHMOD, unix.SYS_CHOWN, unix.SYS_LCHOWN, unix.SYS_GETDENTS,
	)
}

func olderSpellings() map[uint32]spelling {
	return map[uint32]spelling{
		unix.SYS_MKDIR:    {"mkdir", "p"},
		unix.SYS_RMDIR:    {"rmdir", "p"},
		unix.SYS_MKNOD:    {"mknod", "p"},
		unix.SYS_UNLINK:   {"unlink", "p"},
		unix.SYS_RENAME:   {"rename", "pp"},
		unix.SYS_RENAMEAT: {"renameat", "fpfp"},
		unix.SYS_LINK:     {"link", "pp"},
		unix.SYS_SYMLINK:  {"symlink", "pp"},
		unix.SYS_CREAT:    {"creat", "p"},
		unix.SYS_CHMOD:    {"chmod", "px"},
		unix.SYS_CHOWN:    {"chown", "p"},
		unix.SYS_LCHOWN:   {"lchown", "p"},
		unix.SYS_OPEN:     {"open", "px"},
	}
}
