package dockerdriver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/bridge/docker/internal/protocol"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/safepath"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volume/ownership"
)

// ErrPath says that the plugin does not use a path that the driver returned.
var ErrPath = errors.New("the path of the driver is not allowed")

// at returns the uppermost mount at path.
func (p *Plugin) at(ctx context.Context, path string) (there mount.MountPoint, mounted bool, err error) {
	there, err = p.mounter.Lookup(ctx, path)
	if errors.Is(err, mount.ErrNotMounted) {
		return there, false, nil
	}
	return there, err == nil, err
}

// use returns the id with which this node mounts a volume. It is one for all pods, because they share the staging
// mount.
func (p *Plugin) use(handle string) protocol.Use {
	return protocol.Use{Name: handle, ID: "volumekit-" + string(p.host.GetNodeName())}
}

// node stages volumes.
type node struct{ plugin *Plugin }

// NewDeviceMounter implements volume.DeviceMountableVolumePlugin.
func (p *Plugin) NewDeviceMounter() (volume.DeviceMounter, error) { return &node{p}, nil }

// NewDeviceUnmounter implements volume.DeviceMountableVolumePlugin.
func (p *Plugin) NewDeviceUnmounter() (volume.DeviceUnmounter, error) { return &node{p}, nil }

// GetDeviceMountRefs implements volume.DeviceMountableVolumePlugin.
func (p *Plugin) GetDeviceMountRefs(ctx context.Context, deviceMountPath string) ([]string, error) {
	refs, err := p.mounter.GetMountRefs(ctx, deviceMountPath)
	pods := p.host.GetPodsDir()
	var ours []string
	for _, ref := range refs {
		if safepath.Contains(pods, ref) { // this is the driver's own mount
			ours = append(ours, ref)
		}
	}
	return ours, err
}

// CanDeviceMount implements volume.DeviceMountableVolumePlugin: every volume is staged.
func (p *Plugin) CanDeviceMount(spec *volume.Spec) (bool, error) {
	_, err := p.handleOf(spec)
	return err == nil, err
}

// SetUpIsMount implements volume.MountingVolumePlugin.
func (p *Plugin) SetUpIsMount(*volume.Spec) bool { return true }

// MountDeviceIsMount implements volume.MountingVolumePlugin.
func (p *Plugin) MountDeviceIsMount(*volume.Spec) bool { return true }

// GetDeviceMountPath implements volume.DeviceMounter.
func (n *node) GetDeviceMountPath(spec *volume.Spec) (string, error) {
	handle, err := n.plugin.handleOf(spec)
	if err != nil {
		return "", err
	}
	return n.plugin.stagingPath(handle), nil
}

// MountDevice has the driver mount the volume, and binds the driver's path at deviceMountPath. If the plugin refuses
// the path, the error matches [ErrPath].
func (n *node) MountDevice(ctx context.Context, spec *volume.Spec, _, deviceMountPath string, _ volume.DeviceMounterArgs) error {
	handle, err := n.plugin.handleOf(spec)
	if err != nil {
		return err
	}
	if want := n.plugin.stagingPath(handle); deviceMountPath != want {
		return fmt.Errorf("volume %q is staged at %q and not at %q: %w", handle, want, deviceMountPath, volume.ErrInvalid)
	}
	if err := n.stage(ctx, handle, deviceMountPath); err != nil {
		return fmt.Errorf("staging volume %q: %w", handle, err)
	}
	return nil
}

func (n *node) stage(ctx context.Context, handle, path string) error {
	if _, mounted, err := n.plugin.at(ctx, path); err != nil || mounted {
		return err
	}
	if err := os.MkdirAll(path, 0o750); err != nil { // while it exists, Unmount must be called
		return volume.Transient(err)
	}
	var mounted protocol.Mounted
	err := n.plugin.driver.call(ctx, protocol.Mount, n.plugin.use(handle), &mounted)
	if isRefusal(err) {
		return volume.Uncertain(err) // Unmount is called before the volume is forgotten
	}
	if err != nil {
		return err
	}
	if err := n.plugin.bind(ctx, mounted.Mountpoint, path); err != nil {
		return volume.Uncertain(err)
	}
	return nil
}

// bind binds a path that the driver returned.
func (p *Plugin) bind(ctx context.Context, from, path string) error {
	root, name, err := p.allowed(from)
	if err != nil {
		return err
	}
	if !p.options.PlainDirectories {
		if _, mounted, err := p.at(ctx, from); err != nil || !mounted {
			return errors.Join(err, fmt.Errorf("nothing is mounted at %s: %w", volume.Quote(from), ErrPath))
		}
	}
	dir, err := safepath.Open(ctx, root, safepath.Options{Mounter: p.mounter, FollowLinks: true})
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // it was only read
	err = dir.Bind(ctx, name, path, safepath.BindOptions{Kinds: safepath.Directory})
	if errors.Is(err, safepath.ErrEscapes) {
		return fmt.Errorf("%w: %w", ErrPath, err)
	}
	return err
}

// allowed returns the root below which a path lies, and its name there.
func (p *Plugin) allowed(path string) (root, name string, err error) {
	for _, root := range p.options.Roots {
		name, err := filepath.Rel(root, path)
		if err == nil && filepath.IsAbs(path) && filepath.Clean(path) == path && filepath.IsLocal(name) && name != "." {
			return root, name, nil
		}
	}
	return "", "", fmt.Errorf("%s is not a clean path below %q: %w", volume.Quote(path), p.options.Roots, ErrPath)
}

// UnmountDevice unmounts the bind, and has the driver unmount the volume. Without a staging directory there is nothing
// to undo.
func (n *node) UnmountDevice(ctx context.Context, deviceMountPath string) error {
	handle := filepath.Base(deviceMountPath)
	if deviceMountPath != n.plugin.stagingPath(handle) {
		return fmt.Errorf("%q is no staging directory of this plugin: %w", deviceMountPath, volume.ErrInvalid)
	}
	_, mounted, err := n.plugin.at(ctx, deviceMountPath)
	if err != nil {
		return err
	}
	if mounted {
		// The driver cannot unmount a volume that a pod uses, and may wait until the pod releases it.
		if pods, err := n.plugin.GetDeviceMountRefs(ctx, deviceMountPath); err != nil || len(pods) > 0 {
			return errors.Join(err, fmt.Errorf("volume %q is mounted at %q: %w", handle, pods, volume.ErrInUse))
		}
		if err := n.plugin.mounter.Unmount(ctx, deviceMountPath, mount.UnmountOptions{}); err != nil {
			return err
		}
	}
	if _, err := os.Lstat(deviceMountPath); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := n.unmount(ctx, handle); err != nil {
		return fmt.Errorf("unstaging volume %q: %w", handle, err)
	}
	return n.plugin.mounter.RemoveTarget(ctx, deviceMountPath)
}

// unmount has the driver unmount the volume. If the driver refuses, and the volume has no path or is not on the
// driver's list, it was unmounted before.
func (n *node) unmount(ctx context.Context, handle string) error {
	err := n.plugin.driver.call(ctx, protocol.Unmount, n.plugin.use(handle), &protocol.Nothing{})
	if !isRefusal(err) {
		return err
	}
	var at protocol.Mounted
	asked := n.plugin.driver.call(ctx, protocol.Path, protocol.Name{Name: handle}, &at)
	if asked == nil && at.Mountpoint == "" {
		return nil
	}
	if isRefusal(asked) {
		listed, listErr := n.plugin.isListed(ctx, handle)
		if listErr == nil && !listed {
			return nil
		}
		asked = errors.Join(asked, listErr)
	}
	return volume.Uncertain(errors.Join(err, asked))
}

type mounter struct {
	volume.Dir

	plugin   *Plugin
	handle   string
	readOnly bool
	pod      *v1.Pod
}

// NewMounter implements volume.VolumePlugin.
func (p *Plugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	handle, err := p.handleOf(spec)
	if err != nil {
		return nil, err
	}
	path, err := p.podPath(spec.Name(), pod.UID)
	readOnly := spec.ReadOnly || spec.PersistentVolume.Spec.CSI.ReadOnly
	return &mounter{Dir: volume.Dir{Path: path}, plugin: p, handle: handle, readOnly: readOnly, pod: pod}, err
}

// GetAttributes implements volume.Mounter.
func (m *mounter) GetAttributes() volume.Attributes {
	return volume.Attributes{ReadOnly: m.readOnly, Managed: !m.readOnly}
}

// SetUp implements volume.Mounter.
func (m *mounter) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return m.SetUpAt(ctx, m.GetPath(), args)
}

// SetUpAt gives the content to the pod's fsGroup, and binds the staging mount.
func (m *mounter) SetUpAt(ctx context.Context, dir string, args volume.MounterArgs) error {
	staging := m.plugin.stagingPath(m.handle)
	staged, mounted, err := m.plugin.at(ctx, staging)
	if err != nil {
		return err
	}
	if !mounted {
		return fmt.Errorf("volume %q: nothing is mounted at %q: stage it first: %w", m.handle, staging, mount.ErrNotMounted)
	}
	if err := m.own(ctx, staging, args); err != nil {
		return fmt.Errorf("volume %q: giving the content to the fsGroup: %w", m.handle, err)
	}
	there, mounted, err := m.plugin.at(ctx, dir)
	if err != nil {
		return err
	}
	if mounted {
		if there.Major != staged.Major || there.Minor != staged.Minor || there.Root != staged.Root || there.ReadOnly() != m.readOnly {
			return fmt.Errorf("volume %q: another mount is at %q: take it off first: %w", m.handle, dir, mount.ErrForeign)
		}
		return nil
	}
	request := mount.Request{Source: staging, Target: dir, Options: []string{"bind"}}
	if m.readOnly {
		request.Options = append(request.Options, "ro")
	}
	return m.plugin.mounter.Mount(ctx, request)
}

// own gives the content to the pod's fsGroup. Each set-up calls it, so the next one completes an interrupted one. If it
// fails, nothing is bound.
func (m *mounter) own(ctx context.Context, staging string, args volume.MounterArgs) error {
	if args.FsGroup == nil || m.readOnly || args.IsRemount {
		return nil
	}
	_, err := ownership.Apply(ctx, staging, ownership.Options{Group: args.FsGroup, Policy: args.FSGroupChangePolicy, Pod: m.pod})
	return err
}

type unmounter struct {
	volume.Dir

	plugin *Plugin
}

// NewUnmounter implements volume.VolumePlugin.
func (p *Plugin) NewUnmounter(name string, podUID types.UID) (volume.Unmounter, error) {
	path, err := p.podPath(name, podUID)
	return &unmounter{Dir: volume.Dir{Path: path}, plugin: p}, err
}

// TearDown implements volume.Unmounter.
func (u *unmounter) TearDown(ctx context.Context) error { return u.TearDownAt(ctx, u.GetPath()) }

// TearDownAt implements volume.Unmounter.
func (u *unmounter) TearDownAt(ctx context.Context, dir string) error {
	return mount.UnmountPath(ctx, u.plugin.mounter, dir, mount.UnmountOptions{})
}
