package csidriver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// mountPoints reads the paths of a driver's volumes on this node from the records and the mount table.
type mountPoints struct {
	driver  string
	mounter mount.Interface
	records records
}

// isMounted reports whether something is mounted at path, which need not exist.
func (m *mountPoints) isMounted(ctx context.Context, path string) (bool, error) {
	mounted, err := m.mounter.IsMountPoint(ctx, path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return mounted, err
}

// refs returns the pods' paths of a volume that is staged at a path.
func (m *mountPoints) refs(ctx context.Context, staging string) ([]string, error) {
	refs, err := m.mounter.GetMountRefs(ctx, staging)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	refs = slices.Clone(refs)
	pods, err := m.records.all(func(r record) bool { return r.Kind == published && r.Staging == staging })
	if err != nil {
		return nil, err
	}
	for _, pod := range pods {
		mounted, err := m.isMounted(ctx, pod.Path)
		if err != nil {
			return nil, err
		}
		if mounted && !slices.Contains(refs, pod.Path) {
			refs = append(refs, pod.Path)
		}
	}
	return refs, nil
}

// checkUnused returns an error that matches [volume.ErrInUse] if a volume is staged or published on this node by the
// records. A record of an earlier boot at whose path nothing is mounted does not count: after a power cut there may be
// such a record of a volume that has been unstaged. checkUnused returns these records.
func (m *mountPoints) checkUnused(ctx context.Context, volumeID string) (outlived []record, err error) {
	found, err := m.records.all(func(r record) bool { return r.VolumeID == volumeID })
	if err != nil {
		return nil, fmt.Errorf("it is not known whether it is used: %w", err)
	}
	for _, rec := range found {
		mounted := true
		if m.records.outlived(rec) {
			if mounted, err = m.isMounted(ctx, rec.Path); err != nil {
				return nil, fmt.Errorf("it is not known whether it is used: %w", err)
			}
		}
		if mounted {
			return nil, fmt.Errorf("it is %s at %q: %w", rec.Kind, rec.Path, volume.ErrInUse)
		}
		outlived = append(outlived, rec)
	}
	return outlived, nil
}

// removeOutlived removes records of earlier boots. It keeps a record that has been replaced meanwhile.
func (m *mountPoints) removeOutlived(outlived []record) error {
	var errs []error
	for _, old := range outlived {
		rec, known, err := m.records.read(old.Path)
		if err == nil && known && m.records.outlived(rec) {
			err = m.records.remove(old.Path)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// notCalled classifies the error of a call that was refused before the driver got it. If an earlier call is on record at path, its
// effect may be there, and the error must not count as final: it is transient.
func (m *mountPoints) notCalled(path string, cause error) error {
	if _, known, err := m.records.read(path); !known && err == nil {
		return cause
	}
	return volume.Transient(cause)
}

// undoFailed classifies the failure of a call that mounts at path. Only if the driver's answer is final, there was no
// record before, and nothing is mounted, the call had no effect: undoFailed then removes the call's directory and
// record.
func (m *mountPoints) undoFailed(ctx context.Context, path string, existed bool, cause error) error { //nolint:revive // It is the result of write.
	if isUncertain(cause) || existed {
		return volume.Uncertain(cause)
	}
	mounted, err := m.isMounted(context.WithoutCancel(ctx), path)
	switch {
	case err != nil:
		return volume.Uncertain(errors.Join(cause, err))
	case mounted:
		return volume.Uncertain(fmt.Errorf("%w, and something is mounted at %q: %w", cause, path, ErrContradiction))
	}
	if err := m.clear(context.WithoutCancel(ctx), path); err != nil {
		return volume.Uncertain(errors.Join(cause, err))
	}
	return cause
}

// clear removes a mount point at which nothing is mounted, and then its record.
func (m *mountPoints) clear(ctx context.Context, path string) error {
	if err := m.mounter.RemoveTarget(ctx, path); err != nil {
		if errors.Is(err, unix.ENOTEMPTY) {
			return errors.Join(fmt.Errorf("%q: %w: %w", path, volume.ErrDirectoryKept, err), m.records.remove(path))
		}
		return fmt.Errorf("removing %q: %w", path, err)
	}
	return m.records.remove(path)
}

func (m *mountPoints) clearUnrecorded(ctx context.Context, path string) error {
	mounted, err := m.isMounted(ctx, path)
	if err != nil {
		return err
	}
	if mounted {
		return fmt.Errorf("driver %q: %q is mounted and on no record: unmount it by hand: %w", m.driver, path, mount.ErrForeign)
	}
	return m.clear(ctx, path)
}
