package csidriver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/volumekit/volumekit/volume"
)

// The errors of states that contradict a driver's answers.
var (
	// ErrContradiction says that the mount table contradicts the driver.
	ErrContradiction = errors.New("the mount table says otherwise")
	// ErrNotStaged says that a volume is not staged: no pod can get it.
	ErrNotStaged = errors.New("the volume is not staged")
	// ErrNotAttached says that a volume is not known to be attached to this node.
	ErrNotAttached = errors.New("the volume is not attached")
)

// stager stages volumes of a driver: filesystems and, by the block mapper, devices.
type stager struct{ plugin *Plugin }

// NewDeviceMounter implements [volume.DeviceMountableVolumePlugin].
func (p *Plugin) NewDeviceMounter() (volume.DeviceMounter, error) { return &stager{p}, nil }

// NewDeviceUnmounter implements [volume.DeviceMountableVolumePlugin].
func (p *Plugin) NewDeviceUnmounter() (volume.DeviceUnmounter, error) { return &stager{p}, nil }

// CanDeviceMount implements [volume.DeviceMountableVolumePlugin] with the driver's facts. A volume that the driver staged
// before it dropped the capability counts as staged until it is unstaged: it keeps its name, and its manager unstages it.
func (p *Plugin) CanDeviceMount(spec *volume.Spec) (bool, error) {
	if p.isInline(spec) {
		return false, nil
	}
	src, err := p.sourceOf(spec)
	if err != nil || src.block {
		return false, err
	}
	return p.node.stages(src)
}

// stages reports whether a volume is staged: by the driver's facts, or by the record of a staging in this boot.
func (n *nodeService) stages(src source) (bool, error) {
	if n.client.stages() || !n.options.Services.Has(Node) {
		return n.client.stages(), nil
	}
	return n.isStaged(n.stagingPath(src))
}

// isStaged reports whether a volume was staged at a path in this boot, or may have been, by its record.
func (n *nodeService) isStaged(path string) (bool, error) {
	rec, known, err := n.mountPoints.records.read(path)
	return known && rec.Kind == staged && !n.mountPoints.records.outlived(rec), err
}

// GetDeviceMountRefs implements [volume.DeviceMountableVolumePlugin]. It returns the pods' paths from the records, and
// further mounts of the volume from the mount table.
func (p *Plugin) GetDeviceMountRefs(ctx context.Context, deviceMountPath string) ([]string, error) {
	return p.node.mountPoints.refs(ctx, deviceMountPath)
}

// nameInPath returns a handle as one element of a path.
func nameInPath(handle string) string {
	sum := sha256.Sum256([]byte(handle))
	return hex.EncodeToString(sum[:])
}

func (n *nodeService) stagingPath(src source) string {
	if src.block {
		return stagedDevice(n.globalMapPath(src))
	}
	return filepath.Join(n.host.GetPluginDir(n.name), "mounts", nameInPath(src.csi.VolumeHandle))
}

// GetDeviceMountPath returns {root}/plugins/{plugin name}/mounts/{hash of the handle}.
func (s *stager) GetDeviceMountPath(spec *volume.Spec) (string, error) {
	src, err := s.plugin.sourceOf(spec)
	if err != nil {
		return "", err
	}
	return s.plugin.node.stagingPath(src), nil
}

// MountDevice implements [volume.DeviceMounter].
func (s *stager) MountDevice(
	ctx context.Context, spec *volume.Spec, devicePath, deviceMountPath string, args volume.DeviceMounterArgs,
) error {
	src, err := s.plugin.sourceOf(spec)
	if err != nil {
		return err
	}
	if want := s.plugin.node.stagingPath(src); deviceMountPath != want {
		return fmt.Errorf("volume %q is staged at %q and not at %q: %w", src.pv.Name, want, deviceMountPath, volume.ErrInvalid)
	}
	return s.plugin.node.stage(ctx, staging{src: src, path: deviceMountPath, devicePath: devicePath, group: args.FsGroup, label: args.SELinuxLabel})
}

// staging is one NodeStageVolume.
type staging struct {
	src              source
	path, devicePath string
	group            *int64
	label            string
}

// stage records the volume and has the driver stage it. A driver that stages no volumes any more publishes without that:
// nothing is left to do for a volume that it has staged before.
func (n *nodeService) stage(ctx context.Context, st staging) error {
	s, err := n.client.session(ctx)
	if err != nil {
		return err
	}
	if !s.facts.node[csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
		isStaged, err := n.isStaged(st.path)
		if err == nil && !isStaged {
			err = fmt.Errorf("driver %q: it does not stage volumes any more: %w", s.facts.name, volume.ErrUnsupported)
		}
		return volume.Transient(err)
	}
	publish, _ := PublishContext(st.devicePath)
	request, err := n.stageRequest(ctx, s.facts, st, publish)
	if err != nil {
		return n.mountPoints.notCalled(st.path, err)
	}
	existed, err := n.mountPoints.records.write(record{Path: st.path, VolumeID: st.src.csi.VolumeHandle, Kind: staged, PublishContext: publish})
	if err != nil {
		return fmt.Errorf("staging volume %q: %w", st.src.pv.Name, err)
	}
	err = os.MkdirAll(st.path, 0o750)
	if err == nil {
		_, err = call(ctx, s, "NodeStageVolume", csi.NewNodeClient(s.conn).NodeStageVolume, request)
	}
	if err == nil {
		return nil
	}
	return n.mountPoints.undoFailed(ctx, st.path, existed, err)
}

func (n *nodeService) stageRequest(ctx context.Context, f facts, st staging, publish map[string]string) (*csi.NodeStageVolumeRequest, error) {
	capability, err := n.useOf(f, st.src, st.group, st.label).capability(f)
	if err != nil {
		return nil, err
	}
	secrets, err := n.options.secret(ctx, st.src.csi.NodeStageSecretRef)
	if err != nil {
		return nil, err
	}
	return &csi.NodeStageVolumeRequest{
		VolumeId: st.src.csi.VolumeHandle, StagingTargetPath: st.path, VolumeCapability: capability, Secrets: secrets,
		VolumeContext: st.src.csi.VolumeAttributes, PublishContext: publish,
	}, nil
}

// useOf returns the use of a volume on this node: with the group, if the driver supports that, and with the SELinux
// context.
func (n *nodeService) useOf(f facts, src source, group *int64, label string) use {
	u := src.use()
	if group != nil && f.node[csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP] {
		u.group = fmt.Sprint(*group)
	}
	if label != "" && isTrue(n.client.spec().SELinuxMount) {
		u.mountFlags = append(slices.Clone(u.mountFlags), fmt.Sprintf("context=%q", label))
	}
	return u
}

// UnmountDevice implements [volume.DeviceUnmounter].
func (s *stager) UnmountDevice(ctx context.Context, deviceMountPath string) error {
	return s.plugin.node.tearDown(ctx, deviceMountPath, staged)
}

// tearDown has the driver undo the record of path, and checks the result. It does not touch a path without a record: a
// mount there is foreign.
func (n *nodeService) tearDown(ctx context.Context, path string, of kind) error {
	rec, known, err := n.mountPoints.records.read(path)
	if err != nil {
		return err
	}
	if known && rec.Kind != of {
		return fmt.Errorf("driver %q: at %q a volume is %s and not %s: %w", n.options.Driver, path, rec.Kind, of, volume.ErrInvalid)
	}
	if !known {
		return n.mountPoints.clearUnrecorded(ctx, path)
	}
	if err := n.undo(ctx, rec); err != nil {
		return err
	}
	mounted, err := n.mountPoints.isMounted(ctx, path)
	if err != nil {
		return volume.Uncertain(err)
	}
	if mounted {
		return volume.Uncertain(fmt.Errorf("driver %q: volume %q is still mounted at %q: %w", n.options.Driver, rec.VolumeID, path, ErrContradiction))
	}
	return n.mountPoints.clear(ctx, path)
}

// undo makes the call that undoes a record.
func (n *nodeService) undo(ctx context.Context, rec record) error {
	s, err := n.client.session(ctx)
	if err != nil {
		return err
	}
	if rec.Kind == staged {
		_, err = call(ctx, s, "NodeUnstageVolume", csi.NewNodeClient(s.conn).NodeUnstageVolume,
			&csi.NodeUnstageVolumeRequest{VolumeId: rec.VolumeID, StagingTargetPath: rec.Path})
		return n.unstaged(rec, err)
	}
	_, err = call(ctx, s, "NodeUnpublishVolume", csi.NewNodeClient(s.conn).NodeUnpublishVolume,
		&csi.NodeUnpublishVolumeRequest{VolumeId: rec.VolumeID, TargetPath: rec.Path})
	return err
}

// unstaged returns the error of NodeUnstageVolume. A driver without that call does not say what remains of the staging: the
// record stays until a version of the driver with the call has undone it, or until a reboot, which ends what the kernel has.
func (n *nodeService) unstaged(rec record, err error) error {
	switch {
	case !isUnimplemented(err):
		return err
	case n.mountPoints.records.outlived(rec):
		return nil
	}
	return fmt.Errorf("volume %q stays staged at %q: start a version of the driver that can unstage it, or reboot the node: %w: %w",
		rec.VolumeID, rec.Path, err, volume.ErrUnsupported)
}
