package usage

import (
	"math"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel's interface to projects: <linux/fs.h>, <linux/quota.h>, quotactl(2).
const (
	xflagProjectInherit = 0x200 // FS_XFLAG_PROJINHERIT
	getQuota            = 0x800007
	projectQuota        = 2
	quotaHasSpace       = 2 // QIF_SPACE in dqb_valid
	quotaHasInodes      = 8 // QIF_INODES
)

// fileAttributes is struct fsxattr.
type fileAttributes struct {
	flags, extentSize, extents, project, cowExtentSize uint32
	_                                                  [8]byte
}

// getAttributes is FS_IOC_FSGETXATTR: _IOR('X', 31, struct fsxattr). How it says that it reads depends on the machine,
// as in the constants that x/sys has.
const getAttributes = unix.FS_IOC_GETFLAGS&0xe0000000 | uint(unsafe.Sizeof(fileAttributes{}))<<16 | 'X'<<8 | 31

// quotaBlock is struct if_dqblk.
type quotaBlock struct {
	hardBytes, softBytes, space, hardInodes, softInodes, inodes, byteTime, inodeTime uint64
	valid                                                                            uint32
	_                                                                                uint32
}

// projectOf asks for the project of an open directory. A filesystem that knows no projects says that there is none.
func projectOf(fd int) project {
	var a fileAttributes
	err := retry(func() error { return ioctl(fd, getAttributes, unsafe.Pointer(&a)) })
	if err != nil {
		return project{}
	}
	return project{id: a.project, inherits: a.flags&xflagProjectInherit != 0}
}

func ioctl(fd int, request uint, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

// projectUsage asks the filesystem of an open directory what a project occupies. Any error means that the kernel cannot
// tell, or does not tell this process, so that there has to be a walk: no quota there (ESRCH, ENOENT, ENOSYS, EINVAL), a
// kernel before 5.14 (ENOSYS), no privilege (EPERM).
func projectUsage(fd int, id uint32) (Usage, bool) {
	var q quotaBlock
	err := retry(func() error {
		const command = getQuota<<8 | projectQuota
		_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD,
			uintptr(fd), command, uintptr(id), uintptr(unsafe.Pointer(&q)), 0, 0)
		if errno != 0 {
			return errno
		}
		return nil
	})
	if err != nil {
		return Usage{}, false
	}
	return q.usage()
}

func (q *quotaBlock) usage() (Usage, bool) {
	const both = quotaHasSpace | quotaHasInodes
	if q.valid&both != both || q.space > math.MaxInt64 || q.inodes > math.MaxInt64 {
		return Usage{}, false
	}
	return Usage{Bytes: int64(q.space), Inodes: int64(q.inodes), ByQuota: true}, true
}
