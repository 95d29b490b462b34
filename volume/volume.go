package volume

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Volume is a directory, or a file, that a pod or a node uses. Every method of every interface that embeds Volume is
// idempotent: it may be called again after success, after failure and after a crash, and must then finish the work.
type Volume interface {
	// GetPath returns the absolute path, as the host sees it, at which the volume is set up for the pod. It does no
	// I/O and returns the same path each time. The path need not exist.
	GetPath() string
	MetricsProvider
}

// BlockVolume is a block device that a pod uses without a filesystem.
type BlockVolume interface {
	// GetGlobalMapPath returns the absolute directory, one per volume and node, that holds one bind mount of the
	// device per pod, named by the pod's UID:
	// {root}/plugins/{plugin name}/volumeDevices/{plugin dependent}.
	GetGlobalMapPath(spec *Spec) (string, error)
	// GetPodDeviceMapPath returns the absolute directory of the pod's link to the device, and the link's name:
	// {root}/pods/{pod UID}/volumeDevices/{escaped plugin name} and the inner name of the volume.
	GetPodDeviceMapPath() (dir, linkName string)
}

// MetricsProvider measures a volume. Embed [MetricsNil] in a volume that cannot be measured.
type MetricsProvider interface {
	// GetMetrics returns the used and the free space. It may be expensive. If the volume cannot be measured, the error
	// matches [ErrUnsupported], and callers need not report it.
	GetMetrics(ctx context.Context) (*Metrics, error)
}

// Metrics is one measurement of a volume. A nil quantity is unknown, never zero.
type Metrics struct {
	// Time is when the measurement was taken.
	Time metav1.Time
	// Used is the number of bytes that the volume occupies. For a filesystem on a device this includes the
	// filesystem's own structures.
	Used *resource.Quantity
	// Capacity is the number of bytes of the underlying storage. A volume that shares a filesystem with the host (host
	// path, empty dir) reports the whole filesystem here, and then Capacity is not Used + Available.
	Capacity *resource.Quantity
	// Available is the number of bytes that can still be written by an ordinary user, shared as Capacity is.
	Available *resource.Quantity
	// InodesUsed is the number of inodes that the volume occupies.
	InodesUsed *resource.Quantity
	// Inodes is the number of inodes of the underlying storage, shared as Capacity is.
	Inodes *resource.Quantity
	// InodesFree is the number of inodes that are still free, shared as Capacity is.
	InodesFree *resource.Quantity
}

// ApartKeeper is a Mounter whose GetPath is a path of the host that the plugin has found and not made.
type ApartKeeper interface {
	Mounter
	// KeptApart returns absolute paths of the host. What GetPath leads to must not be one of them, lie in one, or hold one.
	// A caller that opens the path compares the open directory, because links on the way may have changed since the set-up. The
	// caller does not change the slice.
	KeptApart() []string
}

// Attributes says what a mounter made. It is read after a set-up that succeeded.
type Attributes struct {
	// ReadOnly is true when the volume was set up read-only; every container then gets it read-only.
	ReadOnly bool
	// Managed is true if the volume's content belongs to this node. Ownership and labels may then be changed.
	Managed bool
	// SupportsSELinux is true when the content may be relabelled for the pod; meaningful only with Managed.
	SupportsSELinux bool
}

// MounterArgs carries what a set-up may need beside the spec. The zero value asks for nothing in particular.
type MounterArgs struct {
	// FsUser is the user that owns what the plugin writes, where all containers of the pod run as the same user.
	FsUser *int64
	// FsGroup is the group that must be able to use the content; nil leaves ownership alone. The package volume/ownership
	// does what it asks for: call it at each set-up, also when the volume is mounted already.
	FsGroup *int64
	// FSGroupChangePolicy says when ownership is changed; nil means always.
	FSGroupChangePolicy *v1.PodFSGroupChangePolicy
	// DesiredSize is the size limit in bytes of a volume that is local to the pod; nil means no limit.
	DesiredSize *resource.Quantity
	// PodUID is the UID of the pod for which the volume is set up.
	PodUID string
	// SELinuxLabel is the context with which the volume is to be mounted; empty means none.
	SELinuxLabel string
	// ReconstructedVolume is true if the volume was found after a restart. It may be mounted already, and a set-up that
	// fails must leave the mount and its directory as they are.
	ReconstructedVolume bool
	// IsRemount is true when the volume is set up and in use, and the set-up only refreshes it. A set-up that fails
	// must then leave the mount and its content as they are.
	IsRemount bool
}

// Mounter sets a volume up for one pod.
//
// The class of the error decides what the caller believes afterwards. An error that matches [ErrUncertain] says that the
// volume may be set up: it is torn down before it is forgotten. One that matches [ErrTransient] says that nothing was
// begun. Any other error says that the volume is not set up and that no trace of it is left. See [Uncertain] and
// [Transient].
type Mounter interface {
	Volume
	// SetUp sets the volume up at GetPath. It is SetUpAt(ctx, GetPath(), args).
	SetUp(ctx context.Context, args MounterArgs) error
	// SetUpAt sets the volume up at dir, an absolute path that may exist or not. It must be a no-op when the volume is
	// set up there already. It must return soon after ctx has ended; when it cannot say what became of the call, the
	// error must match [ErrUncertain].
	SetUpAt(ctx context.Context, dir string, args MounterArgs) error
	// GetAttributes returns what SetUp made. It is called after SetUp has succeeded.
	GetAttributes() Attributes
}

// MountChecker is an optional interface of a [Mounter]. Absent, nothing is checked.
type MountChecker interface {
	// CanMount reports, before the volume is staged and set up, whether this node has what that needs: a helper program,
	// a filesystem. An error ends the operation before anything was changed, and should name what is missing.
	CanMount(ctx context.Context) error
}

// Unmounter takes a volume away from one pod.
type Unmounter interface {
	Volume
	// TearDown takes the volume away from GetPath. It is TearDownAt(ctx, GetPath()).
	TearDown(ctx context.Context) error
	// TearDownAt unmounts the volume from dir and removes dir and every other trace of the set-up. It must succeed
	// when nothing is there. It must never delete content that outlives the pod: it removes a mount directory with rmdir. When
	// only the directory is left, because it holds foreign files, the error should match [ErrDirectoryKept].
	TearDownAt(ctx context.Context, dir string) error
}

// BlockVolumeMapper describes a raw block volume for one pod. The binding of the device into the pod's directory, the
// link and the lock on the device are made by the executor, the same for all plugins. A plugin that must do more
// implements [CustomBlockVolumeMapper].
type BlockVolumeMapper interface {
	BlockVolume
}

// CustomBlockVolumeMapper is an optional interface of a [BlockVolumeMapper]. Absent, the device of WaitForAttach is
// bound as it is.
type CustomBlockVolumeMapper interface {
	BlockVolumeMapper
	// SetUpDevice prepares the device once per node, before the first pod, and returns the staging path that it used,
	// or "" when it used none.
	SetUpDevice(ctx context.Context, args SetUpDeviceArgs) (stagingPath string, err error)
	// MapPodDevice makes the device ready for one pod and returns the absolute path to bind, which must be the same
	// after a reboot. "" means the device path of WaitForAttach.
	MapPodDevice(ctx context.Context, args MapPodDeviceArgs) (devicePath string, err error)
	// GetStagingPath returns the staging path that SetUpDevice uses, or "".
	GetStagingPath() string
}

// SetUpDeviceArgs are the arguments of [CustomBlockVolumeMapper.SetUpDevice].
type SetUpDeviceArgs struct {
	// DevicePath is the absolute path that WaitForAttach returned; empty when the plugin is not attachable.
	DevicePath string
}

// MapPodDeviceArgs are the arguments of [CustomBlockVolumeMapper.MapPodDevice].
type MapPodDeviceArgs struct {
	// DevicePath is the absolute path that WaitForAttach returned; empty when the plugin is not attachable.
	DevicePath string
	// GlobalMapPath is what GetGlobalMapPath returned.
	GlobalMapPath string
	// PodUID is the UID of the pod for which the device is mapped.
	PodUID types.UID
}

// BlockVolumeUnmapper describes a raw block volume that is to be taken away from a pod.
type BlockVolumeUnmapper interface {
	BlockVolume
}

// CustomBlockVolumeUnmapper is an optional interface of a [BlockVolumeUnmapper]. Absent, only the executor's own
// binding is undone.
type CustomBlockVolumeUnmapper interface {
	BlockVolumeUnmapper
	// TearDownDevice undoes SetUpDevice after the last pod. It must succeed when nothing is there.
	TearDownDevice(ctx context.Context, args TearDownDeviceArgs) error
	// UnmapPodDevice undoes MapPodDevice for one pod. It must succeed when nothing is there.
	UnmapPodDevice(ctx context.Context, args UnmapPodDeviceArgs) error
}

// TearDownDeviceArgs are the arguments of [CustomBlockVolumeUnmapper.TearDownDevice].
type TearDownDeviceArgs struct {
	// MapPath is the global map path of the volume.
	MapPath string
	// DevicePath is the absolute path of the device that was mapped; empty when it is not known any more.
	DevicePath string
}

// UnmapPodDeviceArgs are the arguments of [CustomBlockVolumeUnmapper.UnmapPodDevice].
type UnmapPodDeviceArgs struct {
	// GlobalMapPath is what GetGlobalMapPath returned.
	GlobalMapPath string
	// PodUID is the UID of the pod from which the device is taken.
	PodUID types.UID
}

// Provisioner makes one new volume.
type Provisioner interface {
	// Provision makes the volume and returns when it is ready: a PersistentVolume whose capacity is at least what the
	// claim asks for and whose access modes and volume mode are the claim's. It must be idempotent by the name of the
	// volume in [VolumeOptions]. selectedNode is nil unless the class binds late; an empty allowedTopologies allows
	// all. A request that can never be met returns an error that matches [ErrInfeasible]. [ErrInfeasible], [ErrUnsupported] and
	// [ErrInvalid] also say that no earlier attempt made the volume. Any other error says something of this attempt only.
	Provision(ctx context.Context, selectedNode *v1.Node, allowedTopologies []v1.TopologySelectorTerm) (*v1.PersistentVolume, error)
}

// Deleter removes one volume for good.
type Deleter interface {
	Volume
	// Delete removes the volume and returns when it is gone; a volume that is gone already is no error. A volume that
	// is still in use must be left whole and returns an error that matches [ErrInUse]; it is tried again later.
	Delete(ctx context.Context) error
}

// Attacher makes a volume visible on a node.
type Attacher interface {
	DeviceMounter
	// Attach attaches the volume to the node and returns the absolute path of the device there, or "" when only the
	// node can know it. It must succeed when the volume is attached to that node already. Any error leaves the
	// attachment uncertain, whatever its class. A volume that is found on another node, and may be on one only, is a
	// [*DanglingAttachError].
	Attach(ctx context.Context, spec *Spec, nodeName types.NodeName) (devicePath string, err error)
	// VolumesAreAttached says for each volume whether it is attached to the node. A volume that is left out of the
	// answer is unknown and keeps its state.
	VolumesAreAttached(ctx context.Context, specs map[v1.UniqueVolumeName]*Spec, nodeName types.NodeName) (map[v1.UniqueVolumeName]bool, error)
	// WaitForAttach runs on the node; it returns the absolute path of the device when it is there and can be used, or
	// an error when ctx ends first. devicePath is what Attach returned or, where that was "", what an earlier call returned,
	// which may be out of date.
	WaitForAttach(ctx context.Context, spec *Spec, devicePath string, pod *v1.Pod) (string, error)
}

// DeviceMounter stages a volume: it mounts the device once per node, at a path from which pods get bind mounts.
type DeviceMounter interface {
	// GetDeviceMountPath returns the absolute path at which the device is staged on this node:
	// {root}/plugins/{plugin name}/mounts/{plugin dependent}.
	GetDeviceMountPath(spec *Spec) (string, error)
	// MountDevice stages the device. devicePath is empty for a plugin that does not attach. It must be a no-op when the
	// device is staged there already. Error classes are those of [Mounter].
	MountDevice(ctx context.Context, spec *Spec, devicePath, deviceMountPath string, args DeviceMounterArgs) error
}

// DeviceMounterArgs carries what staging may need beside the spec. The zero value asks for nothing in particular.
type DeviceMounterArgs struct {
	// FsGroup is the group that must be able to use the content, for a plugin that can mount so; nil means none.
	FsGroup *int64
	// SELinuxLabel is the context with which the device is to be mounted; empty means none.
	SELinuxLabel string
}

// BulkVolumeVerifier is an optional interface of an [AttachableVolumePlugin]. Absent, nodes are asked one by one
// through VolumesAreAttached of [Attacher].
type BulkVolumeVerifier interface {
	// BulkVerifyVolumes says for each node and volume whether it is attached there. What is left out of the answer, or
	// everything when err is not nil, is unknown and keeps its state.
	BulkVerifyVolumes(ctx context.Context, volumesByNode map[types.NodeName]map[v1.UniqueVolumeName]*Spec) (map[types.NodeName]map[v1.UniqueVolumeName]bool, error)
}

// Detacher takes a volume away from a node.
type Detacher interface {
	DeviceUnmounter
	// Detach detaches the volume from the node. volumeName is what the plugin's GetVolumeName returned. It must succeed
	// when the volume is not attached there. Any error leaves the attachment uncertain.
	Detach(ctx context.Context, volumeName string, nodeName types.NodeName) error
}

// DeviceUnmounter unstages a volume.
type DeviceUnmounter interface {
	// UnmountDevice unmounts what MountDevice mounted and removes the directory with rmdir. It is called only when no pod
	// uses the volume on this node, and must succeed when nothing is there. When only the directory is left, because it
	// holds foreign files, the error should match [ErrDirectoryKept].
	UnmountDevice(ctx context.Context, deviceMountPath string) error
}

// HealthReporter is an optional interface of a [Mounter] or [Unmounter]. Absent, nothing is known of the volume's
// health beside what the kernel tells.
type HealthReporter interface {
	// GetHealth returns the conditions that hold now. An empty list says that nothing is wrong.
	GetHealth(ctx context.Context) ([]HealthCondition, error)
}

// HealthCondition is one thing that is known of a volume's health.
type HealthCondition struct {
	// Status is how bad it is.
	Status HealthStatus
	// Reason is one word in CamelCase for programs, such as "ReadOnlyFilesystem".
	Reason string
	// Message is one sentence for people. It must hold no secret.
	Message string
}

// HealthStatus is how well a volume is.
type HealthStatus string

// The states of health.
const (
	HealthUnknown  HealthStatus = "Unknown"  // it could not be found out
	HealthNormal   HealthStatus = "Normal"   // worth saying, nothing is wrong
	HealthDegraded HealthStatus = "Degraded" // usable, but slower or less safe than it should be
	HealthAbnormal HealthStatus = "Abnormal" // not usable, or not to be trusted
)
