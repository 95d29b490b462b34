package faultrun

import "golang.org/x/sys/unix"

// Calls says which system calls are counted and judged.
type Calls int

const (
	// Changing are the calls after which the world is another: for one that is killed, it makes no difference whether
	// that happens before or after any other call. What is only made durable (fsync) or only prepared (fsopen, fsmount,
	// a detached copy of a mount) is not among them.
	Changing Calls = iota
	// Fallible are those, and the calls that make durable, or prepare, or ask a device: of all of them a program has to
	// expect that they fail. Whether something is a terminal may be asked without being counted.
	Fallible
	// Files are all calls about files, mounts, devices and programs, also those that only ask: what a program's work costs,
	// beside what its runtime does for memory, threads and time. Each is counted, whatever it is about.
	Files
)

// rule is one call that the filter hands over. With a mask, it does so only when the lower half of an argument, masked,
// has a value.
type rule struct {
	number      uint32
	arg         uint8
	mask, value uint32
}

// always hands over every call of these numbers.
func always(numbers ...uint32) []rule {
	var rules []rule
	for _, n := range numbers {
		rules = append(rules, rule{number: n})
	}
	return rules
}

// when hands over the calls whose argument is one of values.
func when(number uint32, arg uint8, values ...uint32) []rule {
	var rules []rule
	for _, v := range values {
		rules = append(rules, rule{number: number, arg: arg, mask: ^uint32(0), value: v})
	}
	return rules
}

// flagged hands over the calls that have a flag set.
func flagged(number uint32, arg uint8, flag uint32) []rule {
	return []rule{{number: number, arg: arg, mask: flag, value: flag}}
}

// rules returns what the filter hands over.
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
		// The mount table, and the superblocks behind it.
		unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_MOVE_MOUNT, unix.SYS_MOUNT_SETATTR, unix.SYS_PIVOT_ROOT,
		// Names.
		unix.SYS_MKDIRAT, unix.SYS_MKNODAT, unix.SYS_UNLINKAT, unix.SYS_RENAMEAT2, unix.SYS_LINKAT, unix.SYS_SYMLINKAT,
		// What is known of a file beside its content.
		unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FCHMODAT2, unix.SYS_FCHOWN, unix.SYS_FCHOWNAT,
		unix.SYS_SETXATTR, unix.SYS_LSETXATTR, unix.SYS_FSETXATTR,
		unix.SYS_REMOVEXATTR, unix.SYS_LREMOVEXATTR, unix.SYS_FREMOVEXATTR,
		// Content. Of these, calls that write to no file of a disk are answered and not counted: see isFile.
		unix.SYS_WRITE, unix.SYS_WRITEV, unix.SYS_PWRITE64, unix.SYS_PWRITEV, unix.SYS_PWRITEV2,
		unix.SYS_COPY_FILE_RANGE, unix.SYS_FALLOCATE, unix.SYS_FTRUNCATE, unix.SYS_TRUNCATE,
	)
	// FSCONFIG_CMD_CREATE_EXCL, which x/sys does not have, is 8. What is set before these is only remembered.
	rules = append(rules, when(unix.SYS_FSCONFIG, 1, unix.FSCONFIG_CMD_CREATE, unix.FSCONFIG_CMD_RECONFIGURE, 8)...)
	rules = append(rules, flagged(unix.SYS_OPENAT, 2, unix.O_CREAT)...)
	rules = append(rules, flagged(unix.SYS_OPENAT, 2, unix.O_TRUNC)...)
	return append(rules, when(unix.SYS_IOCTL, 1,
		growExt4, growXFS, unix.FICLONE, freeze, thaw,
		unix.LOOP_SET_FD, unix.LOOP_CLR_FD, unix.LOOP_SET_STATUS, unix.LOOP_SET_STATUS64, loopChangeFd,
		unix.LOOP_SET_CAPACITY, unix.LOOP_SET_DIRECT_IO, unix.LOOP_SET_BLOCK_SIZE, unix.LOOP_CONFIGURE,
		unix.LOOP_CTL_ADD, unix.LOOP_CTL_REMOVE, unix.LOOP_CTL_GET_FREE)...)
}

// Requests that x/sys does not have: LOOP_CHANGE_FD, EXT4_IOC_RESIZE_FS, XFS_IOC_FSGROWFSDATA, FIFREEZE and FITHAW.
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

// asksTerminal reports whether a call is an ioctl of terminals, by which programs find out whether they have one.
func (c Call) asksTerminal() bool {
	return c.Number == unix.SYS_IOCTL && uint8(c.Args[1]>>8) == 'T'
}

// writesContent reports whether a call writes through the descriptor that is its first argument.
func writesContent(number uint32) bool {
	switch number {
	case unix.SYS_WRITE, unix.SYS_WRITEV, unix.SYS_PWRITE64, unix.SYS_PWRITEV, unix.SYS_PWRITEV2:
		return true
	}
	return false
}
