package volume

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

// VolumePlugin is what every plugin implements. Its methods may be called from several goroutines at once; none but
// Init may do I/O that can hang. A spec that is passed in must not be changed and must not be kept beyond the objects
// that the call returns.
type VolumePlugin interface {
	// Init is called once, at registration and before any other method but GetPluginName. A plugin whose Init fails is
	// not registered.
	Init(ctx context.Context, host VolumeHost) error
	// GetPluginName returns the plugin's name: a domain, exactly one slash, a name ("example.com/ram"). It must never change:
	// paths on disk contain it.
	GetPluginName() string
	// GetVolumeName returns the identity of the storage behind spec. It is the same for each spec of the same storage, and Detach
	// gets it. It must not be empty. A spec of another plugin is an error.
	GetVolumeName(spec *Spec) (string, error)
	// CanSupport reports whether this plugin serves spec. It is a pure test of the spec. Implement [SpecKindDeclarer] if the kind of
	// a spec alone decides: lookups are then faster. Implement [Explainer] to say why not.
	CanSupport(spec *Spec) bool
	// NewMounter returns what sets spec up for pod. It does no I/O. pod may hold no more than its UID.
	NewMounter(spec *Spec, pod *v1.Pod) (Mounter, error)
	// NewUnmounter returns the Unmounter of a pod's volume. It must work from the inner name (Spec.Name) and the pod's UID alone,
	// also if nothing was ever set up.
	NewUnmounter(name string, podUID types.UID) (Unmounter, error)
}

// PersistentVolumePlugin serves volumes that outlive a pod.
type PersistentVolumePlugin interface {
	VolumePlugin
	// GetAccessModes returns the access modes that the plugin can serve.
	GetAccessModes() []v1.PersistentVolumeAccessMode
}

// RecycleEventRecorder records an event on the volume that is being recycled. eventtype is v1.EventTypeNormal or
// v1.EventTypeWarning.
type RecycleEventRecorder func(eventtype, message string)

// RecyclableVolumePlugin can scrub a volume clean for its next claim.
type RecyclableVolumePlugin interface {
	VolumePlugin
	// Recycle deletes the content of the volume and returns when nothing is left. It crosses no mount and follows no
	// link. recorder must not be nil.
	Recycle(ctx context.Context, pvName string, spec *Spec, recorder RecycleEventRecorder) error
}

// DeletableVolumePlugin can delete a volume for good.
type DeletableVolumePlugin interface {
	VolumePlugin
	// NewDeleter returns what deletes the volume of spec, whose PersistentVolume is set.
	NewDeleter(spec *Spec) (Deleter, error)
}

// VolumeParameterFSType is the key of a storage class's parameter that names the filesystem of a new volume.
const VolumeParameterFSType = "fstype"

// VolumeOptions says what volume is to be provisioned.
type VolumeOptions struct {
	// PersistentVolumeReclaimPolicy is what becomes of the volume after its claim is gone.
	PersistentVolumeReclaimPolicy v1.PersistentVolumeReclaimPolicy
	// MountOptions are the mount options of the class, to be put into the PersistentVolume.
	MountOptions []string
	// PVName is the name of the PersistentVolume, the same each time the same claim is tried.
	PVName string
	// PVC is the claim. It must not be changed.
	PVC *v1.PersistentVolumeClaim
	// Source is the volume to copy: that of the claim which the data source of PVC names. It must not be changed. It is nil
	// when PVC has no data source, or one that is not a claim, or a claim that is gone. A plugin must refuse a data source that it
	// cannot copy: no pod may get an empty volume for a copy. An error that matches ErrInfeasible says that no earlier call made
	// the volume either. Only a plugin with [CapClone] gets a Source.
	Source *v1.PersistentVolume
	// Snapshot is the snapshot from which the volume is restored: that which the data source of PVC names. It must not be
	// changed. It is nil when PVC has no data source, or one that is not a snapshot, or a snapshot that is gone. The volume has
	// the content of the snapshot and at least the size that PVC requests. If that is less than the snapshot's restore size,
	// nothing is made and the error is a [*RestoreSizeError]. Only a plugin with [CapSnapshot] gets a Snapshot.
	Snapshot *Snapshot
	// Parameters are those of the class. A key that the plugin does not know is an error.
	Parameters map[string]string
	// MutableParameters are those of the claim's VolumeAttributesClass: the attributes that the new volume has, as ModifyVolume
	// would give them to it. A key or a value that the plugin does not know is an error. Only a plugin with [CapModify] gets
	// any.
	MutableParameters map[string]string
}

// ProvisionableVolumePlugin can make new volumes for claims.
type ProvisionableVolumePlugin interface {
	VolumePlugin
	// NewProvisioner returns what makes the volume of options.
	NewProvisioner(options VolumeOptions) (Provisioner, error)
}

// CloneableVolumePlugin can make a new volume with the content of another one of its own. Absent, a claim whose data source
// is another claim is refused.
type CloneableVolumePlugin interface {
	ProvisionableVolumePlugin
	// CanClone reports whether new volumes can be made of the volume of source, by [VolumeOptions].Source. It is a pure test
	// of the spec. A volume that cannot be copied just now, since it is in use, is an error of Provision that matches
	// [ErrInUse].
	CanClone(source *Spec) (bool, error)
}

// AttachableVolumePlugin serves volumes that must be attached to a node before the node can use them.
type AttachableVolumePlugin interface {
	DeviceMountableVolumePlugin
	// NewAttacher returns what attaches and stages volumes of this plugin.
	NewAttacher() (Attacher, error)
	// NewDetacher returns what unstages and detaches volumes of this plugin.
	NewDetacher() (Detacher, error)
	// CanAttach reports whether this spec is one that must be attached.
	CanAttach(spec *Spec) (bool, error)
}

// AttachmentLister is a plugin that can list the attachments of its storage. A controller then finds an attachment that a leader
// made after its term had ended. Absent, such an attachment stays until an operator detaches it.
type AttachmentLister interface {
	AttachableVolumePlugin
	// ListAttachments returns every attachment of the storage: to any node, made by any program. A result that may be incomplete is
	// an error.
	ListAttachments(ctx context.Context) ([]Attachment, error)
}

// Attachment is one volume on one node, as storage lists it.
type Attachment struct {
	// VolumeName is the name that GetVolumeName returns for the volume, NodeName the node as Attach was given it.
	VolumeName string
	NodeName   types.NodeName
}

// DeviceMountableVolumePlugin serves volumes that are staged once per node before pods get them.
type DeviceMountableVolumePlugin interface {
	VolumePlugin
	// NewDeviceMounter returns what stages volumes of this plugin.
	NewDeviceMounter() (DeviceMounter, error)
	// NewDeviceUnmounter returns what unstages volumes of this plugin.
	NewDeviceUnmounter() (DeviceUnmounter, error)
	// GetDeviceMountRefs returns the absolute paths of every other mount of what is staged at deviceMountPath.
	GetDeviceMountRefs(ctx context.Context, deviceMountPath string) ([]string, error)
	// CanDeviceMount reports whether this spec is one that must be staged.
	CanDeviceMount(spec *Spec) (bool, error)
}

// ExpandableVolumePlugin can grow a volume from the control plane.
type ExpandableVolumePlugin interface {
	VolumePlugin
	// ExpandVolumeDevice grows the storage from oldSize to at least newSize bytes and returns the size that it has. A
	// size that can never be met returns an error that matches [ErrInfeasible].
	ExpandVolumeDevice(ctx context.Context, spec *Spec, newSize, oldSize resource.Quantity) (resource.Quantity, error)
	// RequiresFSResize reports whether the node must grow the filesystem afterwards.
	RequiresFSResize() bool
}

// ModifiableVolumePlugin can change attributes of a volume that exists, such as its throughput, also while pods use it. Absent,
// a claim that names a VolumeAttributesClass gets no new volume from the plugin, and a volume keeps the class that it has.
type ModifiableVolumePlugin interface {
	VolumePlugin
	// ModifyVolume gives the volume of spec, whose PersistentVolume is set, the attributes that parameters name: those of a
	// VolumeAttributesClass. An attribute that they do not name keeps its value. Where the volume has them all, nothing is
	// done. The content of the volume, and the mounts of its pods, stay. ModifyVolume may run on another machine than the
	// pods. It never runs beside ExpandVolumeDevice of the same volume.
	//
	// A key or a value that the plugin does not know, or that this volume can never have, is an error that matches
	// [ErrInfeasible], and the volume keeps all attributes. An error that matches [ErrInUse] says that the volume can have
	// them only while it is attached nowhere. An error that matches [ErrUncertain] says that the volume may have some of
	// them: the same parameters come again then, before others do. No error contains a value of parameters.
	ModifyVolume(ctx context.Context, spec *Spec, parameters map[string]string) error
}

// NodeResizeOptions says what is to be grown on a node.
type NodeResizeOptions struct {
	// VolumeSpec is the volume.
	VolumeSpec *Spec
	// DevicePath is the absolute path of the device; empty when there is none.
	DevicePath string
	// DeviceMountPath is the absolute path at which the volume can be reached mounted.
	DeviceMountPath string
	// DeviceStagePath is the absolute path at which the device is staged.
	DeviceStagePath string
	// NewSize is the size in bytes that is wanted.
	NewSize resource.Quantity
	// OldSize is the size in bytes that the volume had.
	OldSize resource.Quantity
}

// NodeExpandableVolumePlugin can grow a volume where it is mounted.
type NodeExpandableVolumePlugin interface {
	VolumePlugin
	// RequiresFSResize reports whether the node must grow the filesystem at all.
	RequiresFSResize() bool
	// NodeExpand grows the volume; true says that it has the new size. An error that matches [ErrInUse] says that it
	// cannot be grown while in use, one that matches [ErrInfeasible] that it never can.
	NodeExpand(ctx context.Context, options NodeResizeOptions) (bool, error)
}

// VolumePluginWithAttachLimits can say how many volumes a node can hold.
type VolumePluginWithAttachLimits interface {
	VolumePlugin
	// GetVolumeLimits returns the greatest number of volumes per limit key on this node.
	GetVolumeLimits(ctx context.Context) (map[string]int64, error)
	// VolumeLimitKey returns the key under which spec counts.
	VolumeLimitKey(spec *Spec) string
}

// BlockVolumePlugin can serve a volume as a raw block device.
type BlockVolumePlugin interface {
	VolumePlugin
	// NewBlockVolumeMapper returns what maps spec for pod. It does no I/O.
	NewBlockVolumeMapper(spec *Spec, pod *v1.Pod) (BlockVolumeMapper, error)
	// NewBlockVolumeUnmapper returns what unmaps the volume; podUID is empty when the device itself is torn down.
	NewBlockVolumeUnmapper(name string, podUID types.UID) (BlockVolumeUnmapper, error)
	// ConstructBlockVolumeSpec rebuilds a spec from the name of a map path that was found on disk.
	ConstructBlockVolumeSpec(podUID types.UID, volumeName, mapPath string) (*Spec, error)
}

// RemountableVolumePlugin is optional. Absent, a volume that is set up is left alone until it is torn down.
type RemountableVolumePlugin interface {
	// RequiresRemount reports whether SetUp is to be called again, with IsRemount, whenever the pod is updated.
	RequiresRemount(spec *Spec) bool
}

// MountOptionVolumePlugin is optional. Absent, a volume with mount options is refused.
type MountOptionVolumePlugin interface {
	// SupportsMountOption reports whether the plugin honours the mount options of a PersistentVolume.
	SupportsMountOption() bool
}

// MountingVolumePlugin says which successful calls leave a mount. Implement it if SetUp or MountDevice mounts: an executor with a
// mounter then refuses a set-up that mounted nothing. Otherwise a pod would write into the directory beneath. Absent, the executor
// does not check. Its methods are pure functions of the spec.
type MountingVolumePlugin interface {
	VolumePlugin
	// SetUpIsMount reports whether GetPath of spec's Mounter is a mount after SetUp has succeeded.
	SetUpIsMount(spec *Spec) bool
	// MountDeviceIsMount reports whether the staging path of spec is a mount after MountDevice has succeeded.
	MountDeviceIsMount(spec *Spec) bool
}

// ReusableVolumePlugin says which volumes need no SetUp after a restart. Absent, a volume that was found after a restart is set
// up again before its pod may use it.
type ReusableVolumePlugin interface {
	MountingVolumePlugin
	// CanReuse reports whether SetUp changes nothing where it has succeeded before, with the same spec, pod and MounterArgs,
	// as long as what it mounted at GetPath is mounted there. It is a pure test of the spec. True promises for such a mount:
	// SetUp leaves its options and its content, with mode and owner, as they are. A new Mounter returns the Attributes that it
	// would return after SetUp. SetUp uses no more of the pod than its UID, namespace and name, and no more of the spec than
	// [Spec.Recorded] keeps. TearDown undoes nothing of the set-up before it unmounts GetPath.
	//
	// A volume that must be staged needs the same of MountDevice: it changes nothing where it has succeeded before, as long
	// as the mount at the staging path is there.
	CanReuse(spec *Spec) bool
}

// SELinuxVolumePlugin is optional. Absent, no context is passed at mount time.
type SELinuxVolumePlugin interface {
	// SupportsSELinuxContextMount reports whether spec can be mounted with a context.
	SupportsSELinuxContextMount(spec *Spec) (bool, error)
}

// ReconstructedVolume describes a volume by its directory, without a record.
type ReconstructedVolume struct {
	// Spec is the volume; it may hold less than the spec that was set up, and is never nil.
	Spec *Spec
	// SELinuxMountContext is the context with which the volume is mounted, "" when there is none.
	SELinuxMountContext string
}

// ReconstructableVolumePlugin is optional. Absent, a volume without a record cannot be adopted.
type ReconstructableVolumePlugin interface {
	// ConstructVolumeSpec rebuilds a spec from the inner name and the absolute path of a volume without a record. Records
	// come first: the name of a directory does not hold the server, the claim or the options.
	ConstructVolumeSpec(volumeName, mountPath string) (ReconstructedVolume, error)
}

// Explainer is optional. Absent, a failed look-up names the plugin without a reason.
type Explainer interface {
	// ExplainSupport returns nil when CanSupport is true, else one short clause that says why the plugin declines spec.
	ExplainSupport(spec *Spec) error
}

// SpecKindDeclarer is optional. Absent, the registry calls CanSupport for every spec, which makes every lookup slower.
type SpecKindDeclarer interface {
	// SpecKinds returns the kinds of spec that the plugin serves: each spec of one of them and no other. The registry then calls
	// neither CanSupport nor [Explainer], which must agree. Empty declares nothing: a plugin that serves some specs of a kind and not
	// others must return that. The registry calls it once, after Init. A source that does not exist is an error of the registration.
	SpecKinds() []SpecKind
}

// CapabilityLimiter is optional. Absent, a plugin can do all that its type says.
type CapabilityLimiter interface {
	// Capabilities returns what this plugin can do; capabilities that its type does not have are ignored. The registry calls it
	// once, after Init.
	Capabilities() Capabilities
}
