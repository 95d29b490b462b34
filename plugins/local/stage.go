package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"syscall"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/format"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/mount/safepath"
	"github.com/volumekit/volumekit/volume"
)

// defaultFSType is the filesystem of a blank disk whose volume names none, as in Kubernetes.
const defaultFSType = "ext4"

// stager stages and unstages volumes on this node.
type stager struct{ plugin *Plugin }

// NewDeviceMounter implements [volume.DeviceMountableVolumePlugin].
func (p *Plugin) NewDeviceMounter() (volume.DeviceMounter, error) { return &stager{p}, nil }

// NewDeviceUnmounter implements [volume.DeviceMountableVolumePlugin].
func (p *Plugin) NewDeviceUnmounter() (volume.DeviceUnmounter, error) { return &stager{p}, nil }

// CanDeviceMount implements [volume.DeviceMountableVolumePlugin]: every volume is staged but one that is mapped.
func (p *Plugin) CanDeviceMount(spec *volume.Spec) (bool, error) {
	if _, err := nameOf(spec); err != nil {
		return false, err
	}
	return volume.CheckVolumeModeFilesystem(spec)
}

// GetDeviceMountRefs implements [volume.DeviceMountableVolumePlugin]. A directory may be a mount that the node's operator has
// made, and two volumes may name one directory: only the pods of this volume count.
func (p *Plugin) GetDeviceMountRefs(ctx context.Context, deviceMountPath string) ([]string, error) {
	refs, err := p.mount.GetMountRefs(ctx, deviceMountPath)
	if err != nil {
		return nil, err
	}
	name := filepath.Base(deviceMountPath)
	return slices.DeleteFunc(slices.Clone(refs), func(ref string) bool {
		return filepath.Base(ref) != name || !safepath.Contains(p.host.GetPodsDir(), ref)
	}), nil
}

// GetDeviceMountPath implements [volume.DeviceMounter]: {root}/plugins/kubernetes.io/local-volume/mounts/{name}.
func (s *stager) GetDeviceMountPath(spec *volume.Spec) (string, error) {
	name, err := filesystemNameOf(spec)
	if err != nil {
		return "", err
	}
	return s.plugin.stagingPath(name), nil
}

func (p *Plugin) mountsDir() string { return filepath.Join(p.host.GetPluginDir(Name), "mounts") }

// checksDir is the directory of the records of checks.
func (p *Plugin) checksDir() string { return filepath.Join(p.host.GetPluginDir(Name), "checks") }

func (p *Plugin) stagingPath(name string) string { return filepath.Join(p.mountsDir(), name) }

// MountDevice implements [volume.DeviceMounter]. deviceMountPath must be what GetDeviceMountPath returns; something else that
// is mounted there is an error that matches mount.ErrForeign.
func (s *stager) MountDevice(
	ctx context.Context, spec *volume.Spec, _, deviceMountPath string, _ volume.DeviceMounterArgs,
) error {
	want, err := s.GetDeviceMountPath(spec)
	if err != nil {
		return err
	}
	src, err := sourceOf(spec)
	switch {
	case err != nil:
		return err
	case deviceMountPath != want:
		return fmt.Errorf("local volume %q is staged at %q and not at %q: %w", src.name, want, deviceMountPath, volume.ErrInvalid)
	}
	if err := s.plugin.stage(ctx, src, deviceMountPath); err != nil {
		return fmt.Errorf("staging local volume %q: %w", src.name, err)
	}
	return nil
}

func (p *Plugin) stage(ctx context.Context, src source, target string) error {
	found, err := p.find(ctx, src)
	if err != nil {
		return err
	}
	there, mounted, err := p.mountAt(ctx, target)
	switch {
	case err != nil:
		return err
	case mounted:
		return p.adopt(ctx, found, there)
	case found.isDevice:
		return p.mountDisk(ctx, src, found, target)
	}
	return p.bindDirectory(ctx, src, found, target)
}

// adopt accepts what is staged already, if it is the volume.
func (p *Plugin) adopt(ctx context.Context, found target, there mount.MountPoint) error {
	shown, err := p.isShownBy(ctx, found, there)
	if err == nil && !shown {
		err = fmt.Errorf("%s (%s) is mounted at %s, and not %s: unmount it first: %w",
			there.Source, there.FSType, there.Path, found.path, mount.ErrForeign)
	}
	return err
}

// bindDirectory stages the directory that find has opened. It does not follow a link that came into the path since.
func (p *Plugin) bindDirectory(ctx context.Context, src source, found target, target string) error {
	parent, err := safepath.Open(ctx, filepath.Dir(found.path), safepath.Options{Mounter: p.mount})
	if err != nil {
		return err
	}
	defer func() { _ = parent.Close() }() // nothing was written to it
	return parent.Bind(ctx, filepath.Base(found.path), target, safepath.BindOptions{
		Kinds: safepath.Directory, ReadOnly: src.readOnly,
	})
}

// mountDisk stages the filesystem of a disk. It makes the filesystem if the disk is proven to be blank. No pod has the disk as a raw
// device meanwhile.
func (p *Plugin) mountDisk(ctx context.Context, src source, found target, target string) error {
	if err := found.checkWritable(src); err != nil {
		return err
	}
	err := p.devices.WhileUnheld(ctx, found.path, func() error {
		fsType, err := p.prepare(ctx, src, found.path)
		if err != nil {
			return err
		}
		request := mount.Request{Source: found.path, Target: target, FSType: fsType, UserOptions: src.options}
		if found.readOnly {
			request.Options = []string{"ro"}
		}
		return p.explain(ctx, found.path, fsType, p.mount.Mount(ctx, request))
	})
	if found.readOnly && errors.Is(err, syscall.EROFS) {
		err = fmt.Errorf("the disk is read-only and its filesystem was not unmounted cleanly: make it writable (blockdev --setrw) once: %w", err)
	}
	if errors.Is(err, loop.ErrInUse) {
		err = fmt.Errorf("%w: %w", volume.ErrInUse, err)
	}
	return err
}

// explain adds to err the mounted filesystem with the same identity, if that is the cause.
func (p *Plugin) explain(ctx context.Context, disk, fsType string, err error) error {
	if err == nil {
		return nil
	}
	table, listErr := p.mount.List(ctx)
	if listErr != nil {
		return err
	}
	return format.ExplainMount(ctx, disk, fsType, table, err)
}

// prepare returns the filesystem on a disk, made or checked.
func (p *Plugin) prepare(ctx context.Context, src source, disk string) (string, error) {
	found, err := format.Probe(ctx, disk)
	switch {
	case err != nil:
		return "", err
	case found.Type == "":
		return p.format(ctx, src, disk)
	case found.Kind != format.Filesystem:
		return "", fmt.Errorf("%s holds %s: wipe it (wipefs) if it is not needed: %w", disk, found, ErrWrongContent)
	case src.fsType != "" && src.fsType != found.Type:
		return "", fmt.Errorf("%s holds %s and the volume's fsType is %s: %w", disk, found, src.fsType, ErrWrongContent)
	case src.podReadOnly:
		return found.Type, nil
	}
	return found.Type, p.check(ctx, src, disk, found.Type)
}

// format makes the filesystem of a disk without a known signature, if the disk is proven to be blank.
func (p *Plugin) format(ctx context.Context, src source, disk string) (string, error) {
	if src.podReadOnly {
		return "", fmt.Errorf("%s holds no filesystem, and none is made for a volume that is read-only: %w", disk, ErrWrongContent)
	}
	fsType := cmp.Or(src.fsType, defaultFSType)
	if err := format.Make(ctx, disk, format.MakeOptions{FSType: fsType}); err != nil {
		return "", err
	}
	p.logger.Info("a blank disk was formatted", "volume", src.name, "device", disk, "fstype", fsType)
	return fsType, nil
}

// check runs the filesystem's check on a disk that is not mounted in any mount namespace. If the program is missing, only the kernel
// replays the journal.
func (p *Plugin) check(ctx context.Context, src source, disk, fsType string) error {
	mounted, err := p.devices.AwaitReleased(ctx, disk)
	if err != nil || mounted {
		return err
	}
	kept := recoveryStore{Directory: format.Directory{Dir: p.checksDir(), Name: src.name}, plugin: p}
	result, err := format.CheckRecoverable(ctx, disk, fsType, kept)
	if errors.Is(err, format.ErrNoTool) {
		p.logger.Warn("the filesystem is mounted without a check", "device", disk, "fstype", fsType, "error", err)
		return nil
	}
	if err == nil && result.Repaired {
		p.logger.Warn("the filesystem was repaired", "device", disk, "fstype", fsType)
		p.reportRepaired(src, disk)
	}
	if err == nil && !result.Repaired && result.Errors > 0 {
		p.logger.Warn("the filesystem had errors on record", "device", disk, "fstype", fsType, "errors", result.Errors)
		p.reportErrors(src, disk, result.Errors)
	}
	return err
}

// recoveryStore stores the records of checks. A full disk does not stop the check: recoveryStore logs it.
type recoveryStore struct {
	format.Directory

	plugin *Plugin
}

// Save implements [format.RecoveryStore].
func (k recoveryStore) Save(ctx context.Context, name string, data []byte) error {
	err := k.Directory.Save(ctx, name, data)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		k.plugin.logger.Warn("there is no room for what a check needs that is killed: make room", "volume", k.Name, "dir", k.Dir, "error", err)
	}
	return err
}

// EventFilesystemRepaired is the reason of the event about a PersistentVolume whose filesystem had errors that were repaired
// before it was mounted.
const EventFilesystemRepaired = "FilesystemRepaired"

// EventFilesystemErrors is the reason of the event about a PersistentVolume whose filesystem had errors on record, which the
// kernel had found while it was mounted, and in which a check has found nothing to repair.
const EventFilesystemErrors = "FilesystemErrors"

func (p *Plugin) reportErrors(src source, disk string, count int) {
	if p.events != nil {
		p.events.Eventf(src.pv, v1.EventTypeWarning, EventFilesystemErrors,
			"the kernel had found %d errors in the filesystem on %q while it was used; a check has found nothing to repair: what was written then may be missing", count, disk)
	}
}

func (p *Plugin) reportRepaired(src source, disk string) {
	if p.events != nil {
		p.events.Eventf(src.pv, v1.EventTypeWarning, EventFilesystemRepaired,
			"the filesystem on %q had errors, which were repaired: what was written last may be missing", disk)
	}
}

// UnmountDevice implements [volume.DeviceUnmounter]. A path that is not one of a staging directory of this plugin is an error
// that matches volume.ErrInvalid.
func (s *stager) UnmountDevice(ctx context.Context, deviceMountPath string) error {
	name := filepath.Base(deviceMountPath)
	if volume.CheckPathElement(name) != nil || s.plugin.stagingPath(name) != deviceMountPath {
		return fmt.Errorf("%q is not a staging directory in %q: %w", deviceMountPath, s.plugin.mountsDir(), volume.ErrInvalid)
	}
	if err := s.plugin.unmountOwn(ctx, deviceMountPath); err != nil {
		return fmt.Errorf("unstaging local volume %q: %w", name, err)
	}
	return nil
}
