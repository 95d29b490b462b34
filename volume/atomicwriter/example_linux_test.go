package atomicwriter_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/volumekit/volumekit/volume/atomicwriter"
)

// Readers see the old files or the new ones: a payload is published by one rename.
func ExampleAtomicWriter_Write() {
	dir, err := os.MkdirTemp("", "payload")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	writer, err := atomicwriter.New(dir, atomicwriter.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, text := range []string{"blue", "green", "green"} {
		result, err := writer.Write(context.Background(), map[string]atomicwriter.FileProjection{
			"color": {Data: []byte(text), Mode: 0o644},
		})
		fmt.Println("published:", result.Published, "added:", result.Added, "modified:", result.Modified, err)
	}
	content, err := os.ReadFile(filepath.Join(dir, "color"))
	fmt.Println(string(content), err)
	// Output:
	// published: true added: [color] modified: [] <nil>
	// published: true added: [] modified: [color] <nil>
	// published: false added: [] modified: [] <nil>
	// green <nil>
}
