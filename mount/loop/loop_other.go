//go:build !linux

package loop

import (
	"context"
	"fmt"
	"os"
	"runtime"

	"github.com/volumekit/volumekit/mount"
)

func unsupported() error {
	return fmt.Errorf("loop devices on %s: %w", runtime.GOOS, mount.ErrUnsupported)
}

func openFile(string) (*os.File, error) { return nil, unsupported() }

func attachFile(context.Context, *os.File, Options) (Device, error) { return Device{}, unsupported() }

func findFile(context.Context, *os.File) (Device, error) { return Device{}, unsupported() }

func inspectPath(context.Context, string) (Device, error) { return Device{}, unsupported() }

func (Device) has(os.FileInfo) bool { return false }

func devices(context.Context) ([]Device, error) { return nil, unsupported() }

func detach(context.Context, Device) error { return unsupported() }

func whileDetached(context.Context, *os.File, func() error) error { return unsupported() }

func opened(context.Context, string) (bool, error) { return false, unsupported() }
