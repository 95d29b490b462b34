package dockerdriver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/bridge/docker/internal/protocol"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// defaultCallTimeout is Docker's own timeout for a driver.
const defaultCallTimeout = 2 * time.Minute

// Options configures a [Plugin]. Fields that are not marked as required may be empty.
type Options struct {
	// Name is the plugin's name, such as "example.com/images". Required. It must never change, because paths contain
	// it.
	Name string
	// Socket is the absolute path of the driver's socket. Required.
	Socket string
	// Roots are absolute directories below which the driver may return paths. Required. Only the operator of the host may write
	// to the directories above them.
	Roots []string
	// SizeOption is the name of the driver's option for the size in bytes, such as "size". If it is empty, the driver
	// gets no size, and volumes have no size limit, whatever their capacity.
	SizeOption string
	// PlainDirectories allows the driver to return directories that are no mounts.
	PlainDirectories bool
	// Mounter makes the binds. If it is nil, the plugin makes its own.
	Mounter mount.Interface
	// CallTimeout bounds each call of the driver; zero means two minutes.
	CallTimeout time.Duration
}

// Plugin is the plugin of one driver. Make it with [New]. Its methods may be called from several goroutines at once.
type Plugin struct {
	options Options
	driver  *client
	mounter mount.Interface
	host    volume.VolumeHost
}

// New returns a plugin. It does no I/O and starts no goroutine. The error for a missing or invalid option matches
// [volume.ErrInvalid].
func New(options Options) (*Plugin, error) {
	if options.CallTimeout == 0 {
		options.CallTimeout = defaultCallTimeout
	}
	if options.Mounter == nil {
		options.Mounter = mount.New(mount.Options{})
	}
	if err := errors.Join(volume.ValidatePluginName(options.Name), checkPaths(options)); err != nil {
		return nil, fmt.Errorf("docker driver %q: %w", options.Name, err)
	}
	return &Plugin{options: options, driver: newClient(options.Socket, options.CallTimeout), mounter: options.Mounter}, nil
}

func checkPaths(o Options) error {
	if len(o.Roots) == 0 {
		return fmt.Errorf("no Roots: give the directories below which the driver mounts: %w", volume.ErrInvalid)
	}
	for _, path := range append([]string{o.Socket}, o.Roots...) {
		if !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/" {
			return fmt.Errorf("%q: give a clean absolute path below the root: %w", path, volume.ErrInvalid)
		}
	}
	return nil
}

// Init implements volume.VolumePlugin. It does not call the driver, which may start later.
func (p *Plugin) Init(_ context.Context, host volume.VolumeHost) error {
	p.host = host
	return nil
}

// GetPluginName implements volume.VolumePlugin.
func (p *Plugin) GetPluginName() string { return p.options.Name }

// CanSupport implements volume.VolumePlugin.
func (p *Plugin) CanSupport(spec *volume.Spec) bool {
	_, err := p.handleOf(spec)
	return err == nil
}

// GetVolumeName implements volume.VolumePlugin: the name of the volume in the driver.
func (p *Plugin) GetVolumeName(spec *volume.Spec) (string, error) { return p.handleOf(spec) }

func (p *Plugin) handleOf(spec *volume.Spec) (string, error) {
	if spec == nil || spec.PersistentVolume == nil || spec.PersistentVolume.Spec.CSI == nil || !spec.HasDriver(p.options.Name) {
		return "", fmt.Errorf("only a PersistentVolume with the csi driver %s is one of this plugin: %w",
			volume.DriverOfPluginName(p.options.Name), volume.ErrInvalid)
	}
	handle := spec.PersistentVolume.Spec.CSI.VolumeHandle
	if err := volume.CheckPathElement(handle); err != nil {
		return "", fmt.Errorf("volumeHandle of volume %q: %w", spec.Name(), err)
	}
	return handle, nil
}

// GetAccessModes implements volume.PersistentVolumePlugin. Only the driver knows the access of other nodes.
func (p *Plugin) GetAccessModes() []v1.PersistentVolumeAccessMode {
	return []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadOnlyMany, v1.ReadWriteMany, v1.ReadWriteOncePod}
}

// NewProvisioner implements volume.ProvisionableVolumePlugin.
func (p *Plugin) NewProvisioner(options volume.VolumeOptions) (volume.Provisioner, error) {
	if options.PVC == nil {
		return nil, fmt.Errorf("there is no claim: %w", volume.ErrInvalid)
	}
	if err := volume.CheckPathElement(options.PVName); err != nil {
		return nil, err
	}
	return &provisioner{plugin: p, options: options}, nil
}

type provisioner struct {
	plugin  *Plugin
	options volume.VolumeOptions
}

// Provision implements volume.Provisioner. If the driver already has a volume of that name, it counts as that of an
// earlier attempt.
func (p *provisioner) Provision(ctx context.Context, _ *v1.Node, allowed []v1.TopologySelectorTerm) (*v1.PersistentVolume, error) {
	claim, name := p.options.PVC, p.options.PVName
	switch {
	case len(allowed) > 0:
		return nil, fmt.Errorf("a Docker driver knows no topologies: remove allowedTopologies from the class: %w", volume.ErrInfeasible)
	case claim.Spec.DataSource != nil || claim.Spec.DataSourceRef != nil:
		return nil, fmt.Errorf("a Docker driver makes no copies: remove the claim's data source: %w", volume.ErrInfeasible)
	case len(p.options.MountOptions) > 0:
		return nil, fmt.Errorf("a Docker driver takes no mount options: remove mountOptions from the class: %w", volume.ErrInfeasible)
	case volume.CheckPersistentVolumeClaimModeBlock(claim):
		return nil, fmt.Errorf("a Docker driver has no block volumes: %w", volume.ErrInfeasible)
	}
	size, err := volume.RequestedBytes(claim)
	if err != nil {
		return nil, err
	}
	options := maps.Clone(p.options.Parameters)
	if key := p.plugin.options.SizeOption; key != "" {
		if options == nil {
			options = map[string]string{}
		}
		options[key] = fmt.Sprint(size)
	}
	if err := p.plugin.create(ctx, name, options); err != nil {
		return nil, fmt.Errorf("volume %q: %w", name, err)
	}
	filesystem := v1.PersistentVolumeFilesystem
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PersistentVolumeSpec{
			Capacity: claim.Spec.Resources.Requests.DeepCopy(), AccessModes: claim.Spec.AccessModes, VolumeMode: &filesystem,
			PersistentVolumeReclaimPolicy: p.options.PersistentVolumeReclaimPolicy,
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
				Driver: volume.DriverOfPluginName(p.plugin.options.Name), VolumeHandle: name,
			}},
		},
	}, nil
}

// create creates a volume. A driver that returns an error may have created the volume partly: then its list has it.
func (p *Plugin) create(ctx context.Context, name string, options map[string]string) error {
	if there, err := p.exists(ctx, name); err != nil || there {
		return err
	}
	err := p.driver.call(ctx, protocol.Create, protocol.Creation{Name: name, Opts: options}, &protocol.Nothing{})
	if !isRefusal(err) {
		return err
	}
	if listed, listErr := p.isListed(ctx, name); listErr != nil || listed {
		return volume.Uncertain(errors.Join(err, listErr))
	}
	return err
}

// exists reports whether the driver has the volume. A driver returns an error from Get if it does not have the volume,
// and also if it cannot reach its storage. In both cases its list decides.
func (p *Plugin) exists(ctx context.Context, name string) (bool, error) {
	var got protocol.Got
	err := p.driver.call(ctx, protocol.Get, protocol.Name{Name: name}, &got)
	if err == nil && got.Volume != nil && got.Volume.Name == name {
		return true, nil
	}
	if err != nil && !isRefusal(err) {
		return false, volume.Transient(fmt.Errorf("whether the driver has the volume is not known: %s", err)) //nolint:errorlint // a question changes nothing, whatever its class
	}
	listed, listErr := p.isListed(ctx, name)
	switch {
	case listErr != nil:
		return false, errors.Join(listErr, err)
	case listed:
		return false, volume.Transient(errors.Join(errors.New("the driver has the volume on its list, and does not return it"), err))
	}
	return false, nil
}

// isListed reports whether the driver's list has the volume. An error is transient: a read changes nothing.
func (p *Plugin) isListed(ctx context.Context, name string) (bool, error) {
	var all protocol.Listed
	if err := p.driver.call(ctx, protocol.List, protocol.Nothing{}, &all); err != nil {
		return false, volume.Transient(fmt.Errorf("the list of the driver's volumes: %s", err)) //nolint:errorlint // its class does not count
	}
	return slices.ContainsFunc(all.Volumes, func(v protocol.Volume) bool { return v.Name == name }), nil
}

type deleter struct {
	volume.Dir

	plugin *Plugin
	handle string
}

// NewDeleter implements volume.DeletableVolumePlugin.
func (p *Plugin) NewDeleter(spec *volume.Spec) (volume.Deleter, error) {
	handle, err := p.handleOf(spec)
	if err != nil {
		return nil, err
	}
	return &deleter{Dir: volume.Dir{Path: p.stagingPath(handle)}, plugin: p, handle: handle}, nil
}

// Delete implements volume.Deleter. A volume that is staged on this node is in use.
func (d *deleter) Delete(ctx context.Context) error {
	if _, mounted, err := d.plugin.at(ctx, d.plugin.stagingPath(d.handle)); err != nil || mounted {
		return errors.Join(err, fmt.Errorf("volume %q is staged on this node: %w", d.handle, volume.ErrInUse))
	}
	there, err := d.plugin.exists(ctx, d.handle)
	if err != nil || !there {
		return err
	}
	err = d.plugin.driver.call(ctx, protocol.Remove, protocol.Name{Name: d.handle}, &protocol.Nothing{})
	if isRefusal(err) { // an earlier Remove, whose caller has left, may have ended meanwhile
		if listed, listErr := d.plugin.isListed(ctx, d.handle); listErr == nil && !listed {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("volume %q: %w", d.handle, err)
	}
	return nil
}

func (p *Plugin) stagingPath(handle string) string {
	return filepath.Join(p.host.GetPluginDir(p.options.Name), "mounts", handle)
}

func (p *Plugin) podPath(name string, podUID types.UID) (string, error) {
	if err := errors.Join(volume.CheckPathElement(name), volume.CheckPathElement(string(podUID))); err != nil {
		return "", err
	}
	return p.host.GetPodVolumeDir(podUID, p.options.Name, name), nil
}
