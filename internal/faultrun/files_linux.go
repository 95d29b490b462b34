package faultrun

import "golang.org/x/sys/unix"

// files are the calls about files, mounts, devices and programs, but for close and poll: the one goes with each open, the
// other waits.
func files() []rule {
	return always(
		unix.SYS_READ, unix.SYS_READV, unix.SYS_PREAD64, unix.SYS_PREADV, unix.SYS_GETDENTS64, unix.SYS_LSEEK,
		unix.SYS_WRITE, unix.SYS_WRITEV, unix.SYS_PWRITE64, unix.SYS_PWRITEV, unix.SYS_PWRITEV2,
		unix.SYS_COPY_FILE_RANGE, unix.SYS_SENDFILE, unix.SYS_FALLOCATE, unix.SYS_FTRUNCATE, unix.SYS_TRUNCATE,
		unix.SYS_OPENAT, unix.SYS_OPENAT2, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_NAME_TO_HANDLE_AT,
		unix.SYS_STATX, unix.SYS_FSTAT, unix.SYS_STATFS, unix.SYS_FSTATFS, unix.SYS_READLINKAT,
		unix.SYS_FACCESSAT, unix.SYS_FACCESSAT2,
		unix.SYS_MKDIRAT, unix.SYS_MKNODAT, unix.SYS_UNLINKAT, unix.SYS_RENAMEAT2, unix.SYS_LINKAT, unix.SYS_SYMLINKAT,
		unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FCHMODAT2, unix.SYS_FCHOWN, unix.SYS_FCHOWNAT, unix.SYS_UTIMENSAT,
		unix.SYS_GETXATTR, unix.SYS_LGETXATTR, unix.SYS_FGETXATTR, unix.SYS_LISTXATTR, unix.SYS_LLISTXATTR, unix.SYS_FLISTXATTR,
		unix.SYS_SETXATTR, unix.SYS_LSETXATTR, unix.SYS_FSETXATTR,
		unix.SYS_REMOVEXATTR, unix.SYS_LREMOVEXATTR, unix.SYS_FREMOVEXATTR,
		unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_SYNCFS, unix.SYS_FLOCK, unix.SYS_IOCTL,
		unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE, unix.SYS_MOUNT_SETATTR, unix.SYS_PIVOT_ROOT,
		unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK,
		unix.SYS_STATMOUNT, unix.SYS_LISTMOUNT,
		unix.SYS_INOTIFY_ADD_WATCH, unix.SYS_FANOTIFY_MARK, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD, unix.SYS_EXECVE,
	)
}
