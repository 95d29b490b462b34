package csiserver

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// publisher publishes volumes, on record. Its methods are called by who has the volume's lock.
type publisher struct {
	*resolved

	runtime *runtimeRecords
	binds   *binder
}

// NodePublishVolume sets a volume up for the pod that a target path stands for, and binds it there.
func (n *node) NodePublishVolume(ctx context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if err := checkVolumeID(r.GetVolumeId()); err != nil {
		return nil, err
	}
	if err := n.checkTarget(r.GetTargetPath()); err != nil {
		return nil, err
	}
	spec, u, err := n.specOfRequest(r)
	if err != nil {
		return nil, err
	}
	uid := uidOf(r.GetVolumeId(), r.GetTargetPath())
	p := publication{
		Boot: n.runtime.boot, ID: r.GetVolumeId(), UID: uid, Name: spec.Name(), Capability: u.capability,
		binding: binding{Target: r.GetTargetPath(), ReadOnly: u.podReadOnly},
	}
	err = n.locks.exclusively(ctx, idLock(p.ID), func() error {
		st, err := n.stagings.stagedAt(p.ID, r.GetStagingTargetPath())
		if err != nil {
			return err
		}
		if n.stages() {
			if err := n.stagings.checkSameVolume(st, spec); err != nil {
				return err
			}
		}
		pod := podOf(uid, r.GetVolumeContext())
		if st, err = n.stagings.stagedAgain(ctx, st, spec, pod); err != nil {
			return err
		}
		return n.publications.publish(ctx, p, published{spec: spec, pod: pod, staging: st})
	})
	if err != nil {
		return nil, err
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// checkTarget refuses a target path that is none, or that is the server's own.
func (n *node) checkTarget(path string) error {
	if err := checkPath("target_path", path); err != nil {
		return err
	}
	for _, own := range []string{n.host.GetPodsDir(), n.host.GetPluginDir(n.plugin.GetPluginName()), n.options.StateDir, n.options.RuntimeDir} {
		if rel, err := filepath.Rel(own, path); err == nil && filepath.IsLocal(rel) {
			return status.Errorf(codes.InvalidArgument, "target_path %s lies in %q, which is the driver's own", volume.Quote(path), own)
		}
	}
	return nil
}

// stagedAt returns how the volume is staged. A plugin that stages nothing has the zero value.
func (s *stager) stagedAt(id, path string) (staging, error) {
	if !s.stages() {
		return staging{}, nil
	}
	st, ok := s.runtime.stagings.Get(id)
	switch {
	case path == "":
		return staging{}, status.Error(codes.InvalidArgument, "staging_target_path is missing, and the driver stages volumes")
	case !ok || !st.Done:
		return staging{}, status.Errorf(codes.FailedPrecondition, "volume %s is not staged: stage it first", volume.Quote(id))
	case st.Path != path:
		return staging{}, status.Errorf(codes.FailedPrecondition, "volume %s is staged at %q, and not at %q", volume.Quote(id), st.Path, path)
	}
	return st, nil
}

// stagedAgain stages a volume whose mount is gone, by the hand of an operator or with the container of an earlier server: callers
// stage once, and would never get it published again.
func (s *stager) stagedAgain(ctx context.Context, st staging, spec *volume.Spec, pod *v1.Pod) (staging, error) {
	mounting, ok := s.plugin.(volume.MountingVolumePlugin)
	if !ok || st.MountPath == "" || !mounting.MountDeviceIsMount(spec) {
		return st, nil
	}
	if err := s.checkMounted(ctx, st.MountPath); !errors.Is(err, mount.ErrNotMounted) {
		return st, err
	}
	s.logger.Warn("what was staged is not mounted any more, and is staged again", "volume", st.ID, "path", st.MountPath)
	device, err := s.prepare(ctx, st, staged{
		spec: volume.NewSpecFromPersistentVolume(spec.PersistentVolume, st.ReadOnly), pod: pod, device: st.Device,
	})
	if err != nil || device == st.Device {
		return st, err
	}
	st.Device = device
	if err := s.runtime.stagings.Put(st.ID, st); err != nil {
		return st, volume.Uncertain(err)
	}
	return st, nil
}

// published is what publishing needs beside its record.
type published struct {
	spec    *volume.Spec
	pod     *v1.Pod
	staging staging
}

// publish publishes a volume that the caller has the lock of. Each step finds done what an earlier call has done.
func (s *publisher) publish(ctx context.Context, p publication, what published) error {
	before, known := s.runtime.publications.Get(publicationKey(p.ID, p.UID))
	if err := s.checkPublications(p, what.staging); err != nil {
		return err
	}
	if !known {
		if err := s.binds.checkUnmounted(ctx, p.Target); err != nil {
			return err
		}
		if err := s.runtime.publications.Put(publicationKey(p.ID, p.UID), p); err != nil {
			return volume.Transient(err)
		}
	}
	p.Source, p.Mount, p.Done = before.Source, before.Mount, before.Done
	if err := s.setUpAndBind(ctx, &p, what); err != nil {
		return s.publishFailed(ctx, p, before, err)
	}
	return nil
}

// checkPublications refuses what contradicts what is published.
func (s *publisher) checkPublications(p publication, st staging) error {
	single := csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	if s.stages() && st.Capability.Block != p.Capability.Block {
		return status.Errorf(codes.FailedPrecondition, "volume %s is staged with Block=%t", volume.Quote(p.ID), st.Capability.Block)
	}
	for _, other := range s.runtime.publicationsOf(p.ID) {
		switch {
		case other.Target != p.Target && (p.Capability.Mode == single || other.Capability.Mode == single):
			return status.Errorf(codes.FailedPrecondition, "volume %s is published at %q, and is for one at a time", volume.Quote(p.ID), other.Target)
		case other.Target == p.Target && other.Done && (other.ReadOnly != p.ReadOnly || !other.Capability.is(p.Capability)):
			return status.Errorf(codes.AlreadyExists, "volume %s is published at %q otherwise than it is asked for", volume.Quote(p.ID), p.Target)
		}
	}
	return nil
}

// setUpAndBind has the plugin set the volume up, and binds that at the target. p is on record with each step that is done.
func (s *publisher) setUpAndBind(ctx context.Context, p *publication, what published) error {
	source, err := s.setUp(ctx, *p, what)
	if err != nil {
		return err
	}
	if p.Source != source {
		p.Source = source
		if err := s.runtime.publications.Put(publicationKey(p.ID, p.UID), *p); err != nil {
			return volume.Uncertain(err)
		}
	}
	if err := s.linkDevice(*p); err != nil {
		return volume.Uncertain(err)
	}
	there, err := s.binds.bind(ctx, p.binding)
	if err != nil {
		return err
	}
	if p.Done && p.Mount.Is(there) {
		return nil
	}
	p.Mount, p.Done = there.Identity(), true
	if err := s.runtime.publications.Put(publicationKey(p.ID, p.UID), *p); err != nil {
		return volume.Uncertain(err)
	}
	return nil
}

// setUp returns what is to be bound: the pod's directory of the volume, or its device.
func (s *publisher) setUp(ctx context.Context, p publication, what published) (string, error) {
	if p.Capability.Block {
		return s.mapDevice(ctx, p, what)
	}
	mounter, err := s.plugin.NewMounter(what.spec, what.pod)
	if err != nil {
		return "", err
	}
	if checker, ok := mounter.(volume.MountChecker); ok {
		if err := checker.CanMount(ctx); err != nil {
			return "", err
		}
	}
	args := volume.MounterArgs{FsGroup: p.Capability.Group, PodUID: string(p.UID), IsRemount: p.Done}
	if err := mounter.SetUp(ctx, args); err != nil {
		return "", err
	}
	mounting, ok := s.plugin.(volume.MountingVolumePlugin)
	if !ok || !mounting.SetUpIsMount(what.spec) {
		return mounter.GetPath(), nil
	}
	return mounter.GetPath(), s.checkMounted(ctx, mounter.GetPath())
}

// mapDevice returns the device of a block volume.
func (s *publisher) mapDevice(ctx context.Context, p publication, what published) (string, error) {
	mapper, err := s.blockMapper(what.spec, what.pod)
	if err != nil {
		return "", err
	}
	custom, ok := mapper.(volume.CustomBlockVolumeMapper)
	if !ok {
		return what.staging.Device, nil
	}
	mapPath, err := mapper.GetGlobalMapPath(what.spec)
	if err != nil {
		return "", err
	}
	device, err := custom.MapPodDevice(ctx, volume.MapPodDeviceArgs{
		DevicePath: what.staging.Device, GlobalMapPath: mapPath, PodUID: p.UID,
	})
	if err != nil || device != "" {
		return device, err
	}
	return what.staging.Device, nil
}

// publishFailed returns the error of a failed call to publish, as stageFailed does.
func (s *publisher) publishFailed(ctx context.Context, p, before publication, err error) error {
	if outcome.IsUncertain(err) || before.Done || before.ID != "" && outcome.ClassOf(err) == outcome.Transient {
		return volume.Uncertain(err)
	}
	if undoing := s.unpublish(ctx, p); undoing != nil {
		return volume.Uncertain(fmt.Errorf("%w; what the call has begun is not undone: %w", err, undoing))
	}
	return err
}

// NodeUnpublishVolume takes a volume away from a target path. A mount that this driver did not make is left, and is an error.
func (n *node) NodeUnpublishVolume(ctx context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if err := checkVolumeID(r.GetVolumeId()); err != nil {
		return nil, err
	}
	if err := checkPath("target_path", r.GetTargetPath()); err != nil {
		return nil, err
	}
	err := n.locks.exclusively(ctx, idLock(r.GetVolumeId()), func() error {
		p, ok := n.runtime.publications.Get(publicationKey(r.GetVolumeId(), uidOf(r.GetVolumeId(), r.GetTargetPath())))
		if !ok {
			return n.publications.unpublishUnrecorded(ctx, r.GetVolumeId(), r.GetTargetPath())
		}
		return n.publications.unpublish(ctx, p)
	})
	if err != nil {
		return nil, err
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// unpublish takes off the bind, has the plugin tear the volume down, and forgets it.
func (s *publisher) unpublish(ctx context.Context, p publication) error {
	if err := s.binds.unbind(ctx, p.binding); err != nil {
		return err
	}
	if err := s.tearDown(ctx, p); err != nil {
		return err
	}
	if err := s.runtime.publications.Remove(publicationKey(p.ID, p.UID)); err != nil {
		return volume.Uncertain(err)
	}
	return nil
}

func (s *publisher) tearDown(ctx context.Context, p publication) error {
	if p.Capability.Block {
		if err := s.unmapDevice(ctx, p); err != nil {
			return err
		}
		return s.unlinkDevice(ctx, p)
	}
	unmounter, err := s.plugin.NewUnmounter(p.Name, p.UID)
	if err != nil {
		return err
	}
	if err := s.kept(unmounter.TearDown(ctx)); err != nil {
		return err
	}
	s.removePodDirs(ctx, filepath.Dir(s.host.GetPodVolumeDir(p.UID, s.plugin.GetPluginName(), p.Name)))
	return nil
}

// removePodDirs removes the directories of the pod that a target path stands for, as far as they are empty: that of the plugin's volumes,
// and the two above it. It does so also for a caller that has gone: no later call removes them.
func (s *publisher) removePodDirs(ctx context.Context, volumes string) {
	ctx = context.WithoutCancel(ctx)
	for _, dir := range []string{volumes, filepath.Dir(volumes), filepath.Dir(filepath.Dir(volumes))} {
		if err := s.mounter.RemoveTarget(ctx, dir); err != nil {
			s.logger.Debug("a directory stays", "path", dir, "error", err)
			return
		}
	}
}

func (s *publisher) unmapDevice(ctx context.Context, p publication) error {
	unmapper, err := s.blockUnmapper(p.Name)
	if err != nil {
		return err
	}
	custom, ok := unmapper.(volume.CustomBlockVolumeUnmapper)
	if !ok {
		return nil
	}
	spec, err := s.specOfDevice(p)
	if err != nil {
		return status.Errorf(codes.FailedPrecondition, "volume %s is not staged any more, and its device cannot be unmapped: %v", volume.Quote(p.ID), err)
	}
	mapPath, err := unmapper.GetGlobalMapPath(spec)
	if err != nil {
		return err
	}
	return custom.UnmapPodDevice(ctx, volume.UnmapPodDeviceArgs{GlobalMapPath: mapPath, PodUID: p.UID})
}
