package loop_test

import (
	"context"
	"fmt"
	"os"

	"github.com/volumekit/volumekit/mount/loop"
)

// An image of one mebibyte gets a device, as root. It has no Output, because that differs from machine to machine.
func ExampleManager() {
	ctx := context.Background()
	file, err := os.CreateTemp("", "disk-*.img")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.Remove(file.Name())
	defer file.Close()
	if err := file.Truncate(1 << 20); err != nil {
		fmt.Println(err)
		return
	}
	loops := loop.New(loop.Options{})
	device, err := loops.AttachFile(ctx, file, loop.AttachOptions{Label: "example.com/disk"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(device.Path, "shows", device.BackingPath)
	fmt.Println(loops.Detach(ctx, device))
}
