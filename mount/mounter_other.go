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

func (m *Mounter) checkIDMappings(context.Context, *Plan) error { return unsupported() }

func (m *Mounter) unmount(context.Context, string, UnmountOptions) error {
	return unsupported()
}

func (m *Mounter) removeTarget(context.Context, string) error { return unsupported() }

func (r *reader) isMountPoint(context.Context, string) (bool, error) {
	return false, unsupported()
}

func (r *reader) readTable(context.Context) ([]MountPoint, error) { return nil, unsupported() }

func (m *Mounter) lookup(context.Context, string) (MountPoint, error) {
	return MountPoint{}, unsupported()
}

func (r *reader) lookupID(uint64) (MountPoint, error) { return MountPoint{}, unsupported() }

func (r *reader) lookupIDInTable(context.Context, uint64) (MountPoint, error) {
	return MountPoint{}, unsupported()
}

func (r *reader) listTable(context.Context) ([]MountPoint, error) { return nil, unsupported() }

func (r *reader) mountRefs(context.Context, string) ([]string, error) { return nil, unsupported() }

// tableCache is the kept mount table, which there is none of.
type tableCache struct{}

func newTableCache() *tableCache { return nil }

func (r *reader) isMountPointCached(string) (bool, error) { return false, errWouldWait }

func (r *reader) stackBelow(MountPoint) ([]MountPoint, error) { return nil, unsupported() }

func (r *reader) watch(context.Context, func(TableChange)) error { return unsupported() }

func (m *Mounter) syncFS(context.Context, string) error { return unsupported() }

func (m *Mounter) report(context.Context, MountPoint) (FilesystemReport, error) {
	return FilesystemReport{}, unsupported()
}
