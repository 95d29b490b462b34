//go:build !linux

package sandbox

import (
	"context"
	"fmt"
	"runtime"

	"github.com/volumekit/volumekit/volume"
)

// Enter says that volumes are mounted on Linux only.
func Enter() (inside bool, code int, err error) {
	return false, 0, fmt.Errorf("mount volumes on %s: %w: run it on Linux", runtime.GOOS, volume.ErrUnsupported)
}

// HowToEnter returns nothing: no namespace can be entered.
func HowToEnter() string { return "" }

// InUserNamespace is false.
func InUserNamespace() bool { return false }

// FindLeftovers cannot look.
func FindLeftovers(context.Context, string) (Leftovers, error) {
	return Leftovers{}, volume.ErrUnsupported
}

func removeEmptyDirs(string) error { return volume.ErrUnsupported }

func removeDir(string) error { return volume.ErrUnsupported }

// Missing says that nothing can be served.
func Missing(string) error { return volume.ErrUnsupported }
