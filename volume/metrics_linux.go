package volume

import (
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// deviceSize returns the size of device in bytes.
func deviceSize(device string) (int64, error) {
	// Without O_NONBLOCK, opening a FIFO would wait. For a block device or a file it makes no difference.
	f, err := os.OpenFile(device, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if mode := info.Mode(); !mode.IsRegular() && (mode&fs.ModeDevice == 0 || mode&fs.ModeCharDevice != 0) {
		return 0, fmt.Errorf("size of %q: not a block device or a file: %w", device, ErrInvalid)
	}
	return f.Seek(0, io.SeekEnd)
}
