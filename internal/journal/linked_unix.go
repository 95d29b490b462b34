//go:build unix

package journal

import (
	"os"

	"golang.org/x/sys/unix"
)

func isLinked(f *os.File) (bool, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		return false, &os.PathError{Op: "fstat", Path: f.Name(), Err: err}
	}
	return stat.Nlink > 0, nil
}
