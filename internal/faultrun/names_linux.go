package faultrun

import (
	"fmt"
	"maps"

	"golang.org/x/sys/unix"
)

// spelling is how a call is shown: its name and, for each argument, whether it is a path (p), a file (f), a number (x),
// the request of an ioctl (i) or not shown (-).
type spelling struct {
	name string
	args string
}

func spellings() map[uint32]spelling {
	all := map[uint32]spelling{
		unix.SYS_MOUNT:           {"mount", "pppx"},
		unix.SYS_UMOUNT2:         {"umount2", "px"},
		unix.SYS_MOVE_MOUNT:      {"move_mount", "fpfp"},
		unix.SYS_OPEN_TREE:       {"open_tree", "fpx"},
		unix.SYS_FSOPEN:          {"fsopen", "p"},
		unix.SYS_FSCONFIG:        {"fsconfig", "fxp"},
		unix.SYS_FSMOUNT:         {"fsmount", "f"},
		unix.SYS_MOUNT_SETATTR:   {"mount_setattr", "fp"},
		unix.SYS_MKDIRAT:         {"mkdirat", "fp"},
		unix.SYS_MKNODAT:         {"mknodat", "fp"},
		unix.SYS_UNLINKAT:        {"unlinkat", "fpx"},
		unix.SYS_RENAMEAT2:       {"renameat2", "fpfp"},
		unix.SYS_LINKAT:          {"linkat", "fpfp"},
		unix.SYS_SYMLINKAT:       {"symlinkat", "pfp"},
		unix.SYS_FCHMOD:          {"fchmod", "fx"},
		unix.SYS_FCHMODAT:        {"fchmodat", "fpx"},
		unix.SYS_FCHMODAT2:       {"fchmodat2", "fpx"},
		unix.SYS_FCHOWN:          {"fchown", "f"},
		unix.SYS_FCHOWNAT:        {"fchownat", "fp"},
		unix.SYS_SETXATTR:        {"setxattr", "pp"},
		unix.SYS_LSETXATTR:       {"lsetxattr", "pp"},
		unix.SYS_FSETXATTR:       {"fsetxattr", "fp"},
		unix.SYS_REMOVEXATTR:     {"removexattr", "pp"},
		unix.SYS_LREMOVEXATTR:    {"lremovexattr", "pp"},
		unix.SYS_FREMOVEXATTR:    {"fremovexattr", "fp"},
		unix.SYS_WRITE:           {"write", "f"},
		unix.SYS_WRITEV:          {"writev", "f"},
		unix.SYS_PWRITE64:        {"pwrite64", "f"},
		unix.SYS_PWRITEV:         {"pwritev", "f"},
		unix.SYS_PWRITEV2:        {"pwritev2", "f"},
		unix.SYS_COPY_FILE_RANGE: {"copy_file_range", "f-f"},
		unix.SYS_FALLOCATE:       {"fallocate", "fx"},
		unix.SYS_FTRUNCATE:       {"ftruncate", "fx"},
		unix.SYS_TRUNCATE:        {"truncate", "px"},
		unix.SYS_OPENAT:          {"openat", "fpx"},
		unix.SYS_IOCTL:           {"ioctl", "fi"},
		unix.SYS_FSYNC:           {"fsync", "f"},
		unix.SYS_FDATASYNC:       {"fdatasync", "f"},
		unix.SYS_SYNCFS:          {"syncfs", "f"},
		unix.SYS_FLOCK:           {"flock", "fx"},
	}
	maps.Copy(all, olderSpellings())
	return all
}

// requestName is how the request of an ioctl is shown.
func requestName(request uint32) string {
	names := map[uint32]string{
		unix.LOOP_SET_FD: "LOOP_SET_FD", unix.LOOP_CLR_FD: "LOOP_CLR_FD", unix.LOOP_CONFIGURE: "LOOP_CONFIGURE",
		unix.LOOP_SET_STATUS64: "LOOP_SET_STATUS64", unix.LOOP_GET_STATUS64: "LOOP_GET_STATUS64",
		unix.LOOP_SET_CAPACITY: "LOOP_SET_CAPACITY", unix.LOOP_SET_DIRECT_IO: "LOOP_SET_DIRECT_IO",
		unix.LOOP_SET_BLOCK_SIZE: "LOOP_SET_BLOCK_SIZE", unix.LOOP_CTL_GET_FREE: "LOOP_CTL_GET_FREE",
		unix.LOOP_CTL_ADD: "LOOP_CTL_ADD", unix.LOOP_CTL_REMOVE: "LOOP_CTL_REMOVE", loopChangeFd: "LOOP_CHANGE_FD",
		unix.BLKGETSIZE64: "BLKGETSIZE64", unix.BLKGETDISKSEQ: "BLKGETDISKSEQ",
		growExt4: "EXT4_IOC_RESIZE_FS", growXFS: "XFS_IOC_FSGROWFSDATA", unix.FICLONE: "FICLONE",
		freeze: "FIFREEZE", thaw: "FITHAW",
	}
	if name, ok := names[request]; ok {
		return name
	}
	return fmt.Sprintf("%#x", request)
}
