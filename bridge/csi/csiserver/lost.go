package csiserver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// A RuntimeDir in the driver's container ends with the container, but its mounts do not. The calls in this file end the use of volumes
// without a record as far as a mount proves what it is of. They refuse to go on below a mount of which nothing is known.

// findUnrecorded notes what may be staged or published without a record: if there is no record of a staging, all mounts in the
// plugin's directory and of attached devices. Call it before the first call is served.
func (s *stager) findUnrecorded(ctx context.Context) error {
	if !s.stages() || len(s.runtime.stagings.All()) > 0 {
		return nil
	}
	table, err := s.mounter.List(ctx)
	if err != nil {
		return err
	}
	dir := s.host.GetPluginDir(s.plugin.GetPluginName())
	for _, m := range table {
		if isBelow(dir, m.Path) || s.attachments.isDevice(m) {
			s.unrecorded = append(s.unrecorded, m)
			s.logger.Warn("RuntimeDir has no record of a mount: it must be on the host and outlive the driver", "path", m.Path)
		}
	}
	return nil
}

func isBelow(dir, path string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(rel)
}

// isDevice reports whether a mount is a bind of a device that is attached to this node.
func (s *attachments) isDevice(m mount.MountPoint) bool {
	here := s.state.attachments.Where(func(a attachment) bool { return a.Node == s.options.NodeName })
	return slices.ContainsFunc(here, func(a attachment) bool { return a.isDevice(m) })
}

// mountedHere returns where an attached volume is staged, or where its device is bound, by the mount table; empty if it is not.
func (s *attachments) mountedHere(ctx context.Context, a attachment) (string, error) {
	if a.Capability.Block {
		return s.boundHere(ctx, a)
	}
	spec, err := s.specOf(a.ID, a.Origin, use{capability: a.Capability, readOnly: a.ReadOnly})
	if err != nil {
		return "", nil //nolint:nilerr // The plugin does not know such a volume, and cannot have staged it.
	}
	path, err := s.mountPath(spec)
	if err != nil || path == "" {
		return "", err
	}
	_, err = s.mounter.Lookup(ctx, path)
	if errors.Is(err, mount.ErrNotMounted) {
		return "", nil
	}
	return path, err
}

// boundHere returns where the device of a volume is bound. A target on record is another volume's: after a reboot that may have the device.
func (s *attachments) boundHere(ctx context.Context, a attachment) (string, error) {
	if a.Device == "" {
		return "", nil
	}
	table, err := s.mounter.List(ctx)
	if err != nil {
		return "", err
	}
	for _, m := range table {
		if a.isDevice(m) && len(s.runtime.publications.Where(func(p publication) bool { return p.Target == m.Path })) == 0 {
			return m.Path, nil
		}
	}
	return "", nil
}

// isDevice reports whether a mount is a bind of the volume's device.
func (a attachment) isDevice(m mount.MountPoint) bool {
	return a.Device != "" && m.Root == strings.TrimPrefix(a.Device, "/dev")
}

// checkUnrecorded returns an error while a mount is there that was found without a record and still has none.
func (s *stager) checkUnrecorded(ctx context.Context, id string) error {
	for _, m := range s.unrecorded {
		if len(s.runtime.stagings.Where(func(st staging) bool { return st.MountPath == m.Path })) > 0 {
			continue
		}
		there, err := s.mounter.Lookup(ctx, m.Path)
		if errors.Is(err, mount.ErrNotMounted) {
			continue
		}
		if err != nil {
			return err
		}
		if m.Identity().Is(there) {
			return status.Errorf(codes.FailedPrecondition,
				"volume %s has no record in RuntimeDir, and %q was mounted before the driver started: stage the volume that it is of, or unmount it",
				volume.Quote(id), m.Path)
		}
	}
	return nil
}

// unstageUnrecorded unstages a volume without a record: it was unstaged, it was staged before the machine was booted, or its record
// is lost. The record of its attachment says where a filesystem is staged.
func (s *stager) unstageUnrecorded(ctx context.Context, id string) error {
	a, attached := s.attachments.here(id)
	if !attached || a.Capability.Block {
		if err := s.checkUnrecorded(ctx, id); err != nil {
			return err
		}
		if err := s.tearDownUnrecorded(ctx, id, a); err != nil || !attached {
			return err
		}
		return s.attachments.detach(ctx, a)
	}
	spec, err := s.specOf(id, a.Origin, use{capability: a.Capability, readOnly: a.ReadOnly})
	if err != nil {
		return err
	}
	st := staging{ID: id}
	if st.MountPath, err = s.mountPath(spec); err != nil {
		return err
	}
	if err := s.unmountUnrecorded(ctx, st); err != nil {
		return err
	}
	return s.attachments.detach(ctx, a)
}

// tearDownUnrecorded has the plugin undo what it may have set up for a device, with the source of its attachment, else that of a volume
// that was made by hand. The links of published devices outlive RuntimeDir: nothing is undone below them.
func (s *stager) tearDownUnrecorded(ctx context.Context, id string, a attachment) error {
	plugin, ok := s.plugin.(volume.BlockVolumePlugin)
	if !ok || !s.can.Has(volume.CapBlock) {
		return nil
	}
	o, err := s.originOfContext(id, nil)
	if a.ID != "" {
		o, err = a.Origin, nil
	}
	if err != nil {
		return err
	}
	spec, err := s.specOf(id, o, use{capability: capability{Block: true, Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}})
	if err != nil {
		return nil //nolint:nilerr // The plugin has no such device.
	}
	link, err := s.linkOfDevice(id)
	if err != nil {
		return err
	}
	if link != "" {
		return status.Errorf(codes.FailedPrecondition, "volume %s has no record in RuntimeDir, and its device is published by %q: unpublish it first", volume.Quote(id), link)
	}
	unmapper, err := plugin.NewBlockVolumeUnmapper(spec.Name(), "")
	if err != nil {
		return err
	}
	return tearDownBlock(ctx, unmapper, spec, a.Device)
}

// linkOfDevice returns the link of a device of a volume that was published in this boot; empty if there is none.
func (s *stager) linkOfDevice(id string) (string, error) {
	pods, err := os.ReadDir(s.host.GetPodsDir())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	for _, pod := range pods {
		link := deviceLink(s.resolved, types.UID(pod.Name()), element(id), s.runtime.boot)
		_, err := os.Lstat(link)
		if err == nil {
			return link, nil
		}
		if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
			return "", err
		}
	}
	return "", nil
}

func (s *stager) unmountUnrecorded(ctx context.Context, st staging) error {
	if st.MountPath == "" {
		return nil
	}
	_, err := s.mounter.Lookup(ctx, st.MountPath)
	if errors.Is(err, mount.ErrNotMounted) {
		return nil
	}
	if err != nil {
		return err
	}
	s.logger.Warn("a volume is staged and not on record: it is unstaged", "volume", st.ID, "path", st.MountPath)
	return s.unmountDevice(ctx, st)
}

// unpublishUnrecorded takes a volume without a record away from a target path. Only this driver makes the directory of the pod that
// the volume and the path stand for, or the link to its device: if one is there, it proves that what is bound at the target was published.
func (s *publisher) unpublishUnrecorded(ctx context.Context, id, target string) error {
	p := publication{ID: id, UID: uidOf(id, target), Name: element(id), binding: binding{Target: target}}
	p.Capability.Mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	var err error
	p.Source, err = mount.RunAbandonable(ctx, "lstat", s.host.GetPodVolumeDir(p.UID, s.plugin.GetPluginName(), p.Name), func() (string, error) {
		return s.sourceOfUnrecorded(p)
	})
	if err != nil {
		return err
	}
	if p.Source == "" {
		if err := s.binds.checkUnmounted(ctx, target); err != nil {
			return err
		}
		return s.unlinkDevice(ctx, p) // of an earlier boot
	}
	p.Capability.Block = p.Source != s.host.GetPodVolumeDir(p.UID, s.plugin.GetPluginName(), p.Name)
	s.logger.Warn("a volume is published and not on record: it is unpublished", "volume", id, "target", target)
	return s.unpublish(ctx, p)
}

// sourceOfUnrecorded returns what was bound at a target path: the directory of its pod, or the device to which its link leads. It is empty
// if neither is there.
func (s *publisher) sourceOfUnrecorded(p publication) (string, error) {
	dir := s.host.GetPodVolumeDir(p.UID, s.plugin.GetPluginName(), p.Name)
	_, err := os.Lstat(dir)
	if err == nil || !errors.Is(err, os.ErrNotExist) {
		return dir, err
	}
	device, err := os.Readlink(s.deviceLink(p))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return device, err
}

// deviceLink is the link of a device that was published in this boot. It is below RootDir and outlives RuntimeDir.
func (s *publisher) deviceLink(p publication) string {
	return deviceLink(s.resolved, p.UID, p.Name, s.runtime.boot)
}

func deviceLink(s *resolved, uid types.UID, name, boot string) string {
	return filepath.Join(s.host.GetPodVolumeDeviceDir(uid, s.plugin.GetPluginName()), name+"."+boot)
}

// linkDevice makes the link of a device that is to be bound.
func (s *publisher) linkDevice(p publication) error {
	if !p.Capability.Block {
		return nil
	}
	link := s.deviceLink(p)
	if device, err := os.Readlink(link); err == nil && device == p.Source {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(link), 0o750); err != nil {
		return err
	}
	if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.Symlink(p.Source, link)
}

// unlinkDevice removes the link of a device that is not bound any more, those of earlier boots, and the directories above them. The directory
// of a volume and a target path has no other files.
func (s *publisher) unlinkDevice(ctx context.Context, p publication) error {
	dir := filepath.Dir(s.deviceLink(p))
	links, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		err = nil // A server that was killed may have left the directories above.
	}
	for _, link := range links {
		if removing := os.Remove(filepath.Join(dir, link.Name())); !errors.Is(removing, os.ErrNotExist) {
			err = errors.Join(err, removing)
		}
	}
	if err != nil {
		return err
	}
	s.removePodDirs(ctx, dir)
	return nil
}

// specOfDevice returns the volume of a published device as it is staged. Without a record of that it is a volume that was made by hand.
func (s *publisher) specOfDevice(p publication) (*volume.Spec, error) {
	if st, ok := s.runtime.stagings.Get(p.ID); ok {
		return volume.NewSpecFromPersistentVolume(st.PV, false), nil
	}
	o, err := s.originOfContext(p.ID, nil)
	if err != nil {
		return nil, err
	}
	return s.specOf(p.ID, o, use{capability: p.Capability})
}
