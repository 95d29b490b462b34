package ownership

import (
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The system calls here are about what a descriptor is open on (AT_EMPTY_PATH), so that no name is resolved.

// zero is the empty name. It is never written to.
var zero = [...]byte{0}

const noFollow = unix.AT_EMPTY_PATH | unix.AT_SYMLINK_NOFOLLOW

// keep makes chown(2) leave the user as it is.
const keep = ^uintptr(0)

func fchown(fd int, gid uint32) unix.Errno {
	return again(func() unix.Errno {
		_, _, errno := unix.Syscall6(unix.SYS_FCHOWNAT,
			uintptr(fd), uintptr(unsafe.Pointer(&zero[0])), keep, uintptr(gid), noFollow, 0)
		return errno
	})
}

func statxFD(fd int, st *unix.Statx_t) unix.Errno {
	const mask = unix.STATX_TYPE | unix.STATX_MODE | unix.STATX_GID
	return again(func() unix.Errno {
		_, _, errno := unix.Syscall6(unix.SYS_STATX,
			uintptr(fd), uintptr(unsafe.Pointer(&zero[0])), unix.AT_EMPTY_PATH, mask, uintptr(unsafe.Pointer(st)), 0)
		return errno
	})
}

// again makes a call again that was interrupted by a signal.
func again(call func() unix.Errno) unix.Errno {
	for {
		if errno := call(); errno != unix.EINTR {
			return errno
		}
	}
}

// fchmodat2 says whether fchmodat2(2) can be used. Older system calls cannot change what is open without access.
type fchmodat2 bool

// probe finds out whether fchmodat2 can be used. A kernel that has it looks at the descriptor, and a filter that refuses
// it, with whatever error, does not.
func probe(without feature) fchmodat2 {
	if without&featureFchmodat2 != 0 {
		return false
	}
	return fchmodNew(-1, 0) == unix.EBADF
}

func fchmodNew(fd int, mode uint32) unix.Errno {
	_, _, errno := unix.Syscall6(unix.SYS_FCHMODAT2,
		uintptr(fd), uintptr(unsafe.Pointer(&zero[0])), uintptr(mode), noFollow, 0, 0)
	return errno
}

// system makes the calls of one worker.
type system struct {
	fchmodat2 fchmodat2
	path      []byte // scratch
}

func (s *system) fchmod(fd int, mode uint32) unix.Errno {
	return again(func() unix.Errno {
		if s.fchmodat2 {
			return fchmodNew(fd, mode)
		}
		return s.fchmodOld(fd, mode)
	})
}

// fchmodOld goes through the name that a descriptor has in /proc. That leads to what is open and nowhere else.
func (s *system) fchmodOld(fd int, mode uint32) unix.Errno {
	s.path = append(strconv.AppendInt(append(s.path[:0], "/proc/self/fd/"...), int64(fd), 10), 0)
	at := unix.AT_FDCWD
	_, _, errno := unix.Syscall6(unix.SYS_FCHMODAT,
		uintptr(at), uintptr(unsafe.Pointer(&s.path[0])), uintptr(mode), 0, 0, 0)
	return errno
}
