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

func fileMountedAt(string) (string, error) { return "", unsupported() }

type handle struct{}

func withPath(context.Context, string, func(handle) (Device, error)) (Device, error) {
	return Device{}, unsupported()
}

func withHandle[T any](*os.File, func(handle) (T, error)) (T, error) { return *new(T), unsupported() }

func (*Manager) attach(context.Context, handle, AttachOptions) (Device, error) {
	return Device{}, unsupported()
}

func (*Manager) resize(context.Context, handle) (Device, error) { return Device{}, unsupported() }

func (*Manager) tune(context.Context, handle, Tuning) (Device, error) { return Device{}, unsupported() }

func (*Manager) hold(context.Context, handle, string) (Device, error) {
	return Device{}, unsupported()
}

func (index) find(context.Context, handle) (Device, error) { return Device{}, unsupported() }

func (index) devices(context.Context) ([]Device, error) { return nil, unsupported() }

func (inspector) at(context.Context, string) (Device, error) { return Device{}, unsupported() }

func (Device) has(os.FileInfo) bool { return false }

func (Device) holds(Device) bool { return false }

func (*Manager) detach(context.Context, Device) error { return unsupported() }

func (*Manager) whileNot(context.Context, *os.File, func(Device) bool, func() error) error {
	return unsupported()
}

func (*Manager) whileUnheld(context.Context, string, func() error) error { return unsupported() }

func opened(context.Context, string) (bool, error) { return false, unsupported() }

func awaitReleased(context.Context, string) (bool, error) { return false, unsupported() }
