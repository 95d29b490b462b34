package fake

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// DefaultPluginName is the name of a [Plugin] whose options give none. Its CSI driver is "fake.example.com".
const DefaultPluginName = "example.com/fake"

// ParameterHandle is the volume attribute by which a volume that is inline in a pod names storage that outlives the pod.
// Without it, an inline volume is the pod's own, is neither attached nor staged, and ends with the pod.
const ParameterHandle = "handle"

// PluginOptions says what a [Plugin] is. Only Mounter is required.
type PluginOptions struct {
	// Name is the plugin's name with its one slash; empty means [DefaultPluginName].
	Name string
	// Mounter makes the plugin's mounts. Required.
	Mounter mount.Interface
	// Backend is the storage behind the plugin; nil makes one. A second Plugin with the same Backend and Mounter is the
	// plugin after its process was restarted.
	Backend *Backend
	// Without are the capabilities that are turned off. The zero value leaves all on.
	Without volume.Capabilities
	// FSType is the filesystem that is mounted where a volume is staged, or set up without staging; empty means tmpfs.
	FSType string
	// AccessModes are those that GetAccessModes returns; nil means all four.
	AccessModes []v1.PersistentVolumeAccessMode
	// AttachLimit is how many volumes a node can hold; 0 means no limit is reported.
	AttachLimit int64
	// IgnoreFencing makes the storage admit the calls of leaders that were replaced, as most storage does. By default calls with
	// an older volume.FencingToken than an earlier one for the volume are refused.
	IgnoreFencing bool
	// MaxSize is the largest volume, in bytes, that can be provisioned or grown to; 0 means no limit.
	MaxSize int64
	// Capacity is how many bytes all volumes can have together, in the segment of each call alike; 0 means that there is no
	// limit, and GetCapacity does not know how much is available. Provision makes no more than that.
	Capacity int64
	// Remount makes the plugin ask for a new SetUp whenever a pod is updated.
	Remount bool
	// Reuse makes the plugin say that a volume that a restart finds mounted needs no SetUp. Remount overrides it.
	Reuse bool
	// UnreadySnapshots makes snapshots that are not ready to use until [Backend.MakeSnapshotReady] is called.
	UnreadySnapshots bool
	// AlsoSupports widens CanSupport beyond the specs that name the plugin as their driver, so that two plugins can be
	// made to claim one spec; the plugin then declares no kinds. Nil supports no other spec.
	AlsoSupports func(spec *volume.Spec) bool
}

// Plugin is a volume plugin with every capability. It serves a spec whose csi or flexVolume source names it (see
// volume.Spec.Driver). Storage is kept by its [Backend], mounts are made by its Mounter: a volume with a handle is staged
// by mounting a filesystem and set up by binding that, read-only where the spec says so; one without is a filesystem of
// its own for each pod. Ownership and SELinux labels of the arguments are left alone, and an error of a wrong class is
// made by [Plugin.Inject] only.
type Plugin struct {
	options PluginOptions
	log     pluginLog
	host    hostBox
}

var (
	_ volume.PersistentVolumePlugin         = (*Plugin)(nil)
	_ volume.RecyclableVolumePlugin         = (*Plugin)(nil)
	_ volume.DeletableVolumePlugin          = (*Plugin)(nil)
	_ volume.ProvisionableVolumePlugin      = (*Plugin)(nil)
	_ volume.CloneableVolumePlugin          = (*Plugin)(nil)
	_ volume.SnapshotLister                 = (*Plugin)(nil)
	_ volume.GroupSnapshottableVolumePlugin = (*Plugin)(nil)
	_ volume.VolumePluginWithCapacity       = (*Plugin)(nil)
	_ volume.AttachableVolumePlugin         = (*Plugin)(nil)
	_ volume.ExpandableVolumePlugin         = (*Plugin)(nil)
	_ volume.NodeExpandableVolumePlugin     = (*Plugin)(nil)
	_ volume.ModifiableVolumePlugin         = (*Plugin)(nil)
	_ volume.VolumePluginWithAttachLimits   = (*Plugin)(nil)
	_ volume.FencingVolumePlugin            = (*Plugin)(nil)
	_ volume.AttachmentLister               = (*Plugin)(nil)
	_ volume.BlockVolumePlugin              = (*Plugin)(nil)
	_ volume.RemountableVolumePlugin        = (*Plugin)(nil)
	_ volume.MountOptionVolumePlugin        = (*Plugin)(nil)
	_ volume.MountingVolumePlugin           = (*Plugin)(nil)
	_ volume.SELinuxVolumePlugin            = (*Plugin)(nil)
	_ volume.ReconstructableVolumePlugin    = (*Plugin)(nil)
	_ volume.BulkVolumeVerifier             = (*Plugin)(nil)
	_ volume.Explainer                      = (*Plugin)(nil)
	_ volume.SpecKindDeclarer               = (*Plugin)(nil)
	_ volume.PublicKeyDeclarer              = (*Plugin)(nil)
	_ volume.CapabilityLimiter              = (*Plugin)(nil)
)

// NewPlugin returns a plugin of options. It does no I/O; that Mounter is there is checked by Init.
func NewPlugin(options PluginOptions) *Plugin {
	if options.Name == "" {
		options.Name = DefaultPluginName
	}
	if options.FSType == "" {
		options.FSType = "tmpfs"
	}
	if options.Backend == nil {
		options.Backend = NewBackend()
	}
	if options.AccessModes == nil {
		options.AccessModes = []v1.PersistentVolumeAccessMode{
			v1.ReadWriteOnce, v1.ReadOnlyMany, v1.ReadWriteMany, v1.ReadWriteOncePod,
		}
	}
	return &Plugin{options: options}
}

// Inject queues faults for the next calls of method, after those that are queued already.
func (p *Plugin) Inject(method Method, faults ...Fault) { p.log.inject(method, faults) }

// Calls returns every call so far, in the order in which they began; a copy.
func (p *Plugin) Calls() []Call { return p.log.snapshot() }

// AwaitCalls returns when at least n calls of method have begun since the plugin was made, or with the cause of ctx when
// it ends first.
func (p *Plugin) AwaitCalls(ctx context.Context, method Method, n int) error {
	return p.log.await(ctx, method, n)
}

// Backend returns the storage behind the plugin.
func (p *Plugin) Backend() *Backend { return p.options.Backend }

// Init implements [volume.VolumePlugin].
func (p *Plugin) Init(ctx context.Context, host volume.VolumeHost) error {
	return p.log.run(ctx, Call{Method: MethodInit}, func() error {
		if p.options.Mounter == nil {
			return fmt.Errorf("plugin %q: PluginOptions.Mounter is nil: give one, such as fake.NewMounter(fake.MounterOptions{}): %w",
				p.options.Name, volume.ErrInvalid)
		}
		p.host.set(host)
		return nil
	})
}

// GetPluginName implements [volume.VolumePlugin].
func (p *Plugin) GetPluginName() string { return p.options.Name }

// GetVolumeName implements [volume.VolumePlugin]: the handle, or the inner name of a volume that has none.
func (p *Plugin) GetVolumeName(spec *volume.Spec) (string, error) {
	v, err := p.volumeOf(spec)
	if err != nil {
		return "", err
	}
	if v.handle == "" {
		return v.name, nil
	}
	return v.handle, nil
}

// CanSupport implements [volume.VolumePlugin].
func (p *Plugin) CanSupport(spec *volume.Spec) bool {
	return spec.HasDriver(p.options.Name) || p.options.AlsoSupports != nil && p.options.AlsoSupports(spec)
}

// SpecKinds implements [volume.SpecKindDeclarer]: the csi and flexVolume sources that name the plugin.
func (p *Plugin) SpecKinds() []volume.SpecKind {
	if p.options.AlsoSupports != nil {
		return nil
	}
	return volume.DriverKinds(p.options.Name)
}

// PublicKeys implements [volume.PublicKeyDeclarer].
func (p *Plugin) PublicKeys() []string { return []string{ParameterHandle} }

// ExplainSupport implements [volume.Explainer].
func (p *Plugin) ExplainSupport(spec *volume.Spec) error {
	if p.CanSupport(spec) {
		return nil
	}
	if d, ok := spec.Driver(); ok {
		return fmt.Errorf("its driver names plugin %q", d.PluginName)
	}
	return errors.New("it has no csi or flexVolume source")
}

// Capabilities implements [volume.CapabilityLimiter]. Snapshots of several volumes at one moment take a [Mounter], since the
// files of the machine cannot be read so.
func (p *Plugin) Capabilities() volume.Capabilities {
	can := volume.AllCapabilities &^ p.options.Without
	if p.options.Mounter != nil && !readsAtOneMoment(p.options.Mounter) {
		can &^= volume.CapGroupSnapshot
	}
	return can
}

// GetAccessModes implements [volume.PersistentVolumePlugin].
func (p *Plugin) GetAccessModes() []v1.PersistentVolumeAccessMode { return p.options.AccessModes }

// RequiresRemount implements [volume.RemountableVolumePlugin].
func (p *Plugin) RequiresRemount(*volume.Spec) bool { return p.options.Remount }

// SupportsMountOption implements [volume.MountOptionVolumePlugin].
func (p *Plugin) SupportsMountOption() bool { return true }

// SupportsSELinuxContextMount implements [volume.SELinuxVolumePlugin].
func (p *Plugin) SupportsSELinuxContextMount(spec *volume.Spec) (bool, error) {
	_, err := p.volumeOf(spec)
	return err == nil, err
}

// ConstructVolumeSpec implements [volume.ReconstructableVolumePlugin]. The handle of a volume whose name is not its
// handle cannot be learnt from a directory: such a volume comes back as one of the pod's own.
func (p *Plugin) ConstructVolumeSpec(volumeName, mountPath string) (volume.ReconstructedVolume, error) {
	if err := checkNames(volumeName); err != nil {
		return volume.ReconstructedVolume{}, fmt.Errorf("plugin %q: volume at %s: %w", p.options.Name, mountPath, err)
	}
	return volume.ReconstructedVolume{Spec: p.constructSpec(volumeName, v1.PersistentVolumeFilesystem)}, nil
}

// constructSpec builds what the name and the backend tell. A block device is always one that outlives the pod.
func (p *Plugin) constructSpec(name string, mode v1.PersistentVolumeMode) *volume.Spec {
	driver := volume.DriverOfPluginName(p.options.Name)
	if mode != v1.PersistentVolumeBlock && !p.options.Backend.has(name) {
		return volume.NewSpecFromVolume(&v1.Volume{
			Name:         name,
			VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: driver}},
		})
	}
	return volume.NewSpecFromPersistentVolume(&v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PersistentVolumeSpec{
			AccessModes: p.options.AccessModes,
			VolumeMode:  &mode,
			PersistentVolumeSource: v1.PersistentVolumeSource{
				CSI: &v1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: name},
			},
		},
	}, false)
}

// volumeInfo is what a spec says to this plugin.
type volumeInfo struct {
	name         string
	handle       string
	readOnly     bool
	exclusive    bool
	mountOptions []string
}

// volumeOf reads spec and refuses one that is not the plugin's or that has a name that cannot be part of a path.
func (p *Plugin) volumeOf(spec *volume.Spec) (volumeInfo, error) {
	if spec == nil || !p.CanSupport(spec) {
		return volumeInfo{}, fmt.Errorf("plugin %q: volume %q is not one of this plugin: give one whose csi driver is %q: %w",
			p.options.Name, spec.Name(), volume.DriverOfPluginName(p.options.Name), volume.ErrInvalid)
	}
	d, _ := spec.Driver()
	v := volumeInfo{name: spec.Name(), handle: d.Handle, readOnly: d.ReadOnly}
	if v.handle == "" {
		v.handle = d.Parameters[ParameterHandle]
	}
	if pv := spec.PersistentVolume; pv != nil {
		v.mountOptions = volume.MountOptionFromSpec(spec)
		v.exclusive = exclusive(pv.Spec.AccessModes)
	}
	names := []string{v.name}
	if v.handle != "" {
		names = append(names, v.handle)
	}
	if err := checkNames(names...); err != nil {
		return volumeInfo{}, fmt.Errorf("plugin %q: %w", p.options.Name, err)
	}
	return v, nil
}

// exclusive reports whether modes allow one node only.
func exclusive(modes []v1.PersistentVolumeAccessMode) bool {
	for _, m := range modes {
		if m == v1.ReadOnlyMany || m == v1.ReadWriteMany {
			return false
		}
	}
	return len(modes) > 0
}

// staged reports whether the volume is staged before it is set up.
func (p *Plugin) staged(v volumeInfo) bool {
	return v.handle != "" && p.Capabilities().Has(volume.CapDeviceMount)
}

// stagePath is where a volume is staged on this node.
func (p *Plugin) stagePath(handle string) (string, error) {
	host, err := p.host.get()
	if err != nil {
		return "", fmt.Errorf("plugin %q: %w", p.options.Name, err)
	}
	return filepath.Join(host.GetPluginDir(p.options.Name), "mounts", handle), nil
}

// devicePath is the device of a volume on every node. It exists only where a test makes it.
func devicePath(handle string) string { return "/dev/fake/" + handle }

// checkNames checks names that become parts of paths.
func checkNames(names ...string) error {
	for _, name := range names {
		if err := volume.CheckPathElement(name); err != nil {
			return err
		}
	}
	return nil
}

// checkPodUID checks the UID of a pod, which becomes a part of paths.
func checkPodUID(uid types.UID) error {
	if err := volume.CheckPathElement(string(uid)); err != nil {
		return fmt.Errorf("pod UID: %w", err)
	}
	return nil
}
