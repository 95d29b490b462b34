package safepath_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/volumekit/volumekit/mount/safepath"
)

// A workload put a link into its volume. The link is not followed, wherever it leads.
func ExampleRoot_Open() {
	ctx := context.Background()
	volume, err := os.MkdirTemp("", "volume")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(volume)
	if err := os.Symlink("/etc/passwd", filepath.Join(volume, "config")); err != nil {
		fmt.Println(err)
		return
	}
	root, err := safepath.Open(ctx, volume, safepath.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer root.Close()
	_, err = root.Open(ctx, "config", safepath.RegularFile)
	fmt.Println("refused:", errors.Is(err, safepath.ErrEscapes))
	// Output: refused: true
}
