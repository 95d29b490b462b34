package faultrun

import "golang.org/x/sys/unix"

// Calls selects the system calls that are counted and judged.
type Calls int

const (
	// Changing are the calls whose effect outlives the program. It makes no difference whether a program is killed before or after
	// any other call. Calls that only make data durable (fsync) or only prepare an effect (fsopen, fsmount, open_tree) are not
	// among them.
	Changing Calls = iota
	// Fallible are the calls of Changing, and those that make data durable, prepare an effect, or query a device. A program has to
	// handle a failure of each of them. Queries of terminals are not counted.
	Fallible
	// Files are all calls on files, mounts, devices and programs, reads included. Their number measures the work of a program
	// without that of its runtime for memory, threads and time. All of them are counted, on any file.
	Files
)

// rule selects calls for the filter: all calls of a number, or, with a mask, those in which the masked lower half of an argument
// has a value. The kernel passes selected calls to the runner.
type rule struct {
	number      uint32
	arg         uint8
	mask, value uint32
}

// always selects every call of these numbers.
func always(numbers ...uint32) []rule {
	var rules []rule
	for _, n := range numbers {
		rules = append(rules, rule{number: n})
	}
	return rules
}

// when selects the calls in which the argument has one of the values.
func when(number uint32, arg uint8, values ...uint32) []rule {
	var rules []rule
	for _, v := range values {
		rules = append(rules, rule{number: number, arg: arg, mask: ^uint32(0), value: v})
	}
	return rules
}

// flagged selects the calls in which the argument has the flag.
func flagged(number uint32, arg uint8, flag uint32) []rule {
	return []rule{{number: number, arg: arg, mask: flag, value: flag}}
}

// rules returns the rules of the filter.
func (c Calls) rules() []rule {
	if c == Files {
		return append(files(), olderFiles()...)
	}
	rules := append(changing(), olderChanging()...)
	if c == Fallible {
		rules = append(rules, fallible()...)
	}
	return rules
}

func changing() []rule {
	rules := always(
		// Mounts and superblocks.
		unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_MOVE_MOUNT, unix.SYS_MOUNT_SETATTR, unix.SYS_PIVOT_ROOT,
		// Names.
		unix.SYS_MKDIRAT, unix.SYS_MKNODAT, unix.SYS_UNLINKAT, unix.SYS_RENAMEAT2, unix.SYS_LINKAT, unix.SYS_SYMLINKAT,
		// Metadata.
		unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FCHMODAT2, unix.SYS_FCHOWN, unix.SYS_FCHOWNAT,
		unix.SYS_SETXATTR, unix.SYS_LSETXATTR, unix.SYS_FSETXATTR,
		unix.SYS_REMOVEXATTR, unix.SYS_LREMOVEXATTR, unix.SYS_FREMOVEXATTR,
		// Content. Calls that write to anything but a file on a filesystem are answered and not counted: see isFile.
		unix.SYS_WRITE, unix.SYS_WRITEV, unix.SYS_PWRITE64, unix.SYS_PWRITEV, unix.SYS_PWRITEV2,
		unix.SYS_COPY_FILE_RANGE, unix.SYS_FALLOCATE, unix.SYS_FTRUNCATE, unix.SYS_TRUNCATE,
	)
	// 8 is FSCONFIG_CMD_CREATE_EXCL, which x/sys does not have. Other commands only set options and have no effect until one of these.
	rules = append(rules, when(unix.SYS_FSCONFIG, 1, unix.FSCONFIG_CMD_CREATE, unix.FSCONFIG_CMD_RECONFIGURE, 8)...)
	rules = append(rules, flagged(unix.SYS_OPENAT, 2, unix.O_CREAT)...)
	rules = append(rules, flagged(unix.SYS_OPENAT, 2, unix.O_TRUNC)...)
	return append(rules, when(unix.SYS_IOCTL, 1,
		growExt4, growXFS, unix.FICLONE, freeze, thaw,
		unix.LOOP_SET_FD, unix.LOOP_CLR_FD, unix.LOOP_SET_STATUS, unix.LOOP_SET_STATUS64, loopChangeFd,
		unix.LOOP_SET_CAPACITY, unix.LOOP_SET_DIRECT_IO, unix.LOOP_SET_BLOCK_SIZE, unix.LOOP_CONFIGURE,
		unix.LOOP_CTL_ADD, unix.LOOP_CTL_REMOVE, unix.LOOP_CTL_GET_FREE)...)
}

// Requests that x/sys does not have: FIFREEZE, FITHAW, LOOP_CHANGE_FD, EXT4_IOC_RESIZE_FS and XFS_IOC_FSGROWFSDATA.
const (
	freeze       = 0xc0045877
	thaw         = 0xc0045878
	loopChangeFd = 0x4c06
	growExt4     = 0x40086610
	growXFS      = 0x4010586e
)

func fallible() []rule {
	return always(
		unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_SYNCFS,
		unix.SYS_OPEN_TREE, unix.SYS_FSOPEN, unix.SYS_FSMOUNT, unix.SYS_FSPICK,
		unix.SYS_FLOCK, unix.SYS_IOCTL,
	)
}

// asksTerminal reports whether a call is an ioctl of terminals. Programs make it to find out whether a file is a terminal.
func (c Call) asksTerminal() bool {
	return c.Number == unix.SYS_IOCTL && uint8(c.Args[1]>>8) == 'T'
}

// writesContent reports whether calls of this number write to the descriptor in their first argument.
func writesContent(number uint32) bool {
	switch number {
	case unix.SYS_WRITE, unix.SYS_WRITEV, unix.SYS_PWRITE64, unix.SYS_PWRITEV, unix.SYS_PWRITEV2:
		return true
	}
	return false
}
