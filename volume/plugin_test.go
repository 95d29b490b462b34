package volume

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

// plain is a plugin that can do nothing beside setting up: it supports each volume whose name is in serves.
type plain struct {
	name     string
	serves   func(*Spec) bool
	init     func(context.Context, VolumeHost) error
	declines error
}

func (p *plain) Init(ctx context.Context, host VolumeHost) error {
	if p.init == nil {
		return nil
	}
	return p.init(ctx, host)
}
func (p *plain) GetPluginName() string                    { return p.name }
func (p *plain) GetVolumeName(spec *Spec) (string, error) { return "name-of-" + spec.Name(), nil }
func (p *plain) CanSupport(spec *Spec) bool               { return p.serves != nil && p.serves(spec) }
func (p *plain) NewMounter(*Spec, *v1.Pod) (Mounter, error) {
	return nil, errors.New("not for tests of the registry")
}
func (p *plain) NewUnmounter(string, types.UID) (Unmounter, error) {
	return nil, errors.New("not for tests of the registry")
}

// explaining is a plain plugin that says why it declines.
type explaining struct{ plain }

func (p *explaining) ExplainSupport(*Spec) error { return p.declines }

// able is a plugin with every interface; what it can do is narrowed to capabilities.
type able struct {
	plain
	capabilities Capabilities
	canAttach    func(*Spec) (bool, error)
	canMount     func(*Spec) (bool, error)
	remount      bool
	reuse        bool
}

func yes(*Spec) (bool, error) { return true, nil }
func no(*Spec) (bool, error)  { return false, nil }

func newAble(name string) *able {
	return &able{
		plain:        plain{name: name, serves: always},
		capabilities: AllCapabilities,
		canAttach:    yes,
		canMount:     yes,
		remount:      true,
	}
}

func always(*Spec) bool { return true }

func (p *able) Capabilities() Capabilities                      { return p.capabilities }
func (p *able) GetAccessModes() []v1.PersistentVolumeAccessMode { return nil }
func (p *able) Recycle(context.Context, string, *Spec, RecycleEventRecorder) error {
	return nil
}
func (p *able) NewDeleter(*Spec) (Deleter, error)                 { return nil, nil }
func (p *able) NewProvisioner(VolumeOptions) (Provisioner, error) { return nil, nil }
func (p *able) CanClone(*Spec) (bool, error)                      { return true, nil }
func (p *able) NewAttacher() (Attacher, error)                    { return nil, nil }
func (p *able) NewDetacher() (Detacher, error)                    { return nil, nil }
func (p *able) CanAttach(spec *Spec) (bool, error)                { return p.canAttach(spec) }
func (p *able) NewDeviceMounter() (DeviceMounter, error)          { return nil, nil }
func (p *able) NewDeviceUnmounter() (DeviceUnmounter, error)      { return nil, nil }
func (p *able) CanDeviceMount(spec *Spec) (bool, error)           { return p.canMount(spec) }
func (p *able) RequiresFSResize() bool                            { return true }
func (p *able) VolumeLimitKey(*Spec) string                       { return "disks" }
func (p *able) RequiresRemount(*Spec) bool                        { return p.remount }
func (p *able) SetUpIsMount(*Spec) bool                           { return true }
func (p *able) MountDeviceIsMount(*Spec) bool                     { return true }
func (p *able) CanReuse(*Spec) bool                               { return p.reuse }
func (p *able) SupportsMountOption() bool                         { return true }
func (p *able) SupportsSELinuxContextMount(*Spec) (bool, error)   { return true, nil }
func (p *able) NodeExpand(context.Context, NodeResizeOptions) (bool, error) {
	return true, nil
}
func (p *able) GetDeviceMountRefs(context.Context, string) ([]string, error) { return nil, nil }
func (p *able) GetVolumeLimits(context.Context) (map[string]int64, error)    { return nil, nil }
func (p *able) ExpandVolumeDevice(context.Context, *Spec, resource.Quantity, resource.Quantity) (resource.Quantity, error) {
	return resource.Quantity{}, nil
}
func (p *able) ModifyVolume(context.Context, *Spec, map[string]string) error   { return nil }
func (p *able) NewBlockVolumeMapper(*Spec, *v1.Pod) (BlockVolumeMapper, error) { return nil, nil }
func (p *able) NewBlockVolumeUnmapper(string, types.UID) (BlockVolumeUnmapper, error) {
	return nil, nil
}
func (p *able) ConstructBlockVolumeSpec(types.UID, string, string) (*Spec, error) { return nil, nil }
func (p *able) ConstructVolumeSpec(string, string) (ReconstructedVolume, error) {
	return ReconstructedVolume{}, nil
}
func (p *able) BulkVerifyVolumes(context.Context, map[types.NodeName]map[v1.UniqueVolumeName]*Spec) (map[types.NodeName]map[v1.UniqueVolumeName]bool, error) {
	return nil, nil
}
func (p *able) CanSnapshot(*Spec) (bool, error) { return true, nil }
func (p *able) CreateSnapshot(context.Context, SnapshotOptions) (Snapshot, error) {
	return Snapshot{}, nil
}
func (p *able) GetSnapshot(context.Context, string) (Snapshot, error) { return Snapshot{}, nil }
func (p *able) DeleteSnapshot(context.Context, string) error          { return nil }
func (p *able) ListSnapshots(context.Context) ([]Snapshot, error)     { return nil, nil }
func (p *able) CreateGroupSnapshot(context.Context, GroupSnapshotOptions) (GroupSnapshot, error) {
	return GroupSnapshot{}, nil
}
func (p *able) GetGroupSnapshot(context.Context, string, []string) (GroupSnapshot, error) {
	return GroupSnapshot{}, nil
}
func (p *able) DeleteGroupSnapshot(context.Context, string, []string) error { return nil }
func (p *able) GetCapacity(context.Context, CapacityOptions) (Capacity, error) {
	return Capacity{}, nil
}

func servesHostPath(spec *Spec) bool { return spec.Volume != nil && spec.Volume.HostPath != nil }

func servesNFS(spec *Spec) bool {
	return (spec.Volume != nil && spec.Volume.NFS != nil) ||
		(spec.PersistentVolume != nil && spec.PersistentVolume.Spec.NFS != nil)
}
