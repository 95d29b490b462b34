//go:build !linux

package safepath

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"runtime"

	"github.com/volumekit/volumekit/mount"
)

// tree does nothing here.
type tree struct {
	fd      int
	without mount.Feature
}

func unsupported() error {
	return fmt.Errorf("work beneath a directory on %s: %w", runtime.GOOS, mount.ErrUnsupported)
}

func openRoot(context.Context, string, Options) (*os.File, error) { return nil, unsupported() }

func duplicate(*os.File) (*os.File, error) { return nil, unsupported() }

func publicErrno(error) string { return "it failed; the node's operator can see why" }

func (t *tree) openFile(context.Context, string, Kind) (*os.File, error) { return nil, unsupported() }

func (t *tree) openPathFile(context.Context, string, Kind) (*os.File, error) {
	return nil, unsupported()
}

func (t *tree) openOnMount(context.Context, string) (*os.File, error) { return nil, unsupported() }

func (t *tree) openDirectory(context.Context, string) (*os.File, error) {
	return nil, unsupported()
}

func (t *tree) checkOutside(context.Context, []string) error { return unsupported() }

func (t *tree) checkHoldsNone(context.Context, []string) error { return unsupported() }

func (t *tree) mkdirAll(context.Context, string, MkdirOptions) error { return unsupported() }

func (t *tree) create(context.Context, string, fs.FileMode) error { return unsupported() }

func (t *tree) remove(context.Context, string) error { return unsupported() }

func (t *tree) removeAll(context.Context, string, mount.Interface) error { return unsupported() }

func (t *tree) removeContent(context.Context, mount.Interface) error { return unsupported() }

func (t *tree) bind(context.Context, string, string, mount.Interface, BindOptions) error {
	return unsupported()
}

func (s *Subpaths) prepare(context.Context, string, Subpath) error { return unsupported() }

// clean finds nothing: nothing can be prepared.
func (s *Subpaths) clean(context.Context, Owner, mount.UnmountOptions) error { return nil }

// volumes finds nothing either.
func (s *Subpaths) volumes(context.Context, string) ([]string, error) { return nil, nil }
