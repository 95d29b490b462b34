//go:build !linux

package main

import (
	"context"
	"fmt"
	"runtime"

	"github.com/volumekit/volumekit/volume"
)

// enterNamespace says that volumes are mounted on Linux only.
func enterNamespace() (inside bool, code int, err error) {
	return false, 0, fmt.Errorf("mount volumes on %s: %w: run it on Linux", runtime.GOOS, volume.ErrUnsupported)
}

func howToEnter() string { return "" }

func inUserNamespace() bool { return false }

func findLeftovers(context.Context, string) (leftovers, error) {
	return leftovers{}, volume.ErrUnsupported
}

func removeEmptyDirs(string) error { return volume.ErrUnsupported }

func removeDir(string) error { return volume.ErrUnsupported }

func missing(string) error { return volume.ErrUnsupported }
