package volume

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Volume is a directory, or a file, that a pod or a node uses. Every method of every interface that embeds Volume must be
// idempotent: it may be called again after success, after a failure and after a crash, and must then complete the work.
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
	// Available is the number of bytes that an ordinary user can still write. Like Capacity, it may be that of a shared filesystem.
	Available *resource.Quantity
	// InodesUsed is the number of inodes that the volume occupies.
	InodesUsed *resource.Quantity
	// Inodes is the number of inodes of the underlying storage. Like Capacity, it may be that of a shared filesystem.
	Inodes *resource.Quantity
	// InodesFree is the number of free inodes. Like Capacity, it may be that of a shared filesystem.
	InodesFree *resource.Quantity
}

// ApartKeeper is a Mounter whose GetPath is an existing path of the host, which the plugin did not make.
type ApartKeeper interface {
	Mounter
	// KeptApart returns absolute paths of the host. With all links resolved, GetPath must not be one of them, nor be in one, nor
	// contain one. A caller that opens the path must compare the open directory with them, because links in the path may have
	// changed since the set-up. The caller does not change the slice.
	KeptApart() []string
}

// Attributes are the properties of a volume that was set up. The manager reads them after a successful set-up.
type Attributes struct {
	// ReadOnly is true if the volume was set up read-only. Every container then gets it read-only.
	ReadOnly bool
	// Managed is true if the volume's content belongs to this node. Ownership and labels may then be changed.
	Managed bool
	// SupportsSELinux is true if the content may be relabelled for the pod. It counts only with Managed.
	SupportsSELinux bool
}

// MounterArgs are the arguments of a set-up beside the spec. The zero value is valid.
type MounterArgs struct {
	// FsUser is the owner for files that the plugin writes, if all containers of the pod run as the same user.
	FsUser *int64
	// FsGroup is the group that must be able to use the content. Nil means that the plugin does not change the ownership. Package
	// volume/ownership changes it: call it at each set-up, also if the volume is mounted already.
	FsGroup *int64
	// FSGroupChangePolicy says when ownership is changed; nil means always.
	FSGroupChangePolicy *v1.PodFSGroupChangePolicy
	// DesiredSize is the size limit in bytes of a volume that is local to the pod; nil means no limit.
	DesiredSize *resource.Quantity
	// PodUID is the UID of the pod for which the volume is set up.
	PodUID string
	// SELinuxLabel is the context with which the volume is to be mounted; empty means none.
	SELinuxLabel string
	// ReconstructedVolume is true if the volume was found after a restart. It may be mounted already. A set-up that fails must then
	// not change the mount or its directory.
	ReconstructedVolume bool
	// IsRemount is true if the volume is set up and in use: the set-up only refreshes it. A set-up that fails must then not change
	// the mount or its content.
	IsRemount bool
}

// Mounter sets a volume up for one pod.
//
// The class of the error decides the state that the caller assumes afterwards. If the error matches [ErrUncertain], the volume may be
// set up: the manager tears it down before it forgets it. If it matches [ErrTransient], the call has begun nothing. After any other
// error, the volume is not set up, and no trace of it is left. See [Uncertain] and [Transient].
type Mounter interface {
	Volume
	// SetUp sets the volume up at GetPath. It is SetUpAt(ctx, GetPath(), args).
	SetUp(ctx context.Context, args MounterArgs) error
	// SetUpAt sets the volume up at dir, an absolute path that need not exist. If the volume is set up there already, SetUpAt must
	// do nothing. It must return soon after ctx has ended. If it does not know its effect then, the error must match [ErrUncertain].
	SetUpAt(ctx context.Context, dir string, args MounterArgs) error
	// GetAttributes returns what SetUp made. It is called after SetUp has succeeded.
	GetAttributes() Attributes
}

// MountChecker is an optional interface of a [Mounter]. Without it, nothing is checked.
type MountChecker interface {
	// CanMount checks, before the volume is staged and set up, that this node has what that needs, such as a helper program or a
	// filesystem. An error ends the operation before it has changed anything. The error should name what is missing.
	CanMount(ctx context.Context) error
}

// Unmounter tears a volume down for one pod.
type Unmounter interface {
	Volume
	// TearDown tears the volume down at GetPath. It is TearDownAt(ctx, GetPath()).
	TearDown(ctx context.Context) error
	// TearDownAt unmounts the volume from dir and removes dir and every other trace of the set-up. It must succeed if the volume is
	// not set up there. It must never delete content that outlives the pod: it removes a mount directory with rmdir. If only the
	// directory is left, because it holds foreign files, the error should match [ErrDirectoryKept].
	TearDownAt(ctx context.Context, dir string) error
}

// BlockVolumeMapper describes a raw block volume for one pod. For all plugins the executor binds the device into the pod's directory,
// makes the link and locks the device. A plugin that must do more implements [CustomBlockVolumeMapper].
type BlockVolumeMapper interface {
	BlockVolume
}

// CustomBlockVolumeMapper is an optional interface of a [BlockVolumeMapper]. Without it, the executor binds the device of
// WaitForAttach as it is.
type CustomBlockVolumeMapper interface {
	BlockVolumeMapper
	// SetUpDevice prepares the device once per node, before the first pod. It returns the staging path that it used, or "" if it
	// used none.
	SetUpDevice(ctx context.Context, args SetUpDeviceArgs) (stagingPath string, err error)
	// MapPodDevice makes the device ready for one pod. It returns the absolute path to bind, which must stay the same after a
	// reboot. "" means the device path of WaitForAttach.
	MapPodDevice(ctx context.Context, args MapPodDeviceArgs) (devicePath string, err error)
	// GetStagingPath returns the staging path that SetUpDevice uses, or "".
	GetStagingPath() string
}

// SetUpDeviceArgs are the arguments of [CustomBlockVolumeMapper.SetUpDevice].
type SetUpDeviceArgs struct {
	// DevicePath is the absolute path that WaitForAttach returned; empty if the plugin is not attachable.
	DevicePath string
}

// MapPodDeviceArgs are the arguments of [CustomBlockVolumeMapper.MapPodDevice].
type MapPodDeviceArgs struct {
	// DevicePath is the absolute path that WaitForAttach returned; empty if the plugin is not attachable.
	DevicePath string
	// GlobalMapPath is what GetGlobalMapPath returned.
	GlobalMapPath string
	// PodUID is the UID of the pod for which the device is mapped.
	PodUID types.UID
}

// BlockVolumeUnmapper describes a raw block volume of a pod for its removal.
type BlockVolumeUnmapper interface {
	BlockVolume
}

// CustomBlockVolumeUnmapper is an optional interface of a [BlockVolumeUnmapper]. Without it, the executor undoes only its own bind
// mount, link and lock.
type CustomBlockVolumeUnmapper interface {
	BlockVolumeUnmapper
	// TearDownDevice undoes SetUpDevice after the last pod. It must succeed if there is nothing to undo.
	TearDownDevice(ctx context.Context, args TearDownDeviceArgs) error
	// UnmapPodDevice undoes MapPodDevice for one pod. It must succeed if there is nothing to undo.
	UnmapPodDevice(ctx context.Context, args UnmapPodDeviceArgs) error
}

// TearDownDeviceArgs are the arguments of [CustomBlockVolumeUnmapper.TearDownDevice].
type TearDownDeviceArgs struct {
	// MapPath is the global map path of the volume.
	MapPath string
	// DevicePath is the absolute path of the mapped device; empty if it is not known any more.
	DevicePath string
}

// UnmapPodDeviceArgs are the arguments of [CustomBlockVolumeUnmapper.UnmapPodDevice].
type UnmapPodDeviceArgs struct {
	// GlobalMapPath is what GetGlobalMapPath returned.
	GlobalMapPath string
	// PodUID is the UID of the pod for which the device was mapped.
	PodUID types.UID
}

// Provisioner creates one new volume.
type Provisioner interface {
	// Provision creates the volume and returns when it is ready. The PersistentVolume has at least the capacity that the claim
	// requests, and the claim's access modes and volume mode. Provision must be idempotent by the name of the volume in
	// [VolumeOptions]. selectedNode is nil unless the class has WaitForFirstConsumer. Empty allowedTopologies allow all. If the
	// request can never be met, the error must match [ErrInfeasible]. [ErrInfeasible], [ErrUnsupported] and [ErrInvalid] also say
	// that no earlier attempt created the volume. Any other error is about this attempt only.
	Provision(ctx context.Context, selectedNode *v1.Node, allowedTopologies []v1.TopologySelectorTerm) (*v1.PersistentVolume, error)
}

// Deleter deletes one volume.
type Deleter interface {
	Volume
	// Delete deletes the volume and returns when it is gone. A missing volume is no error. Delete must not change a volume that is
	// still in use: the error then matches [ErrInUse], and the controller tries again later.
	Delete(ctx context.Context) error
}

// Attacher makes a volume visible on a node.
type Attacher interface {
	DeviceMounter
	// Attach attaches the volume to the node and returns the absolute path of the device there, or "" if only the node can know
	// it. It must succeed if the volume is attached to that node already. After any error the caller treats the attachment as
	// uncertain, whatever the class of the error. If the volume may be attached to one node only, and is attached to another one,
	// the error is a [*DanglingAttachError].
	Attach(ctx context.Context, spec *Spec, nodeName types.NodeName) (devicePath string, err error)
	// VolumesAreAttached reports for each volume whether it is attached to the node. The state of a volume that is missing in the
	// result is unknown: the caller does not change what it assumes.
	VolumesAreAttached(ctx context.Context, specs map[v1.UniqueVolumeName]*Spec, nodeName types.NodeName) (map[v1.UniqueVolumeName]bool, error)
	// WaitForAttach runs on the node. It returns the absolute path of the device when the device can be used, or an error if ctx
	// ends first. devicePath is the result of Attach or, if that was "", of an earlier WaitForAttach, which may be out of date.
	WaitForAttach(ctx context.Context, spec *Spec, devicePath string, pod *v1.Pod) (string, error)
}

// DeviceMounter stages a volume: it mounts the device once per node, at a path from which pods get bind mounts.
type DeviceMounter interface {
	// GetDeviceMountPath returns the absolute path at which the device is staged on this node:
	// {root}/plugins/{plugin name}/mounts/{plugin dependent}.
	GetDeviceMountPath(spec *Spec) (string, error)
	// MountDevice stages the device. devicePath is empty for a plugin that does not attach. If the device is staged there already,
	// MountDevice must do nothing. Error classes are those of [Mounter].
	MountDevice(ctx context.Context, spec *Spec, devicePath, deviceMountPath string, args DeviceMounterArgs) error
}

// DeviceMounterArgs are the arguments of staging beside the spec. The zero value is valid.
type DeviceMounterArgs struct {
	// FsGroup is the group that must be able to use the content, for a plugin that can mount with a group; nil means none.
	FsGroup *int64
	// SELinuxLabel is the context with which the plugin must mount the device; empty means none.
	SELinuxLabel string
}

// BulkVolumeVerifier is an optional interface of an [AttachableVolumePlugin]. Without it, VolumesAreAttached of [Attacher] is called
// for each node.
type BulkVolumeVerifier interface {
	// BulkVerifyVolumes reports for each node and volume whether the volume is attached there. The state of what is missing in the
	// result is unknown, and of everything if err is not nil: the caller does not change what it assumes.
	BulkVerifyVolumes(ctx context.Context, volumesByNode map[types.NodeName]map[v1.UniqueVolumeName]*Spec) (map[types.NodeName]map[v1.UniqueVolumeName]bool, error)
}

// Detacher detaches a volume from a node.
type Detacher interface {
	DeviceUnmounter
	// Detach detaches the volume from the node. volumeName is the result of the plugin's GetVolumeName. It must succeed if the
	// volume is not attached there. After any error the caller treats the attachment as uncertain.
	Detach(ctx context.Context, volumeName string, nodeName types.NodeName) error
}

// DeviceUnmounter unstages a volume.
type DeviceUnmounter interface {
	// UnmountDevice unmounts the device that MountDevice has mounted, and removes the directory with rmdir. It is called only if no
	// pod uses the volume on this node. It must succeed if the device is not staged. If only the directory is left, because it holds
	// foreign files, the error should match [ErrDirectoryKept].
	UnmountDevice(ctx context.Context, deviceMountPath string) error
}

// HealthReporter is an optional interface of a [Mounter] or [Unmounter]. Without it, the manager knows of the volume's health only what
// the kernel reports.
type HealthReporter interface {
	// GetHealth returns the present conditions. An empty list means that nothing is wrong.
	GetHealth(ctx context.Context) ([]HealthCondition, error)
}

// HealthCondition is one condition of a volume's health.
type HealthCondition struct {
	// Status is the severity.
	Status HealthStatus
	// Reason is one word in CamelCase for programs, such as "ReadOnlyFilesystem".
	Reason string
	// Message is one sentence for people. It must not contain a secret.
	Message string
}

// HealthStatus is the severity of a condition.
type HealthStatus string

// The states of health.
const (
	HealthUnknown  HealthStatus = "Unknown"  // it could not be found out
	HealthNormal   HealthStatus = "Normal"   // worth saying, nothing is wrong
	HealthDegraded HealthStatus = "Degraded" // usable, but slower or less safe than it should be
	HealthAbnormal HealthStatus = "Abnormal" // not usable, or not to be trusted
)
