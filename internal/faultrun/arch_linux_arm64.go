package faultrun

import "golang.org/x/sys/unix"

// arch is the architecture of these numbers, in a filter's encoding.
const arch = unix.AUDIT_ARCH_AARCH64

// olderChanging are the calls that this architecture has in addition to their newer forms.
func olderChanging() []rule { return always(unix.SYS_RENAMEAT) }

// olderFiles are the calls on files that have a name of their own on this architecture.
func olderFiles() []rule { return always(unix.SYS_FSTATAT, unix.SYS_RENAMEAT) }

func olderSpellings() map[uint32]spelling {
	return map[uint32]spelling{unix.SYS_RENAMEAT: {"renameat", "fpfp"}}
}
