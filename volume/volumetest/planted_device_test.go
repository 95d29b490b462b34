package volumetest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

func (p *plantedPlugin) NewAttacher() (volume.Attacher, error)           { return &plantedNode{p}, nil }
func (p *plantedPlugin) NewDetacher() (volume.Detacher, error)           { return &plantedNode{p}, nil }
func (p *plantedPlugin) NewDeviceMounter() (volume.DeviceMounter, error) { return &plantedNode{p}, nil }
func (p *plantedPlugin) NewDeviceUnmounter() (volume.DeviceUnmounter, error) {
	return &plantedNode{p}, nil
}

func (p *plantedPlugin) CanAttach(spec *volume.Spec) (bool, error)      { return true, nil }
func (p *plantedPlugin) CanDeviceMount(spec *volume.Spec) (bool, error) { return true, nil }

func (p *plantedPlugin) GetDeviceMountRefs(ctx context.Context, path string) ([]string, error) {
	return p.mounter.GetMountRefs(ctx, path)
}

// stagePath is where a disk is staged; of no disk, where all are.
func (p *plantedPlugin) stagePath(disk string) string {
	if disk != "" && p.has("all disks are staged at one path") {
		disk = "disk"
	}
	return filepath.Join(p.host.GetPluginDir(plantedName), "mounts", disk)
}

// plantedNode attaches and stages.
type plantedNode struct{ p *plantedPlugin }

func (n *plantedNode) Attach(ctx context.Context, spec *volume.Spec, node types.NodeName) (string, error) {
	name, err := n.p.GetVolumeName(spec)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return "", err
	}
	if n.p.has("a new process attaches an empty disk") && !n.p.seen[name] && n.p.storage.exists(name) == nil {
		if err := n.p.storage.wipe(ctx, name); err != nil {
			return "", err
		}
	}
	err = n.p.storage.use(name, func(d *plantedDisk) error {
		exclusive := slices.Equal(spec.PersistentVolume.Spec.AccessModes, []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce})
		if exclusive && len(d.nodes) > 0 && !d.nodes[node] && (n.p.seen[name] || !n.p.has("a new process attaches an exclusive disk elsewhere too")) {
			if !n.p.has("Attach takes an exclusive disk from another node") {
				return fmt.Errorf("disk %q is attached elsewhere: %w", name, volume.ErrInUse)
			}
			clear(d.nodes)
		}
		d.nodes[node] = true
		return nil
	})
	if err != nil {
		return "", err
	}
	n.p.seen[name] = true
	return n.device(name)
}

// device is the path of the disk's device.
func (n *plantedNode) device(name string) (string, error) {
	s := n.p.storage
	if !n.p.has("devices are numbered by order and move up") {
		return diskPath(name), nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.order, name) {
		s.order = append(s.order, name)
	}
	return fmt.Sprintf("/dev/disk-%d", slices.Index(s.order, name)), nil
}

func (n *plantedNode) VolumesAreAttached(_ context.Context, specs map[v1.UniqueVolumeName]*volume.Spec, node types.NodeName) (map[v1.UniqueVolumeName]bool, error) {
	answer := map[v1.UniqueVolumeName]bool{}
	for unique, spec := range specs {
		name, err := n.p.GetVolumeName(spec)
		if err != nil {
			return nil, err
		}
		_ = n.p.storage.use(name, func(d *plantedDisk) error {
			answer[unique] = d.nodes[node] || n.p.has("a disk counts as attached wherever it is") && len(d.nodes) > 0
			return nil
		})
	}
	return answer, nil
}

func (n *plantedNode) WaitForAttach(ctx context.Context, spec *volume.Spec, _ string, _ *v1.Pod) (string, error) {
	name, err := n.p.GetVolumeName(spec)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return "", err
	}
	return n.device(name)
}

func (n *plantedNode) Detach(ctx context.Context, name string, node types.NodeName) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s := n.p.storage
	err := s.use(name, func(d *plantedDisk) error {
		if n.p.has("Detach detaches from every node") {
			clear(d.nodes)
		}
		delete(d.nodes, node)
		s.order = slices.DeleteFunc(s.order, func(other string) bool { return other == name })
		if n.p.has("Detach loses what was written") {
			return s.wipe(context.WithoutCancel(ctx), name)
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (n *plantedNode) GetDeviceMountPath(spec *volume.Spec) (string, error) {
	name, err := n.p.GetVolumeName(spec)
	if err != nil {
		return "", err
	}
	return n.p.stagePath(name), nil
}

func (n *plantedNode) MountDevice(ctx context.Context, spec *volume.Spec, device, path string, _ volume.DeviceMounterArgs) error {
	name, err := n.p.GetVolumeName(spec)
	if err != nil {
		return err
	}
	defer n.p.storage.lock(name)()
	if n.p.has("MountDevice keeps a descriptor of the device") {
		n.p.storage.keepOpen()
	}
	mounted, err := n.p.isMounted(ctx, path)
	if mounted || err != nil {
		return err
	}
	if n.p.has("a failed MountDevice leaves its directory") {
		if err := n.p.storage.world.MkdirAll(path, 0o750); err != nil {
			return err
		}
	}
	if err := n.format(ctx, name); err != nil {
		return err
	}
	source, err := n.source(name, device)
	if err != nil {
		return err
	}
	_ = n.p.storage.use(name, func(d *plantedDisk) error {
		if d.remounted != 0 {
			d.filesystem, d.remounted = d.remounted, 0
		}
		return nil
	})
	options := []string{"bind", "nosuid", "nodev"}
	if n.p.has("a staged volume may have devices and setuid programs") {
		options = []string{"bind"}
	}
	return n.p.mounter.Mount(ctx, mount.Request{Source: source, Target: path, Options: options})
}

// format makes a filesystem where none is, as bugs believe.
func (n *plantedNode) format(ctx context.Context, name string) error {
	fresh := n.p.has("MountDevice formats each time")
	if n.p.has("a new process formats what it does not know") && !n.p.formatted[name] {
		fresh = true
		n.p.formatted[name] = true
	}
	if !fresh {
		return nil
	}
	return n.p.storage.wipe(ctx, name)
}

// source is the disk behind a device.
func (n *plantedNode) source(name, device string) (string, error) {
	s := n.p.storage
	if err := s.exists(name); err != nil || !strings.HasPrefix(device, "/dev/disk-") {
		return diskPath(name), err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, disk := range s.order {
		if device == fmt.Sprintf("/dev/disk-%d", i) {
			return diskPath(disk), nil
		}
	}
	return "", errors.New("the device is not there")
}

func (n *plantedNode) UnmountDevice(ctx context.Context, path string) error {
	options := mount.UnmountOptions{}
	if n.p.has("UnmountDevice is lazy") {
		options.Lazy = true
	}
	if n.p.has("UnmountDevice takes the pods' mounts too") {
		refs, err := n.p.mounter.GetMountRefs(ctx, path)
		for _, ref := range refs {
			err = errors.Join(err, mount.UnmountPath(ctx, n.p.mounter, ref, mount.UnmountOptions{Lazy: true}))
		}
		if err != nil && len(refs) > 0 {
			return err
		}
	}
	if n.p.has("UnmountDevice takes every path that begins like this") {
		table, err := n.p.mounter.List(ctx)
		for _, m := range table {
			if strings.HasPrefix(m.Path, path) && m.Path != path {
				err = errors.Join(err, mount.UnmountPath(ctx, n.p.mounter, m.Path, mount.UnmountOptions{Lazy: true}))
			}
		}
		if err != nil {
			return err
		}
	}
	return mount.UnmountPath(ctx, n.p.mounter, path, options)
}
