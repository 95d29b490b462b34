package format_test

import (
	"context"
	"fmt"
	"os"

	"github.com/volumekit/volumekit/mount/format"
)

// A disk is recognised by what stands on it: here the mark of XFS.
func ExampleProbeFile() {
	ctx := context.Background()
	disk, err := os.CreateTemp("", "disk")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.Remove(disk.Name())
	defer disk.Close()
	if err := disk.Truncate(1 << 20); err != nil {
		fmt.Println(err)
		return
	}
	blank, err := format.ProbeFile(ctx, disk)
	fmt.Printf("%q %v\n", blank.Type, err)
	if _, err := disk.WriteAt([]byte("XFSB"), 0); err != nil {
		fmt.Println(err)
		return
	}
	found, err := format.ProbeFile(ctx, disk)
	fmt.Printf("%q %v\n", found.Type, err)
	// Output:
	// "" <nil>
	// "xfs" <nil>
}
