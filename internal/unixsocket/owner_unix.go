//go:build unix

package unixsocket

import (
	"io/fs"
	"os"
	"syscall"
)

func ownedByRootOrUs(dir fs.FileInfo) bool {
	owner, known := dir.Sys().(*syscall.Stat_t)
	return known && (owner.Uid == 0 || int(owner.Uid) == os.Geteuid())
}
