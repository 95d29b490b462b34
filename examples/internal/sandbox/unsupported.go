//go:build !linux

package sandbox

import (
	"context"
	"fmt"
	"runtime"

	"github.com/volumekit/volumekit/volume"
)

// Enter reports that only Linux can mount volumes.
func Enter() (inside bool, code int, err error) {
	return false, 0, fmt.Errorf("mount volumes on %s: %w: run it on Linux", runtime.GOOS, volume.ErrUnsupported)
}

// HowToEnter returns "": there is no namespace to enter.
func HowToEnter() string { return "" }

// InUserNamespace returns false.
func InUserNamespace() bool { return false }

// FindLeftovers returns an error: it cannot read mounts here.
func FindLeftovers(context.Context, string) (Leftovers, error) {
	return Leftovers{}, volume.ErrUnsupported
}

func removeEmptyDirs(string) error { return volume.ErrUnsupported }

func removeDir(string) error { return volume.ErrUnsupported }

// Missing returns an error: no volume is supported here.
func Missing(string) error { return volume.ErrUnsupported }
