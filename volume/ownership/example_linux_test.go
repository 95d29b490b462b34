package ownership_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/volumekit/volumekit/volume/ownership"
)

// The content of a volume is given to the group of a pod. A second run finds it so.
func ExampleApply() {
	dir, err := os.MkdirTemp("", "volume")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		fmt.Println(err)
		return
	}
	group := int64(os.Getgid()) // a group that also a process without privileges may give files to
	for range 2 {
		report, err := ownership.Apply(context.Background(), dir, ownership.Options{Group: &group})
		fmt.Println("visited:", report.Visited, "modes changed:", report.ModeChanged, "complete:", report.Complete, err)
	}
	// Output:
	// visited: 2 modes changed: 2 complete: true <nil>
	// visited: 2 modes changed: 0 complete: true <nil>
}
