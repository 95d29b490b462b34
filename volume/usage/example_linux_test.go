package usage_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/volumekit/volumekit/volume/usage"
)

// A file with two names counts once.
func ExampleMeasure() {
	dir, err := os.MkdirTemp("", "tree")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "file")
	err = os.WriteFile(file, []byte("text"), 0o600)
	if err == nil {
		err = os.Link(file, filepath.Join(dir, "second-name"))
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	used, err := usage.Measure(context.Background(), dir)
	fmt.Println("inodes:", used.Inodes, err)
	// Output: inodes: 2 <nil>
}
