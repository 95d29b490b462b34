//go:build !linux

package blockmap

import (
	"context"
	"fmt"
	"runtime"

	"github.com/volumekit/volumekit/mount"
)

func unsupported() error {
	return fmt.Errorf("block devices on %s: %w", runtime.GOOS, mount.ErrUnsupported)
}

func (m *Mapper) mapDevice(context.Context, Mapping) error { return unsupported() }

func (m *Mapper) unmapDevice(context.Context, Mapping) error { return unsupported() }

func resolveDevice(string) (string, error) { return "", unsupported() }

func removeDir(string) error { return unsupported() }

func (m *Mapper) mappedPods(context.Context, string) ([]string, error) { return nil, unsupported() }
