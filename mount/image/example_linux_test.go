package image_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/volumekit/volumekit/mount/image"
)

// An image is filled under another name, and published whole.
func ExampleDir_Publish() {
	base, err := os.MkdirTemp("", "images")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(base)
	dir, err := image.MakeDir(filepath.Join(base, "images"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dir.Close()
	partial, err := dir.Begin("1.partial")
	if err != nil {
		fmt.Println(err)
		return
	}
	err = errors.Join(partial.Truncate(1<<20), partial.Sync(), dir.Publish("1.partial", "1.img"), partial.Close())
	fmt.Println(err)
	info, err := os.Stat(filepath.Join(base, "images", "1.img"))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(info.Name(), info.Size())
	// Output:
	// <nil>
	// 1.img 1048576
}
