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

func (m *Manager) attachPath(context.Context, string, AttachOptions) (Device, error) {
	return Device{}, unsupported()
}

func fileMountedAt(string) (string, error) { return "", unsupported() }

func (m *Manager) findPath(context.Context, string) (Device, error) { return Device{}, unsupported() }

func (m *Manager) resizePath(context.Context, string) (Device, error) { return Device{}, unsupported() }

func (m *Manager) attachFile(context.Context, *os.File, AttachOptions) (Device, error) {
	return Device{}, unsupported()
}

func (m *Manager) findFile(context.Context, *os.File) (Device, error) { return Device{}, unsupported() }

func (m *Manager) inspectPath(context.Context, string) (Device, error) {
	return Device{}, unsupported()
}

func (Device) has(os.FileInfo) bool { return false }

func (Device) holds(Device) bool { return false }

func (m *Manager) devices(context.Context) ([]Device, error) { return nil, unsupported() }

func (m *Manager) resizeFile(context.Context, *os.File) (Device, error) {
	return Device{}, unsupported()
}

func (m *Manager) detach(context.Context, Device) error { return unsupported() }

func (m *Manager) whileNot(context.Context, *os.File, func(Device) bool, func() error) error {
	return unsupported()
}

func (m *Manager) whileUnheld(context.Context, string, func() error) error { return unsupported() }

func (m *Manager) holdDevice(context.Context, *os.File, string) (Device, error) {
	return Device{}, unsupported()
}

func opened(context.Context, string) (bool, error) { return false, unsupported() }

func awaitUnclaimed(context.Context, string) (bool, error) { return false, unsupported() }
