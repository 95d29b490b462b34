//go:build !linux

package owned

import (
	"context"
	"fmt"
	"os"
	"runtime"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/safepath"
)

func unsupported() error {
	return fmt.Errorf("proving directories on %s: %w", runtime.GOOS, mount.ErrUnsupported)
}

// See is not supported here.
func See(context.Context, string, safepath.Options) (Seen, error) { return Seen{}, unsupported() }

// Check is not supported here.
func (s Seen) Check(context.Context, string, safepath.Options) error { return unsupported() }

// Record is not supported here.
func (d Directory) Record(context.Context, *os.File, safepath.Options) error { return unsupported() }

// Open is not supported here.
func (d Directory) Open(context.Context, safepath.Options) (*safepath.Root, error) {
	return nil, unsupported()
}

// IsRecorded is not supported here.
func (d Directory) IsRecorded(context.Context, safepath.Options) (bool, error) {
	return false, unsupported()
}

// Forget is not supported here.
func (d Directory) Forget(context.Context, safepath.Options) error { return unsupported() }
