package owned_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/volumekit/volumekit/mount/owned"
	"github.com/volumekit/volumekit/mount/safepath"
)

// A directory that took the place of the recorded one is not deleted.
func ExampleDirectory_Prove() {
	ctx := context.Background()
	base, err := os.MkdirTemp("", "owned")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(base)
	d := owned.Directory{Path: filepath.Join(base, "data"), Proof: filepath.Join(base, "data.proof")}
	if err := makeAndRecord(ctx, d); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("ours:", d.Prove(ctx, safepath.Options{}))

	err = errors.Join(os.Rename(d.Path, d.Path+".moved"), os.Mkdir(d.Path, 0o700), os.WriteFile(filepath.Join(d.Path, "file"), nil, 0o600))
	fmt.Println("replaced:", err)
	fmt.Println("unproven:", errors.Is(d.Prove(ctx, safepath.Options{}), owned.ErrUnproven))
	// Output:
	// ours: <nil>
	// replaced: <nil>
	// unproven: true
}

func makeAndRecord(ctx context.Context, d owned.Directory) error {
	if err := os.Mkdir(d.Path, 0o700); err != nil {
		return err
	}
	dir, err := os.Open(d.Path)
	if err != nil {
		return err
	}
	return errors.Join(d.Record(ctx, dir, safepath.Options{}), dir.Close())
}
