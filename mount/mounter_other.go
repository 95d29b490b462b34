//go:build !linux

package mount

import (
	"context"
	"fmt"
	"runtime"
)

func unsupported() error {
	return fmt.Errorf("mounts on %s: %w", runtime.GOOS, ErrUnsupported)
}

func checkFilesystem(string) error { return unsupported() }

func (m *Mounter) mount(context.Context, Plan) error { return unsupported() }

func (m *Mounter) unmount(context.Context, string, UnmountOptions) error {
	return unsupported()
}

func (m *Mounter) removeTarget(context.Context, string) error { return unsupported() }

func (m *Mounter) isMountPoint(context.Context, string) (bool, error) {
	return false, unsupported()
}

func (m *Mounter) readTable(context.Context) ([]MountPoint, error) { return nil, unsupported() }

func (m *Mounter) lookup(context.Context, string) (MountPoint, error) {
	return MountPoint{}, unsupported()
}

func (m *Mounter) lookupID(uint64) (MountPoint, error) { return MountPoint{}, unsupported() }

func (m *Mounter) lookupIDInTable(context.Context, uint64) (MountPoint, error) {
	return MountPoint{}, unsupported()
}

func (m *Mounter) listTable(context.Context) ([]MountPoint, error) { return nil, unsupported() }

func (m *Mounter) mountRefs(context.Context, string) ([]string, error) { return nil, unsupported() }

// current is the kept mount table, which there is none of.
type current struct{}

func newCurrent() *current { return nil }

func (m *Mounter) isMountPointNow(string) (bool, error) { return false, errWouldWait }

func (m *Mounter) stackBelow(MountPoint) ([]MountPoint, error) { return nil, unsupported() }

func (m *Mounter) watch(context.Context, func(Change)) error { return unsupported() }

func (m *Mounter) syncFS(context.Context, string) error { return unsupported() }

func (m *Mounter) report(context.Context, MountPoint) (FilesystemReport, error) {
	return FilesystemReport{}, unsupported()
}
