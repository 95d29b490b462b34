package freeze_test

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/volumekit/volumekit/mount/freeze"
)

// A mounted device is copied while no process can write to it, for at most five seconds. It has no Output: it needs root and a
// filesystem that no other program uses.
func ExampleFreeze() {
	fmt.Println(copyDevice("/mnt/data", "/dev/vdb", "/var/lib/copies/vdb.img"))
}

func copyDevice(mountPoint, device, copied string) (err error) {
	dir, err := os.Open(mountPoint)
	if err != nil {
		return err
	}
	defer dir.Close()
	from, err := os.Open(device)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.Create(copied)
	if err != nil {
		return err
	}
	defer to.Close()

	frozen, err := freeze.Freeze(dir, 5*time.Second)
	if err != nil {
		return err
	}
	_, copyErr := io.Copy(to, from)
	if err := frozen.Thaw(); err != nil { // it was thawed before the copy ended, so the copy is of no use
		return err
	}
	if copyErr != nil {
		return copyErr
	}
	return to.Sync()
}
