// Package ram is a volume plugin to copy. Each volume is a tmpfs that begins and ends with its pod.
package ram

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// Name is a part of paths, so it never changes. A spec names the plugin by its csi driver, "ram.example.com".
const Name = "example.com/ram"

// Plugin keeps nothing in memory about volumes. A new value continues where a killed one stopped.
type Plugin struct {
	Mounter mount.Interface // makes the mounts; must not be nil
	host    volume.VolumeHost
}

// Init is called once, before every other method.
func (p *Plugin) Init(_ context.Context, host volume.VolumeHost) error {
	p.host = host
	return nil
}

func (p *Plugin) GetPluginName() string { return Name }

// CanSupport is true for an inline volume of a pod that names the driver.
func (p *Plugin) CanSupport(spec *volume.Spec) bool {
	return spec.PersistentVolume == nil && spec.HasDriver(Name)
}

func (p *Plugin) GetVolumeName(spec *volume.Spec) (string, error) {
	if !p.CanSupport(spec) {
		return "", fmt.Errorf("volume %q is no pod's own of %s: %w", spec.Name(), Name, volume.ErrInvalid)
	}
	return spec.Name(), nil
}

func (p *Plugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	name, err := p.GetVolumeName(spec)
	if err != nil {
		return nil, err
	}
	driver, _ := spec.Driver()
	r := &ram{mounter: p.Mounter, readOnly: driver.ReadOnly}
	return r, r.locate(p.host, name, pod.UID)
}

// NewUnmounter gets only the name and the pod's UID: the program that mounted may have been killed.
func (p *Plugin) NewUnmounter(name string, podUID types.UID) (volume.Unmounter, error) {
	r := &ram{mounter: p.Mounter}
	return r, r.locate(p.host, name, podUID)
}

// ram mounts and unmounts one volume of one pod. The embedded Dir has GetPath and GetMetrics.
type ram struct {
	volume.Dir
	mounter  mount.Interface
	readOnly bool
}

// locate checks the names, which come from users and become parts of a path.
func (r *ram) locate(host volume.VolumeHost, name string, podUID types.UID) error {
	r.Path = host.GetPodVolumeDir(podUID, Name, name)
	return errors.Join(volume.CheckPathElement(name), volume.CheckPathElement(string(podUID)))
}

func (r *ram) GetAttributes() volume.Attributes { return volume.Attributes{ReadOnly: r.readOnly} }

func (r *ram) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return r.SetUpAt(ctx, r.Path, args)
}

func (r *ram) SetUpAt(ctx context.Context, dir string, _ volume.MounterArgs) error {
	if mounted, err := r.mounter.IsMountPoint(ctx, dir); mounted || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	options := []string{"nosuid", "nodev", "size=64m"}
	if r.readOnly {
		options = append(options, "ro")
	}
	return r.mounter.Mount(ctx, mount.Request{Source: "tmpfs", Target: dir, FSType: "tmpfs", Options: options})
}

func (r *ram) TearDown(ctx context.Context) error { return r.TearDownAt(ctx, r.Path) }

func (r *ram) TearDownAt(ctx context.Context, dir string) error {
	return mount.UnmountPath(ctx, r.mounter, dir, mount.UnmountOptions{})
}
