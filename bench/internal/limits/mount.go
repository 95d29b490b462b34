package limits

import (
	"bytes"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// BindReadOnly binds source to target with mount(2) and then makes the mount read-only, as mount(8) must.
func BindReadOnly(source, target string) error {
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	return unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
}

// Bind binds source to target with open_tree, mount_setattr and move_mount: the mount appears with its attributes, such
// as unix.MOUNT_ATTR_RDONLY, at once.
func Bind(source, target string, attributes uint64) error {
	fd, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	if attributes != 0 {
		if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: attributes}); err != nil {
			return err
		}
	}
	return unix.MoveMount(fd, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// Tmpfs mounts a new tmpfs of 1 MiB with fsopen, fsconfig, fsmount and move_mount.
func Tmpfs(target string) error {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return err
	}
	defer closeFD(fs)
	if err := unix.FsconfigSetString(fs, "size", "1m"); err != nil {
		return err
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return err
	}
	m, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer closeFD(m)
	return unix.MoveMount(m, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// IsMountPoint asks statx whether path is the root of a mount.
func IsMountPoint(path string) (bool, error) {
	var stx unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, 0, &stx); err != nil {
		return false, err
	}
	return stx.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// MountID returns the unique 64-bit id of the mount holding path.
func MountID(path string) (uint64, error) {
	const mntIDUnique = 0x4000 // STATX_MNT_ID_UNIQUE
	var stx unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, mntIDUnique, &stx)
	return stx.Mnt_id, err
}

type mntIDReq struct {
	size  uint32
	spare uint32
	id    uint64
	param uint64
	ns    uint64
}

// Statmount masks and the offsets of the fixed part of struct statmount.
const (
	StatmountBasic = 0x2 | 0x1
	StatmountRoot  = 0x8
	StatmountPoint = 0x10
	StatmountType  = 0x20
	StatmountOpts  = 0x80
	StatmountSrc   = 0x200
	StatmountAll   = StatmountBasic | StatmountRoot | StatmountPoint | StatmountType | StatmountOpts | StatmountSrc

	offFsType   = 36
	offMntPoint = 108
	offStrings  = 512
	lsmtRoot    = ^uint64(0)
)

// ListMounts appends the ids of every mount below the namespace's root.
func ListMounts(ids []uint64) ([]uint64, error) {
	req := mntIDReq{size: 32, id: lsmtRoot}
	var batch [1024]uint64
	for {
		n, _, e := unix.Syscall6(unix.SYS_LISTMOUNT, uintptr(unsafe.Pointer(&req)), uintptr(unsafe.Pointer(&batch[0])), uintptr(len(batch)), 0, 0, 0)
		if e != 0 {
			return ids, e
		}
		ids = append(ids, batch[:n]...)
		if int(n) < len(batch) {
			return ids, nil
		}
		req.param = batch[n-1]
	}
}

// Statmount fills buf with struct statmount for one mount.
func Statmount(id, mask uint64, buf []byte) error {
	req := mntIDReq{size: 32, id: id, param: mask}
	_, _, e := unix.Syscall6(unix.SYS_STATMOUNT, uintptr(unsafe.Pointer(&req)), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), 0, 0, 0)
	if e != 0 {
		return e
	}
	return nil
}

// StatmountPath returns the mount point and file system type in a filled buf.
func StatmountPath(buf []byte) (point, fstype []byte) {
	str := func(off int) []byte {
		s := buf[offStrings+*(*uint32)(unsafe.Pointer(&buf[off])):]
		return s[:bytes.IndexByte(s, 0)]
	}
	return str(offMntPoint), str(offFsType)
}

// MountInfo is one parsed row; its fields point into the table's buffer.
type MountInfo struct{ Root, Point, Options, FSType, Source []byte }

// MountTable reads /proc/self/mountinfo into buf and parses it without copying.
type MountTable struct {
	buf  []byte
	Rows []MountInfo
}

// Load re-reads the table.
func (t *MountTable) Load() error {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	defer f.Close()
	fd := int(f.Fd())
	if cap(t.buf) == 0 {
		t.buf = make([]byte, 64<<10)
	}
	t.buf = t.buf[:cap(t.buf)]
	n := 0
	for {
		if n == len(t.buf) {
			t.buf = append(t.buf, make([]byte, len(t.buf))...)
		}
		k, err := unix.Read(fd, t.buf[n:])
		if err != nil {
			return err
		}
		if k == 0 {
			break
		}
		n += k
	}
	t.Rows = t.Rows[:0]
	for rest := t.buf[:n]; len(rest) > 0; {
		end := bytes.IndexByte(rest, '\n')
		line := rest[:end]
		rest = rest[end+1:]
		var r MountInfo
		for i := range 6 {
			sp := bytes.IndexByte(line, ' ')
			switch i {
			case 3:
				r.Root = line[:sp]
			case 4:
				r.Point = line[:sp]
			case 5:
				r.Options = line[:sp]
			}
			line = line[sp+1:]
		}
		for line[0] != '-' { // optional fields
			line = line[bytes.IndexByte(line, ' ')+1:]
		}
		line = line[2:]
		sp := bytes.IndexByte(line, ' ')
		r.FSType, line = line[:sp], line[sp+1:]
		r.Source = line[:bytes.IndexByte(line, ' ')]
		t.Rows = append(t.Rows, r)
	}
	return nil
}

// MountNotifier is a fanotify group told of every mount and unmount in this
// mount namespace (Linux 6.15): a table kept with it needs no re-reading.
func MountNotifier() (int, error) {
	const (
		fanReportMnt = 0x4000
		fanMarkMntNS = 0x110
		fanMntAttach = 0x01000000
		fanMntDetach = 0x02000000
	)
	fd, err := unix.FanotifyInit(fanReportMnt|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	ns, err := unix.Open("/proc/self/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		closeFD(fd)
		return -1, err
	}
	defer closeFD(ns)
	if err := unix.FanotifyMark(fd, unix.FAN_MARK_ADD|fanMarkMntNS, fanMntAttach|fanMntDetach, ns, ""); err != nil {
		closeFD(fd)
		return -1, err
	}
	return fd, nil
}
