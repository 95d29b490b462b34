package operationexecutor

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// ActualStateOfWorldMounterUpdater records the results of staging and set-up on this node. Its methods do no I/O. An error
// says that the state does not allow the change, for example for an unknown volume. The operation then fails with that
// error.
//
// A [MountedVolume] that is handed over names the volume and the pod, and holds what is known of the set-up. What it leaves
// out is not known. Its PluginName, InnerVolumeSpecName, DevicePath and DeviceMountPath are not read: they belong to the
// volume.
type ActualStateOfWorldMounterUpdater interface {
	// MarkVolumeAsMounted records that the volume is set up for the pod.
	MarkVolumeAsMounted(v MountedVolume) error
	// MarkVolumeMountAsUncertain records that the volume may be set up for the pod. It also applies to a mounted volume:
	// the executor calls it after every failed teardown, and never because of a failed remount.
	MarkVolumeMountAsUncertain(v MountedVolume) error
	// MarkVolumeAsUnmounted records that the volume is not set up for the pod.
	MarkVolumeAsUnmounted(podName volume.UniquePodName, volumeName v1.UniqueVolumeName) error
	// MarkDeviceAsMounted records that the volume is staged at deviceMountPath with the SELinux context. An empty context
	// means that it was mounted without one.
	MarkDeviceAsMounted(volumeName v1.UniqueVolumeName, devicePath, deviceMountPath, seLinuxMountContext string) error
	// MarkDeviceAsUncertain records that the volume may be staged at deviceMountPath.
	MarkDeviceAsUncertain(volumeName v1.UniqueVolumeName, devicePath, deviceMountPath, seLinuxMountContext string) error
	// MarkDeviceAsUnmounted records that the volume is not staged.
	MarkDeviceAsUnmounted(volumeName v1.UniqueVolumeName) error
	// GetDeviceMountState returns the state of the volume's staging.
	GetDeviceMountState(volumeName v1.UniqueVolumeName) DeviceMountState
	// GetVolumeMountState returns the state of the volume's set-up for the pod.
	GetVolumeMountState(volumeName v1.UniqueVolumeName, podName volume.UniquePodName) VolumeMountState
	// IsVolumeReconstructed reports whether the volume was found after a restart and no call for it has succeeded since. A
	// final error then proves nothing, and the volume stays uncertain. An empty podName stands for the volume's staging.
	IsVolumeReconstructed(volumeName v1.UniqueVolumeName, podName volume.UniquePodName) bool

	ExpansionUpdater
}

// SetUpWatcher learns when set-ups begin. It is an optional interface of an [ActualStateOfWorldMounterUpdater]. Without it,
// a set-up counts as one for the pod's spec at the end of the set-up.
type SetUpWatcher interface {
	// WatchSetUp says that the set-up of a volume for a pod is about to begin, with the pod's current spec. Changes of the
	// pod from now on are not part of that set-up. The executor calls end after it has recorded the result of the set-up.
	WatchSetUp(volumeName v1.UniqueVolumeName, podName volume.UniquePodName) (end func())
}

// ClaimSizes remembers the sizes of the volumes of this node. It is an optional interface of an
// [ActualStateOfWorldAttacherUpdater]. Without it, no claim is read when a volume is found attached. Its methods do no I/O.
type ClaimSizes interface {
	// InitializeClaimSize records the size of the volume's claim when the volume was found attached. It does not replace a
	// known size.
	InitializeClaimSize(volumeName v1.UniqueVolumeName, claimSize resource.Quantity)
	// GetClaimSize returns the size in bytes to which the volume was last expanded on this node. Zero means that it is
	// unknown.
	GetClaimSize(volumeName v1.UniqueVolumeName) resource.Quantity
}

// ExpansionUpdater records the results of expansions on this node. Its methods do no I/O. An unknown volume has no size and
// no failures.
type ExpansionUpdater interface {
	ClaimSizes
	// MarkVolumeAsResized records the size in bytes that the volume now has on this node. It returns false if the volume is
	// unknown.
	MarkVolumeAsResized(volumeName v1.UniqueVolumeName, claimSize resource.Quantity) bool
	// MarkForInUseExpansionError records that the plugin cannot expand the volume while it is in use. Until the volume has
	// left the node, the expansion is tried again only when another pod gets the volume.
	MarkForInUseExpansionError(volumeName v1.UniqueVolumeName)
	// MarkVolumeExpansionFailedWithFinalError records that the volume's expansion on this node to the requested size failed
	// for good.
	MarkVolumeExpansionFailedWithFinalError(volumeName v1.UniqueVolumeName)
	// RemoveVolumeFromFailedWithFinalErrors undoes MarkVolumeExpansionFailedWithFinalError.
	RemoveVolumeFromFailedWithFinalErrors(volumeName v1.UniqueVolumeName)
	// CheckVolumeInFailedExpansionWithFinalErrors reports whether the mark of MarkVolumeExpansionFailedWithFinalError is
	// set for the volume.
	CheckVolumeInFailedExpansionWithFinalErrors(volumeName v1.UniqueVolumeName) bool
}

// VolumeUsers is an optional interface of an [ActualStateOfWorldMounterUpdater] and of an
// [ActualStateOfWorldAttacherUpdater]. With it, a volume that has pods is neither unstaged nor detached, and a volume with
// the access mode ReadWriteOncePod gets no second pod. Each check runs while the operation has its key. Without it, only
// the plugin can refuse. If one state is both updaters, a staged volume is not detached.
type VolumeUsers interface {
	// PodsOfVolume returns the pods for which the volume is, or may be, set up. It does no I/O.
	PodsOfVolume(volumeName v1.UniqueVolumeName) []volume.UniquePodName
}

// ActualStateOfWorldAttacherUpdater records the results of attaching. Its methods do no I/O.
type ActualStateOfWorldAttacherUpdater interface {
	// MarkVolumeAsAttached records that the volume is attached to the node. If volumeName is empty, it is computed from the
	// spec by its plugin.
	MarkVolumeAsAttached(volumeName v1.UniqueVolumeName, spec *volume.Spec, nodeName types.NodeName, devicePath string) error
	// MarkVolumeAsUncertain records that the volume may be attached to the node.
	MarkVolumeAsUncertain(volumeName v1.UniqueVolumeName, spec *volume.Spec, nodeName types.NodeName) error
	// MarkVolumeAsDetached records that the volume is not attached to the node.
	MarkVolumeAsDetached(volumeName v1.UniqueVolumeName, nodeName types.NodeName)
	// RemoveVolumeFromReportAsAttached withdraws the volume from the attached volumes that the node's status lists. This
	// must happen before the detach. A volume that is withdrawn already is no error.
	RemoveVolumeFromReportAsAttached(volumeName v1.UniqueVolumeName, nodeName types.NodeName) error
	// AddVolumeToReportAsAttached undoes RemoveVolumeFromReportAsAttached if the volume is not detached after all.
	AddVolumeToReportAsAttached(volumeName v1.UniqueVolumeName, nodeName types.NodeName)
}

// VolumeNodes is an optional interface of an [ActualStateOfWorldAttacherUpdater]. With it, a volume that only one node may
// have is not attached to a second one. The check runs while the operation has its key. Without it, only the plugin can
// refuse.
type VolumeNodes interface {
	// NodesOfVolume returns the nodes to which the volume is, or may be, attached. It does no I/O.
	NodesOfVolume(volumeName v1.UniqueVolumeName) []types.NodeName
}

// UncertainAttachments is an optional interface of an [ActualStateOfWorldAttacherUpdater]. With it, a verification marks an
// uncertain attachment as attached if the plugin confirms it, with the device path that the plugin lists. If the plugin
// denies it, the attachment stays uncertain. Without it, every volume that is verified counts as attached for certain.
type UncertainAttachments interface {
	// IsAttachmentUncertain reports whether the attachment of the volume to the node is uncertain. It does no I/O.
	IsAttachmentUncertain(volumeName v1.UniqueVolumeName, nodeName types.NodeName) bool
}

// BlockMapper binds a block device for a pod and undoes it.
type BlockMapper interface {
	// MapDevice binds the device into the global map path under the pod's UID, links it into the pod's directory and
	// locks the device so that its name is not reused. Each step is undone when a later one fails.
	MapDevice(ctx context.Context, m DeviceMapping) error
	// UnmapDevice undoes MapDevice. It succeeds when nothing is there.
	UnmapDevice(ctx context.Context, m DeviceMapping) error

	MapPaths
}

// MapPaths is the part of a [BlockMapper] that only works on paths.
type MapPaths interface {
	// ResolveDevice returns the path of the device itself: devicePath with its symbolic links followed.
	ResolveDevice(ctx context.Context, devicePath string) (string, error)
	// MappedPods returns the UIDs of the pods for which a device is bound in globalMapPath, sorted. A directory that does
	// not exist has none.
	MappedPods(ctx context.Context, globalMapPath string) ([]string, error)
	// RemoveMapPath removes globalMapPath by rmdir. It succeeds when it is gone already.
	RemoveMapPath(ctx context.Context, globalMapPath string) error
}

// DeviceMapping names a device and the paths at which it is mapped.
type DeviceMapping struct {
	// DevicePath is the absolute path of the device. It may be empty when the device is unmapped.
	DevicePath string
	// GlobalMapPath is the absolute directory of the volume's bind mounts.
	GlobalMapPath string
	// PodMapDir is the absolute directory of the pod's link, LinkName the link's name in it.
	PodMapDir, LinkName string
	// PodUID names the bind mount in GlobalMapPath.
	PodUID types.UID
}

// DeviceUse reports whether a device is still in use anywhere, also in another mount namespace.
type DeviceUse interface {
	// DeviceOpened reports whether the device at the absolute path is held exclusively: mounted, or open with O_EXCL. A
	// kubelet makes the same check, by open(2) with that flag. It does not see a process that merely reads the device. A
	// path that is missing, or is no device, is not held.
	DeviceOpened(ctx context.Context, devicePath string) (bool, error)
}

// MountPoints looks for mounts. A mount.Interface is one.
type MountPoints interface {
	// IsMountPoint reports whether path, an absolute one, is the root of a mount. It does not wait for the filesystem there.
	IsMountPoint(ctx context.Context, path string) (bool, error)
}

// PromptMountPoints is a [MountPoints] that always returns when its context ends. The executor calls it in the goroutine of
// the operation. It calls any other in a separate goroutine, and abandons that call if it does not return.
type PromptMountPoints interface {
	MountPoints
	// ReturnsInTime marks the type. It does nothing.
	ReturnsInTime()
}

// Subpaths unmounts the sub-paths of a volume that were bound for the containers of a pod.
type Subpaths interface {
	// CleanSubpaths unmounts the sub-paths of the volume for all containers of the pod. The executor calls it before the
	// volume is torn down: with sub-paths still mounted, the teardown would fail, or the volume would stay in use beneath
	// them. It succeeds if there are none. A sub-path that cannot be unmounted is an error. pluginName and
	// innerVolumeSpecName name the volume together, because a pod may have volumes of several plugins with one inner name.
	CleanSubpaths(ctx context.Context, podUID types.UID, pluginName, innerVolumeSpecName string) error
}

// NodeReader reads a node's status. It reads the source of truth, not a cache.
type NodeReader interface {
	// VolumesInUse returns the volumes that the node lists as in use. A missing node uses none.
	VolumesInUse(ctx context.Context, nodeName types.NodeName) ([]v1.UniqueVolumeName, error)
	// VolumesAttached returns the volumes that are attached to the node and the paths of their devices there.
	VolumesAttached(ctx context.Context, nodeName types.NodeName) (map[v1.UniqueVolumeName]string, error)
}

// NodeStatusCache is an optional interface of a [NodeReader]. With it, a volume that the last known status does not list as
// attached is refused before an operation begins, at no cost. Without it, each attempt reads the node.
type NodeStatusCache interface {
	// LastVolumesAttached returns the volumes that the last known status of the node lists as attached, and false if no
	// status is known. It does no I/O.
	LastVolumesAttached(nodeName types.NodeName) (map[v1.UniqueVolumeName]string, bool)
}

// AttachmentReporter writes the attached volumes of the actual state into a node's status.
type AttachmentReporter interface {
	// ReportAttached returns after the node's status equals the actual state. The executor calls it between the withdrawal
	// of a volume and its detach, so the node does not begin to use the volume meanwhile.
	ReportAttached(ctx context.Context, nodeName types.NodeName) error
}

// NodeLabels reads the labels of this node.
type NodeLabels interface {
	// NodeLabels returns the current labels of the node. The caller does not change the map.
	NodeLabels(ctx context.Context) (map[string]string, error)
}

// ClaimStatus reads and writes the progress of the expansion of a claim.
type ClaimStatus interface {
	// Claim returns the claim to which the PersistentVolume of spec is bound. It reads the source of truth and compares the
	// UIDs of both.
	Claim(ctx context.Context, spec *volume.Spec) (*v1.PersistentVolumeClaim, error)
	// SetExpansion applies [Expansion.Apply] to the claim's status and writes it, if the store still has the same version
	// of the claim. It returns the claim as written. After an error the write has not happened, or may have happened.
	SetExpansion(ctx context.Context, claim *v1.PersistentVolumeClaim, expansion Expansion) (*v1.PersistentVolumeClaim, error)
}

// VolumeCapacity writes the size of PersistentVolumes.
type VolumeCapacity interface {
	// SetCapacity writes the capacity of the PersistentVolume, if the store still has the same version of pv, and returns
	// the PersistentVolume as written.
	SetCapacity(ctx context.Context, pv *v1.PersistentVolume, size resource.Quantity) (*v1.PersistentVolume, error)
}

// VolumeAttributes reads the classes of attributes, and writes the progress of the modification of a volume.
type VolumeAttributes interface {
	// AttributesClass returns a class by its name, from the source of truth. The error of a class that does not exist matches
	// volume.ErrNotFound.
	AttributesClass(ctx context.Context, name string) (*storagev1.VolumeAttributesClass, error)
	// SetModification applies [Modification.Apply] to the claim's status and writes it, if the store still has the same
	// version of the claim. It returns the claim as written. After an error the write has not happened, or may have happened.
	SetModification(ctx context.Context, claim *v1.PersistentVolumeClaim, modification Modification) (*v1.PersistentVolumeClaim, error)
	// SetAttributesClass writes the name of the class into the PersistentVolume, if the store still has the same version of
	// pv, and returns the PersistentVolume as written.
	SetAttributesClass(ctx context.Context, pv *v1.PersistentVolume, class string) (*v1.PersistentVolume, error)
}

// Journal records the intent of every call that changes the world before the call, so a crash loses nothing. An entry must
// live as long as the effect that it describes: the entry of an effect that a reboot ends need only survive the process. A
// Journal never stores a secret.
type Journal interface {
	// Intend records what the operation is about to do. The operation begins only if Intend returns nil.
	Intend(ctx context.Context, intent Intent) error
	// Conclude records the end of the operation. If only Conclude fails, a successful operation still succeeds: the
	// recorded intent stays true, though less exact.
	Conclude(ctx context.Context, intent Intent, end IntentEnd) error
}

// CallWatcher is an optional interface of a [Journal]. With it, the journal sees what a plugin's call reports through its
// context, such as the mounts that it makes (mount.WithMade) and the targets that it removes (mount.WithRemoved).
type CallWatcher interface {
	// CallContext returns ctx, or a child of it, for the call of SetUp, MountDevice, TearDown or UnmountDevice that carries
	// out the intent. It does no I/O.
	CallContext(ctx context.Context, intent Intent) context.Context
}

// RootChecker is an optional interface of a [Journal]. If the node's root is replaced during a call of a plugin, the call finds nothing
// at its path, or makes a volume in another directory. So the executor checks the root after each call that sets up, tears down,
// stages, unstages, maps or unmaps, and before a NodeExpand, which has no intent. If the check fails after a call, the result of the
// call is uncertain.
type RootChecker interface {
	// CheckRoot returns an error if paths below the node's root do not lead to the volumes of this program, or if that is not known.
	CheckRoot(ctx context.Context) error
}

// IntentEnd is how an intent ended.
type IntentEnd uint8

// The ends of an intent.
const (
	IntentDone      IntentEnd = iota // the effect is there; the record stays
	IntentUncertain                  // the effect may be there; the record stays
	IntentForgotten                  // no trace is left; the record is removed
)

// Intent is one change of the world that is about to be made. It holds all that is needed to undo the change without the
// pod, the claim or the plugin's memory.
type Intent struct {
	// Kind is the operation.
	Kind OperationKind
	// VolumeName is the unique name of the volume.
	VolumeName v1.UniqueVolumeName
	// PluginName is the name of its plugin.
	PluginName string
	// Spec is the volume; nil when only its name is known.
	Spec *volume.Spec
	// NodeName is the node of an attachment.
	NodeName types.NodeName
	// PodUID is the UID of the pod of a set-up. It is empty if the operation is for no pod.
	PodUID types.UID
	// Pod is the namespace and name of that pod.
	Pod types.NamespacedName
	// OuterVolumeSpecNames are the names under which that pod refers to the volume.
	OuterVolumeSpecNames []string
	// DevicePath is the absolute path of the device; empty while it is not known.
	DevicePath string
	// DeviceMountPath is the absolute path of the staging, and is empty if the volume is not staged. For a block volume it
	// is the global map path.
	DeviceMountPath string
	// MountPath is the absolute path of the set-up, and is empty if the operation is for no pod. For a block volume it is
	// the pod's link: unmapping needs the link's directory and name, beside DeviceMountPath and PodUID.
	MountPath string
	// SELinuxMountContext is the context with which the volume is staged or set up. Empty means without one. For a
	// teardown, empty means the context of the intent before.
	SELinuxMountContext string
	// SetUpArgs is what SetUp is called with; nil when no filesystem is set up for a pod. It must not be changed.
	SetUpArgs *volume.MounterArgs
}

// Observer receives every operation. Its methods are called from the operation's goroutine and must return soon.
type Observer interface {
	// OperationStarted is called when the operation has its key and begins.
	OperationStarted(o OperationInfo)
	// OperationStepped is called after each step.
	OperationStepped(o OperationInfo, s Step)
	// OperationFinished is called when the operation has ended. r holds its class and its error.
	OperationFinished(o OperationInfo, r Result)
}

// ContextObserver is an [Observer] that chooses the context of each operation, so that the plugin's calls carry what it keeps there,
// such as the span of a trace. An observer that has this method is asked.
type ContextObserver interface {
	Observer
	// OperationContext is called before OperationStarted, and must return soon. It must return ctx or a context made of it, so that
	// a call ends when ctx does; never nil. The calls of the plugin get contexts made of the result.
	OperationContext(ctx context.Context, o OperationInfo) context.Context
}

// OperationInfo identifies an operation.
type OperationInfo struct {
	// Kind is what is done.
	Kind OperationKind
	// PluginName is the name of the volume's plugin; empty when none was found.
	PluginName string
	// VolumeName is the unique name of the volume.
	VolumeName v1.UniqueVolumeName
	// PodName is the unique name of the pod. It is empty if the operation is for no pod.
	PodName volume.UniquePodName
	// NodeName is the node of an attachment. It is empty for other operations.
	NodeName types.NodeName
	// Started is when it began.
	Started time.Time
}

// Step is one call of the plugin, or one other thing that takes time, within an operation.
type Step struct {
	// Name is the call, such as "WaitForAttach", "MountDevice" or "SetUp".
	Name string
	// Started is when it began; Duration is how long it took.
	Started  time.Time
	Duration time.Duration
	// Err is its error; nil when it succeeded.
	Err error
}
