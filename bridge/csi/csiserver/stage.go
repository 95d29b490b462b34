package csiserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// stager stages volumes, on record. Its methods are called by who has the volume's lock.
type stager struct {
	*resolved

	runtime     *runtimeRecords
	attachments *attachments
	unrecorded  []mount.MountPoint // see findUnrecorded
}

// NodeStageVolume attaches a volume, with [AttachOnNode], waits for its device, and mounts or prepares that for all workloads of
// the node.
func (n *node) NodeStageVolume(ctx context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	if !n.stages() {
		return nil, unimplemented("NodeStageVolume")
	}
	if err := checkVolumeID(r.GetVolumeId()); err != nil {
		return nil, err
	}
	if err := checkPath("staging_target_path", r.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	st := staging{Boot: n.runtime.boot, ID: r.GetVolumeId(), Path: r.GetStagingTargetPath()}
	spec, u, err := n.specOfRequest(r)
	if err != nil {
		return nil, err
	}
	st.Capability, st.ReadOnly, st.PV = u.capability, u.readOnly, n.recorded(spec)
	err = n.locks.exclusively(ctx, idLock(st.ID), func() error {
		return n.stagings.stage(ctx, st, staged{spec: spec, pod: podOf(uidOf(st.ID, st.Path), r.GetVolumeContext()), device: r.GetPublishContext()[deviceKey]})
	})
	if err != nil {
		return nil, err
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

// nodeRequest is what requests to stage and to publish have in common.
type nodeRequest interface {
	GetVolumeId() string
	GetVolumeCapability() *csi.VolumeCapability
	GetVolumeContext() map[string]string
	GetPublishContext() map[string]string
}

// specOfRequest returns the volume of a request as the plugin sees it.
func (n *node) specOfRequest(r nodeRequest) (*volume.Spec, use, error) {
	wanted, err := n.supported(r.GetVolumeCapability())
	if err != nil {
		return nil, use{}, err
	}
	u := use{capability: wanted, readOnly: r.GetPublishContext()[readOnlyKey] == "true"}
	if publish, ok := r.(interface{ GetReadonly() bool }); ok {
		u.podReadOnly = publish.GetReadonly()
	}
	o, err := n.originOfContext(r.GetVolumeId(), r.GetVolumeContext())
	if err != nil {
		return nil, use{}, err
	}
	spec, err := n.specOf(r.GetVolumeId(), o, u)
	return spec, u, err
}

// staged is what staging needs beside its record.
type staged struct {
	spec   *volume.Spec
	pod    *v1.Pod
	device string // what Attach has returned, elsewhere
}

// stage stages a volume that the caller has the lock of. Each step finds done what an earlier call has done.
func (s *stager) stage(ctx context.Context, st staging, what staged) error {
	before, known := s.runtime.stagings.Get(st.ID)
	if known {
		if err := s.checkSameVolume(before, what.spec); err != nil {
			return err
		}
	}
	switch {
	case known && before.Path != st.Path:
		return status.Errorf(codes.FailedPrecondition, "volume %s is staged at %q: unstage it there first", volume.Quote(st.ID), before.Path)
	case known && before.Capability.Block != st.Capability.Block:
		return status.Errorf(codes.AlreadyExists, "volume %s is staged with Block=%t, or may be: unstage it first", volume.Quote(st.ID), before.Capability.Block)
	case known && before.Done && (!before.Capability.is(st.Capability) || before.ReadOnly != st.ReadOnly ||
		!slices.Equal(before.PV.Spec.MountOptions, st.PV.Spec.MountOptions)):
		return status.Errorf(codes.AlreadyExists, "volume %s is staged otherwise than it is asked for", volume.Quote(st.ID))
	}
	var err error
	if st.MountPath, err = s.mountPath(what.spec); err != nil {
		return err
	}
	if err := s.checkMountPath(st); err != nil {
		return err
	}
	if !known {
		if err := s.runtime.stagings.Put(st.ID, st); err != nil {
			return volume.Transient(err)
		}
	}
	st.Device, err = s.prepare(ctx, st, what)
	if err != nil {
		return s.stageFailed(ctx, st, before, err)
	}
	if before.Done && before.Device == st.Device && !before.Unstaging {
		return nil
	}
	st.Done = true
	if err := s.runtime.stagings.Put(st.ID, st); err != nil {
		return volume.Uncertain(err)
	}
	return nil
}

// checkSameVolume returns an error if the context of a request is that of another volume than the one that is staged with this id.
func (s *stager) checkSameVolume(st staging, spec *volume.Spec) error {
	staged, err := s.plugin.GetVolumeName(volume.NewSpecFromPersistentVolume(st.PV, false))
	if err != nil {
		return err
	}
	wanted, err := s.plugin.GetVolumeName(spec)
	if err != nil {
		return err
	}
	if staged != wanted {
		return status.Errorf(codes.AlreadyExists, "volume %s is staged, or may be, with the context of volume %s, and not of %s: give the context that CreateVolume has returned",
			volume.Quote(st.ID), volume.Quote(staged), volume.Quote(wanted))
	}
	return nil
}

// checkMountPath returns an error if the plugin mounts the volume where one with another id is staged: it is one volume, and to unstage
// it with one id would take it from the other.
func (s *stager) checkMountPath(st staging) error {
	others := s.runtime.stagings.Where(func(other staging) bool {
		return other.ID != st.ID && other.MountPath != "" && other.MountPath == st.MountPath
	})
	if len(others) > 0 {
		return status.Errorf(codes.FailedPrecondition, "volume %s is staged with the id %s: unstage that first", volume.Quote(st.ID), volume.Quote(others[0].ID))
	}
	return nil
}

// mountPath returns where the plugin mounts the device; empty when it does not.
func (s *resolved) mountPath(spec *volume.Spec) (string, error) {
	plugin, ok := s.plugin.(volume.DeviceMountableVolumePlugin)
	if !ok || !s.can.Has(volume.CapDeviceMount) {
		return "", nil
	}
	if block, err := isBlock(spec); block || err != nil {
		return "", err
	}
	if does, err := plugin.CanDeviceMount(spec); err != nil || !does {
		return "", err
	}
	mounter, err := plugin.NewDeviceMounter()
	if err != nil {
		return "", err
	}
	return mounter.GetDeviceMountPath(spec)
}

func isBlock(spec *volume.Spec) (bool, error) {
	mode, err := volume.GetVolumeMode(spec)
	return mode == v1.PersistentVolumeBlock, err
}

// prepare attaches and stages, and returns the device.
func (s *stager) prepare(ctx context.Context, st staging, what staged) (device string, err error) {
	device = what.device
	if s.attachesOnNode() {
		if device, err = s.attachments.attachHere(ctx, st); err != nil {
			return "", err
		}
	}
	if device, err = s.waitForDevice(ctx, what.spec, device, what.pod); err != nil {
		return "", err
	}
	if st.Capability.Block {
		return device, s.setUpDevice(ctx, what.spec, what.pod, device)
	}
	if st.MountPath == "" {
		return device, nil
	}
	return device, s.mountDevice(ctx, st, what.spec, device)
}

// attachHere attaches a volume to this node. That outlives a boot, and so is on record in StateDir.
func (s *attachments) attachHere(ctx context.Context, st staging) (string, error) {
	a, err := s.attach(ctx, s.attachmentOf(st))
	return a.Device, err
}

// waitForDevice waits until the device is there, where the plugin attaches at all.
func (s *stager) waitForDevice(ctx context.Context, spec *volume.Spec, device string, pod *v1.Pod) (string, error) {
	plugin, ok := s.plugin.(volume.AttachableVolumePlugin)
	if !ok || !s.can.Has(volume.CapAttach) {
		return device, nil
	}
	if does, err := plugin.CanAttach(spec); err != nil || !does {
		return device, err
	}
	attacher, err := plugin.NewAttacher()
	if err != nil {
		return "", err
	}
	return attacher.WaitForAttach(ctx, spec, device, pod)
}

func (s *stager) mountDevice(ctx context.Context, st staging, spec *volume.Spec, device string) error {
	plugin, ok := s.plugin.(volume.DeviceMountableVolumePlugin)
	if !ok {
		return unimplemented("NodeStageVolume")
	}
	mounter, err := plugin.NewDeviceMounter()
	if err != nil {
		return err
	}
	err = mounter.MountDevice(ctx, spec, device, st.MountPath, volume.DeviceMounterArgs{FsGroup: st.Capability.Group})
	if err != nil {
		return err
	}
	mounting, ok := s.plugin.(volume.MountingVolumePlugin)
	if !ok || !mounting.MountDeviceIsMount(spec) {
		return nil
	}
	return s.checkMounted(ctx, st.MountPath)
}

// checkMounted finds out a success that mounted nothing, so that no workload writes into the directory beneath.
func (s *resolved) checkMounted(ctx context.Context, path string) error {
	_, err := s.mounter.Lookup(ctx, path)
	if errors.Is(err, mount.ErrNotMounted) {
		return volume.Uncertain(fmt.Errorf("plugin %q reports success, and nothing is mounted at %q: %w", s.plugin.GetPluginName(), path, err))
	}
	return err
}

func (s *stager) setUpDevice(ctx context.Context, spec *volume.Spec, pod *v1.Pod, device string) error {
	mapper, err := s.blockMapper(spec, pod)
	if err != nil {
		return err
	}
	custom, ok := mapper.(volume.CustomBlockVolumeMapper)
	if !ok {
		return nil
	}
	_, err = custom.SetUpDevice(ctx, volume.SetUpDeviceArgs{DevicePath: device})
	return err
}

func (s *resolved) blockMapper(spec *volume.Spec, pod *v1.Pod) (volume.BlockVolumeMapper, error) {
	plugin, ok := s.plugin.(volume.BlockVolumePlugin)
	if !ok {
		return nil, unimplemented("block volumes")
	}
	return plugin.NewBlockVolumeMapper(spec, pod)
}

// stageFailed returns the error of a failed call to stage. After one that is not uncertain callers do not unstage: what the call has begun,
// or an earlier one of which before is the record, is undone. What was staged before stays so, and so does what a later call may finish: the
// error is uncertain then.
func (s *stager) stageFailed(ctx context.Context, st, before staging, err error) error {
	if outcome.IsUncertain(err) || before.Done || before.ID != "" && outcome.ClassOf(err) == outcome.Transient {
		return volume.Uncertain(err)
	}
	if undoing := s.unstage(ctx, st); undoing != nil {
		return volume.Uncertain(fmt.Errorf("%w; what the call has begun is not undone: %w", err, undoing))
	}
	return err
}

// NodeUnstageVolume undoes NodeStageVolume. A volume that is not on record is not staged, and is no error.
func (n *node) NodeUnstageVolume(ctx context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	if !n.stages() {
		return nil, unimplemented("NodeUnstageVolume")
	}
	if err := checkVolumeID(r.GetVolumeId()); err != nil {
		return nil, err
	}
	if err := checkPath("staging_target_path", r.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	err := n.locks.exclusively(ctx, idLock(r.GetVolumeId()), func() error { return n.stagings.unstageAt(ctx, r.GetVolumeId(), r.GetStagingTargetPath()) })
	if err != nil {
		return nil, err
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}

func (s *stager) unstageAt(ctx context.Context, id, path string) error {
	st, ok := s.runtime.stagings.Get(id)
	switch {
	case !ok:
		return s.unstageUnrecorded(ctx, id)
	case st.Path != path:
		return status.Errorf(codes.FailedPrecondition, "volume %s is staged at %q, and not at %q", volume.Quote(id), st.Path, path)
	}
	if all := s.runtime.publicationsOf(id); len(all) > 0 {
		return status.Errorf(codes.FailedPrecondition, "volume %s is published at %q: unpublish it first", volume.Quote(id), all[0].Target)
	}
	return s.unstage(ctx, st)
}

// unstage takes away what is staged, and then its record.
func (s *stager) unstage(ctx context.Context, st staging) error {
	st.Unstaging = true
	if err := s.runtime.stagings.Put(st.ID, st); err != nil {
		return volume.Transient(err)
	}
	if err := s.unmountDevice(ctx, st); err != nil {
		return err
	}
	if err := s.tearDownDevice(ctx, st); err != nil {
		return err
	}
	if s.attachesOnNode() {
		if err := s.attachments.detachHere(ctx, st); err != nil {
			return err
		}
	}
	if err := s.runtime.stagings.Remove(st.ID); err != nil {
		return volume.Uncertain(err)
	}
	return nil
}

func (s *stager) unmountDevice(ctx context.Context, st staging) error {
	plugin, ok := s.plugin.(volume.DeviceMountableVolumePlugin)
	if !ok || st.MountPath == "" {
		return nil
	}
	refs, err := plugin.GetDeviceMountRefs(ctx, st.MountPath)
	if err != nil {
		return err
	}
	refs = slices.DeleteFunc(slices.Clone(refs), func(ref string) bool { return sameStaging(ref, st.MountPath) })
	if len(refs) > 0 {
		return status.Errorf(codes.FailedPrecondition, "what is staged at %q is still mounted at %q", st.MountPath, refs[0])
	}
	unmounter, err := plugin.NewDeviceUnmounter()
	if err != nil {
		return err
	}
	return s.kept(unmounter.UnmountDevice(ctx, st.MountPath))
}

// sameStaging reports whether ref is the staging itself, seen through another mount of the directory above: it then ends as path
// does from "/plugins/" on.
func sameStaging(ref, path string) bool {
	i := strings.LastIndex(path, "/plugins/")
	return i >= 0 && strings.HasSuffix(ref, path[i:])
}

// kept takes a directory that holds something else for done, and tells of it.
func (s *resolved) kept(err error) error {
	if errors.Is(err, volume.ErrDirectoryKept) && !outcome.IsUncertain(err) {
		s.logger.Warn("a directory stays, because it has foreign content", "error", err)
		return nil
	}
	return err
}

func (s *stager) tearDownDevice(ctx context.Context, st staging) error {
	if !st.Capability.Block {
		return nil
	}
	unmapper, err := s.blockUnmapper(st.PV.Name)
	if err != nil {
		return err
	}
	return tearDownBlock(ctx, unmapper, volume.NewSpecFromPersistentVolume(st.PV, false), st.Device)
}

// tearDownBlock undoes SetUpDevice, where the plugin has it.
func tearDownBlock(ctx context.Context, unmapper volume.BlockVolumeUnmapper, spec *volume.Spec, device string) error {
	custom, ok := unmapper.(volume.CustomBlockVolumeUnmapper)
	if !ok {
		return nil
	}
	mapPath, err := unmapper.GetGlobalMapPath(spec)
	if err != nil {
		return err
	}
	return custom.TearDownDevice(ctx, volume.TearDownDeviceArgs{MapPath: mapPath, DevicePath: device})
}

func (s *resolved) blockUnmapper(name string) (volume.BlockVolumeUnmapper, error) {
	plugin, ok := s.plugin.(volume.BlockVolumePlugin)
	if !ok {
		return nil, unimplemented("block volumes")
	}
	return plugin.NewBlockVolumeUnmapper(name, "")
}

// here returns the attachment of a volume to this node, if this service attaches and it is on record.
func (s *attachments) here(id string) (attachment, bool) {
	if !s.attachesOnNode() {
		return attachment{}, false
	}
	return s.state.attachments.Get(attachmentKey(id, s.options.NodeName))
}

// detachHere detaches a staged volume from this node. It does so too if the record of the attachment is lost.
func (s *attachments) detachHere(ctx context.Context, st staging) error {
	a, ok := s.here(st.ID)
	if ok {
		return s.detach(ctx, a)
	}
	if !st.Done {
		return nil // it was not attached
	}
	return s.detach(ctx, s.attachmentOf(st))
}

// attachmentOf returns the attachment of a volume that is staged here.
func (s *attachments) attachmentOf(st staging) attachment {
	return attachment{
		ID: st.ID, Node: s.options.NodeName, Origin: originOf(st.PV), Capability: st.Capability, ReadOnly: st.ReadOnly,
	}
}
