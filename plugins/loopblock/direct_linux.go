package loopblock

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// canDirectIO returns an error if the file cannot be opened for direct I/O.
func canDirectIO(file *os.File) error {
	again, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", file.Fd()), os.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	return again.Close()
}
