package faultrun

import "golang.org/x/sys/unix"

// arch is the architecture whose numbers these are, as a filter is told it.
const arch = unix.AUDIT_ARCH_AARCH64

// olderChanging are the calls that this architecture has beside their successors.
func olderChanging() []rule { return always(unix.SYS_RENAMEAT) }

// olderFiles are the calls about files that this architecture names in its own way.
func olderFiles() []rule { return always(unix.SYS_FSTATAT, unix.SYS_RENAMEAT) }

func olderSpellings() map[uint32]spelling {
	return map[uint32]spelling{unix.SYS_RENAMEAT: {"renameat", "fpfp"}}
}
