package treewalk

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The system calls here take names as they lie in a buffer of directory entries, ended by a zero, so that none is copied.

// dots holds the names of a directory itself, "." and "". It is never written to.
var dots = [...]byte{'.', 0}

func dot() *byte   { return &dots[0] }
func empty() *byte { return &dots[1] }

// byName and byFD are the flags of a look at a name and at a descriptor: neither follows a link or mounts something. The
// kernel is fastest with the second when it has these flags and no others.
const (
	byName = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	byFD   = unix.AT_EMPTY_PATH | unix.AT_NO_AUTOMOUNT
)

func statx(at int, name *byte, flags int, mask uint32, st *unix.Statx_t) unix.Errno {
	for {
		_, _, errno := unix.Syscall6(unix.SYS_STATX, uintptr(at), uintptr(unsafe.Pointer(name)),
			uintptr(flags), uintptr(mask), uintptr(unsafe.Pointer(st)), 0)
		if errno != unix.EINTR {
			return errno
		}
	}
}

func openat(at int, name *byte, flags int) (int, unix.Errno) {
	for {
		fd, _, errno := unix.Syscall6(unix.SYS_OPENAT, uintptr(at), uintptr(unsafe.Pointer(name)), uintptr(flags), 0, 0, 0)
		if errno != unix.EINTR {
			return int(fd), errno
		}
	}
}

// maxTries is how often openat2 is asked again when something beside it was renamed or mounted (EAGAIN).
const maxTries = 64

func openat2(at int, name *byte, flags int) (int, unix.Errno) {
	how := unix.OpenHow{
		Flags:   uint64(flags),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	}
	for tries := 1; ; tries++ {
		fd, _, errno := unix.Syscall6(unix.SYS_OPENAT2, uintptr(at), uintptr(unsafe.Pointer(name)),
			uintptr(unsafe.Pointer(&how)), unix.SizeofOpenHow, 0, 0)
		if errno != unix.EINTR && (errno != unix.EAGAIN || tries == maxTries) {
			return int(fd), errno
		}
	}
}

// hasOpenat2 asks for what every directory allows. A filter may refuse it with another error than ENOSYS.
func hasOpenat2(dir int) bool {
	fd, errno := openat2(dir, dot(), throughFlags)
	if errno == 0 {
		closeFD(fd)
	}
	return errno != unix.ENOSYS && errno != unix.EPERM && errno != unix.E2BIG
}

func getdents(fd int, buf []byte) (int, unix.Errno) {
	for {
		n, _, errno := unix.Syscall(unix.SYS_GETDENTS64, uintptr(fd), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)))
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

// closeFD closes a descriptor that was only read from; Linux closes it whatever close returns.
func closeFD(fd int) { _ = unix.Close(fd) }

// thread is one of the process, and how often it has waited in the kernel.
type thread struct {
	id    int
	waits int64
}

// currentThread returns the thread that runs this.
func currentThread() thread {
	var used unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_THREAD, &used)   // it never waited when a filter forbids to ask
	return thread{unix.Gettid(), int64(used.Nvcsw)} //nolint:unconvert // It is narrower elsewhere.
}

func retry(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// isRemote reports whether the attributes that this machine knows may be older than the file: everywhere but on the
// filesystems that are known to be local.
func isRemote(fd int) (bool, error) {
	var st unix.Statfs_t
	if err := retry(func() error { return unix.Fstatfs(fd, &st) }); err != nil {
		return false, err
	}
	switch int64(st.Type) { //nolint:unconvert // It is narrower elsewhere.
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.F2FS_SUPER_MAGIC:
		return false, nil
	}
	return true, nil
}
