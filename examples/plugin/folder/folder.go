// Package folder is the second volume plugin to copy: it provisions, stages and reports health. Each volume is a folder
// in one directory, such as a share that is mounted on all nodes.
package folder

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/safepath"
	"github.com/volumekit/volumekit/volume"
)

// Name is also the provisioner of a class; PersistentVolumes name the plugin by their csi driver, driverName.
const (
	Name       = "example.com/folder"
	driverName = "folder.example.com"
)

// Plugin keeps nothing in memory about volumes.
type Plugin struct {
	Base    string          // the absolute directory of the folders; only the plugin may write to it
	Mounter mount.Interface // must not be nil
	host    volume.VolumeHost
}

// Init is called once, before everything else.
func (p *Plugin) Init(_ context.Context, host volume.VolumeHost) error {
	p.host = host
	return nil
}

func (p *Plugin) GetPluginName() string { return Name }

func (p *Plugin) CanSupport(spec *volume.Spec) bool {
	return spec.PersistentVolume != nil && spec.HasDriver(Name)
}

// GetAccessModes returns the access modes of claims: a share serves several nodes.
func (p *Plugin) GetAccessModes() []v1.PersistentVolumeAccessMode {
	return []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadOnlyMany, v1.ReadWriteMany}
}

// GetVolumeName returns the folder, which identifies the volume on the node.
func (p *Plugin) GetVolumeName(spec *volume.Spec) (string, error) {
	driver, ok := spec.Driver()
	if !p.CanSupport(spec) || !ok {
		return "", fmt.Errorf("volume %q is none of %s: %w", spec.Name(), Name, volume.ErrInvalid)
	}
	return driver.Handle, volume.CheckPathElement(driver.Handle)
}

// Provision: a claim gets a folder of its own.

func (p *Plugin) NewProvisioner(options volume.VolumeOptions) (volume.Provisioner, error) {
	size, err := volume.RequestedBytes(options.PVC)
	switch {
	case err != nil:
		return nil, err
	case len(options.Parameters) > 0 || len(options.MountOptions) > 0:
		return nil, fmt.Errorf("a class of %s has no parameters and no mount options: remove them: %w", Name, volume.ErrInvalid)
	case volume.CheckPersistentVolumeClaimModeBlock(options.PVC):
		return nil, fmt.Errorf("the claim asks for a block device: %w", volume.ErrInfeasible)
	case options.PVC.Spec.DataSource != nil || options.PVC.Spec.DataSourceRef != nil:
		return nil, fmt.Errorf("the claim asks for a copy: %w", volume.ErrInfeasible)
	case !volume.ContainsAllAccessModes(p.GetAccessModes(), options.PVC.Spec.AccessModes):
		return nil, fmt.Errorf("the claim asks for access modes %v: %w", options.PVC.Spec.AccessModes, volume.ErrInfeasible)
	}
	return &provisioner{plugin: p, options: options, size: size}, volume.CheckPathElement(options.PVName)
}

type provisioner struct {
	plugin  *Plugin
	options volume.VolumeOptions
	size    int64
}

// Provision may be called again after a crash. The folder has the name of the volume, so an existing one is the same
// volume.
func (r *provisioner) Provision(ctx context.Context, _ *v1.Node, topologies []v1.TopologySelectorTerm) (*v1.PersistentVolume, error) {
	if len(topologies) > 0 {
		return nil, fmt.Errorf("%s knows no topologies: remove allowedTopologies from the class: %w", Name, volume.ErrInfeasible)
	}
	base, err := safepath.Open(ctx, r.plugin.Base, safepath.Options{Mounter: r.plugin.Mounter})
	if err != nil {
		return nil, err
	}
	defer func() { _ = base.Close() }()
	if err := base.MkdirAll(ctx, r.options.PVName, safepath.MkdirOptions{Mode: 0o777}); err != nil {
		return nil, err
	}
	mode := v1.PersistentVolumeFilesystem
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: r.options.PVName},
		Spec: v1.PersistentVolumeSpec{
			Capacity:                      v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(r.size, resource.BinarySI)},
			AccessModes:                   r.options.PVC.Spec.AccessModes,
			PersistentVolumeReclaimPolicy: r.options.PersistentVolumeReclaimPolicy,
			VolumeMode:                    &mode,
			PersistentVolumeSource: v1.PersistentVolumeSource{
				CSI: &v1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: r.options.PVName},
			},
		},
	}, nil
}

func (p *Plugin) NewDeleter(spec *volume.Spec) (volume.Deleter, error) {
	name, err := p.GetVolumeName(spec)
	return &deleter{view: viewOf(filepath.Join(p.Base, name)), plugin: p, name: name}, err
}

type deleter struct {
	view
	plugin *Plugin
	name   string
}

// Delete removes the folder through a descriptor. It follows no link and enters no mount, and refuses while this node
// has the volume staged. The controller checks that no other node has.
func (d *deleter) Delete(ctx context.Context) error {
	staged, err := d.plugin.isMounted(ctx, d.plugin.stagingPath(d.name))
	if err == nil && staged {
		err = volume.ErrInUse
	}
	if err != nil {
		return err
	}
	base, err := safepath.Open(ctx, d.plugin.Base, safepath.Options{Mounter: d.plugin.Mounter})
	if err != nil {
		return err // A missing base says nothing about the volume.
	}
	defer func() { _ = base.Close() }()
	err = base.RemoveAll(ctx, d.name)
	if errors.Is(err, safepath.ErrMounted) {
		return fmt.Errorf("%w: %w", volume.ErrInUse, err)
	}
	return err
}

// Stage: the folder is bound once per node. A plugin for a server would mount the server's share here.

func (p *Plugin) NewDeviceMounter() (volume.DeviceMounter, error)     { return &stager{p}, nil }
func (p *Plugin) NewDeviceUnmounter() (volume.DeviceUnmounter, error) { return &stager{p}, nil }

func (p *Plugin) CanDeviceMount(spec *volume.Spec) (bool, error) {
	_, err := p.GetVolumeName(spec)
	return err == nil, err
}

func (p *Plugin) GetDeviceMountRefs(ctx context.Context, path string) ([]string, error) {
	return p.Mounter.GetMountRefs(ctx, path)
}

func (p *Plugin) stagingPath(name string) string {
	return filepath.Join(p.host.GetPluginDir(Name), "mounts", name)
}

type stager struct{ plugin *Plugin }

func (s *stager) GetDeviceMountPath(spec *volume.Spec) (string, error) {
	name, err := s.plugin.GetVolumeName(spec)
	return s.plugin.stagingPath(name), err
}

// MountDevice fails if the folder is missing: then the base is the wrong directory, and the pod must not get an empty
// volume.
func (s *stager) MountDevice(ctx context.Context, spec *volume.Spec, _, path string, _ volume.DeviceMounterArgs) error {
	name, err := s.plugin.GetVolumeName(spec)
	if err != nil {
		return err
	}
	return s.plugin.bind(ctx, mount.Request{Source: filepath.Join(s.plugin.Base, name), Target: path, Options: []string{"rw"}})
}

func (s *stager) UnmountDevice(ctx context.Context, path string) error {
	return mount.UnmountPath(ctx, s.plugin.Mounter, path, mount.UnmountOptions{})
}

// Set up: each pod gets a bind of the staging mount.

func (p *Plugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	name, err := p.GetVolumeName(spec)
	if err != nil {
		return nil, err
	}
	return p.mounting(name, spec.Name(), pod.UID, spec.ReadOnly)
}

// NewUnmounter gets only the name of the spec and the pod's UID.
func (p *Plugin) NewUnmounter(specName string, podUID types.UID) (volume.Unmounter, error) {
	return p.mounting("", specName, podUID, false)
}

func (p *Plugin) mounting(name, specName string, podUID types.UID, readOnly bool) (*mounting, error) {
	err := errors.Join(volume.CheckPathElement(specName), volume.CheckPathElement(string(podUID)))
	return &mounting{view: viewOf(p.host.GetPodVolumeDir(podUID, Name, specName)), plugin: p, name: name, readOnly: readOnly}, err
}

// mounting is one volume of one pod.
type mounting struct {
	view
	plugin   *Plugin
	name     string
	readOnly bool
}

func (m *mounting) GetAttributes() volume.Attributes { return volume.Attributes{ReadOnly: m.readOnly} }

func (m *mounting) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return m.SetUpAt(ctx, m.GetPath(), args)
}

// SetUpAt refuses to bind a path that is not staged: the directory below the mount is no volume.
func (m *mounting) SetUpAt(ctx context.Context, dir string, _ volume.MounterArgs) error {
	staging := m.plugin.stagingPath(m.name)
	if staged, err := m.plugin.isMounted(ctx, staging); err != nil || !staged {
		return errors.Join(err, fmt.Errorf("nothing is staged at %q", staging))
	}
	options := []string{"rw"}
	if m.readOnly {
		options = []string{"ro"}
	}
	return m.plugin.bind(ctx, mount.Request{Source: staging, Target: dir, Options: options})
}

func (m *mounting) TearDown(ctx context.Context) error { return m.TearDownAt(ctx, m.GetPath()) }

func (m *mounting) TearDownAt(ctx context.Context, dir string) error {
	return mount.UnmountPath(ctx, m.plugin.Mounter, dir, mount.UnmountOptions{})
}

// Report: the usage and the health of the volume.

// view is a path of a volume. All volumes share one filesystem, so the usage is measured by a walk.
type view struct {
	*volume.MetricsDu
	path string
}

func viewOf(path string) view { return view{volume.NewMetricsDu(path), path} }

func (v view) GetPath() string { return v.path }

// GetHealth reports if the folder was deleted on the share while it is mounted here.
func (m *mounting) GetHealth(ctx context.Context) ([]volume.HealthCondition, error) {
	if m.name == "" {
		return nil, nil // An unmounter does not know the folder.
	}
	base, err := safepath.Open(ctx, m.plugin.Base, safepath.Options{Mounter: m.plugin.Mounter})
	if err != nil {
		return nil, err
	}
	defer func() { _ = base.Close() }()
	folder, err := base.OpenPath(ctx, m.name, safepath.AnyKind)
	if err == nil {
		return nil, folder.Close()
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return []volume.HealthCondition{{
		Status: volume.HealthAbnormal, Reason: "FolderGone", Message: fmt.Sprintf("folder %q is gone from %s: restore it", m.name, m.plugin.Base),
	}}, nil
}

// bind does only the missing steps, because a call may be repeated.
func (p *Plugin) bind(ctx context.Context, request mount.Request) error {
	if mounted, err := p.isMounted(ctx, request.Target); mounted || err != nil {
		return err
	}
	request.Options = append(request.Options, "bind", "nosuid", "nodev")
	return p.Mounter.Mount(ctx, request)
}

func (p *Plugin) isMounted(ctx context.Context, path string) (bool, error) {
	mounted, err := p.Mounter.IsMountPoint(ctx, path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return mounted, err
}
