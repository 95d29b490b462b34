package mount

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The masks of statmount(2): what is asked for, and what is answered.
const (
	statmountSBBasic       = 0x1
	statmountMntBasic      = 0x2
	statmountPropagateFrom = 0x4
	statmountMntRoot       = 0x8
	statmountMntPoint      = 0x10
	statmountFSType        = 0x20
	statmountMntOpts       = 0x80
	statmountFSSubtype     = 0x100
	statmountSBSource      = 0x200 // since Linux 6.13, as is the subtype
	statmountOptSecArray   = 0x800

	statmountAll = statmountSBBasic | statmountMntBasic | statmountPropagateFrom | statmountMntRoot |
		statmountMntPoint | statmountFSType | statmountMntOpts | statmountFSSubtype | statmountSBSource |
		statmountOptSecArray
)

// listmountRoot stands for the root directory of this process.
const listmountRoot = ^uint64(0)

// firstUniqueID is below every unique id. The kernel refuses smaller numbers, so that the two kinds of id are not confused.
const firstUniqueID = 1 << 31

// statmountRequest is struct mnt_id_req of linux/mount.h in its first version.
type statmountRequest struct {
	size  uint32
	_     uint32
	id    uint64
	param uint64
}

// mountStatus is struct statmount of linux/mount.h. Offsets of strings count from its end.
type mountStatus struct {
	size          uint32
	mntOpts       uint32
	mask          uint64
	devMajor      uint32
	devMinor      uint32
	magic         uint64
	sbFlags       uint32
	fsType        uint32
	mntID         uint64
	parentID      uint64
	mntIDOld      uint32
	parentIDOld   uint32
	attr          uint64
	propagation   uint64
	peerGroup     uint64
	master        uint64
	propagateFrom uint64
	mntRoot       uint32
	mntPoint      uint32
	_             uint64 // mnt_ns_id
	fsSubtype     uint32
	sbSource      uint32
	_             [2]uint32 // opt_num, opt_array
	optSecNum     uint32
	optSecArray   uint32
	_             [46]uint64
}

const (
	mountStatusSize = 512
	// statmountBuffer holds what most mounts have to say; it is doubled where it does not.
	statmountBuffer    = 2048
	maxStatmountBuffer = 1 << 20
)

// The size is part of the kernel's interface.
var _ [0]struct{} = [mountStatusSize - unsafe.Sizeof(mountStatus{})]struct{}{}

// statmount asks for the facts of a mount of this namespace by its unique id. The buffer is used when it is large enough.
// The strings that come with the facts are returned as they are, in the buffer or in a larger one. The error is ENOENT when there is no such mount.
func statmount(id, mask uint64, buffer []byte) (status mountStatus, text []byte, err error) {
	if id <= firstUniqueID {
		return status, nil, unix.ENOENT
	}
	request := statmountRequest{size: uint32(unsafe.Sizeof(statmountRequest{})), id: id, param: mask}
	for {
		err = retry(func() error { return statmountInto(&request, buffer) })
		if !errors.Is(err, unix.EOVERFLOW) || len(buffer) >= maxStatmountBuffer {
			break
		}
		buffer = make([]byte, 2*max(len(buffer), statmountBuffer))
	}
	if err != nil {
		return status, nil, err
	}
	copy((*[mountStatusSize]byte)(unsafe.Pointer(&status))[:], buffer)
	if size := int(status.size); size > mountStatusSize && size <= len(buffer) {
		text = buffer[mountStatusSize:size]
	}
	return status, text, nil
}

func statmountInto(request *statmountRequest, buffer []byte) error {
	_, _, errno := unix.Syscall6(unix.SYS_STATMOUNT, uintptr(unsafe.Pointer(request)),
		uintptr(unsafe.Pointer(unsafe.SliceData(buffer))), uintptr(len(buffer)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// statmountBasic asks for numbers only.
func statmountBasic(id, mask uint64, status *mountStatus) error {
	if id <= firstUniqueID {
		return unix.ENOENT
	}
	request := statmountRequest{size: uint32(unsafe.Sizeof(statmountRequest{})), id: id, param: mask}
	return retry(func() error {
		_, _, errno := unix.Syscall6(unix.SYS_STATMOUNT, uintptr(unsafe.Pointer(&request)),
			uintptr(unsafe.Pointer(status)), mountStatusSize, 0, 0, 0)
		if errno != 0 {
			return errno
		}
		return nil
	})
}

const (
	// listmountBatch is for how many ids a call has room at least.
	listmountBatch = 1024
	// listmountRoom is for how many mounts there is room when their number is unknown.
	listmountRoom = 8 << 10
)

// listMounts returns the unique ids of all mounts that can be reached from the root directory of this process, in
// ascending order, which is the order of the mount table. Room is how many are expected.
func listMounts(room int) ([]uint64, error) {
	request := statmountRequest{size: uint32(unsafe.Sizeof(statmountRequest{})), id: listmountRoot}
	ids := make([]uint64, 0, max(room, listmountRoom)+listmountBatch)
	for {
		ids = slices.Grow(ids, listmountBatch)
		free := ids[len(ids):cap(ids)]
		n, _, errno := unix.Syscall6(unix.SYS_LISTMOUNT, uintptr(unsafe.Pointer(&request)),
			uintptr(unsafe.Pointer(unsafe.SliceData(free))), uintptr(len(free)), 0, 0, 0)
		if errno != 0 {
			return nil, fmt.Errorf("listmount: %w", errno)
		}
		ids = ids[:len(ids)+int(n)]
		if int(n) < len(free) {
			return ids, nil
		}
		request.param = ids[len(ids)-1] // go on after it
	}
}

// pathStat is what statx(2) reports about a path without a query of the filesystem there.
type pathStat struct {
	isRoot   bool   // the path is the root of a mount
	uniqueID uint64 // of the mount that holds the path; 0 if the kernel has no unique ids
}

// statFlags are flags of statx: query no server, start no automount, follow no link. A filesystem may ignore them, as 9p without
// a cache, gfs2, ocfs2 and orangefs do.
const statFlags = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC

// statPath returns the pathStat of a name in an open directory.
func statPath(at int, name string) (pathStat, error) {
	var stat unix.Statx_t
	err := retry(func() error { return unix.Statx(at, name, statFlags, unix.STATX_MNT_ID_UNIQUE, &stat) })
	if err != nil {
		return pathStat{}, missing(err)
	}
	return pathStatOf(&stat)
}

// pathStatOf reads a pathStat from a result of statx. Its error is errNoSyscall if the kernel does not report roots of mounts.
func pathStatOf(stat *unix.Statx_t) (pathStat, error) {
	if stat.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return pathStat{}, errNoSyscall
	}
	g := pathStat{isRoot: stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0}
	if stat.Mask&unix.STATX_MNT_ID_UNIQUE != 0 { // kernels that do not know the bit ignore it
		g.uniqueID = stat.Mnt_id
	}
	return g, nil
}
