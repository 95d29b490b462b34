package operationexecutor

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// ActualStateOfWorldMounterUpdater is told how staging and set-up on this node went. Its methods do no I/O. An error
// says that the state does not allow the change (an unknown volume, say): the operation then fails with it.
type ActualStateOfWorldMounterUpdater interface {
	// MarkVolumeAsMounted says that the volume is set up for the pod.
	MarkVolumeAsMounted(opts MarkVolumeOpts) error
	// MarkVolumeMountAsUncertain says that the volume may be set up for the pod, also when it was mounted: the executor
	// calls it after every teardown that failed, and never because a remount did.
	MarkVolumeMountAsUncertain(opts MarkVolumeOpts) error
	// MarkVolumeAsUnmounted says that the volume is not set up for the pod.
	MarkVolumeAsUnmounted(podName volume.UniquePodName, volumeName v1.UniqueVolumeName) error
	// MarkDeviceAsMounted says that the volume is staged at deviceMountPath, with the SELinux context; an empty one says
	// that it was mounted without.
	MarkDeviceAsMounted(volumeName v1.UniqueVolumeName, devicePath, deviceMountPath, seLinuxMountContext string) error
	// MarkDeviceAsUncertain says that the volume may be staged at deviceMountPath.
	MarkDeviceAsUncertain(volumeName v1.UniqueVolumeName, devicePath, deviceMountPath, seLinuxMountContext string) error
	// MarkDeviceAsUnmounted says that the volume is not staged.
	MarkDeviceAsUnmounted(volumeName v1.UniqueVolumeName) error
	// GetDeviceMountState returns what is known of the volume's staging.
	GetDeviceMountState(volumeName v1.UniqueVolumeName) DeviceMountState
	// GetVolumeMountState returns what is known of the volume's set-up for the pod.
	GetVolumeMountState(volumeName v1.UniqueVolumeName, podName volume.UniquePodName) VolumeMountState
	// IsVolumeReconstructed reports whether the volume was found after a restart and nothing has succeeded on it since.
	// A final error then proves nothing: it stays uncertain. An empty podName asks for the volume's staging.
	IsVolumeReconstructed(volumeName v1.UniqueVolumeName, podName volume.UniquePodName) bool
	// CheckAndMarkVolumeAsUncertainViaReconstruction says that a restart found the volume set up for the pod. It returns
	// false, and changes nothing, when the volume is not known or something is known of the set-up already.
	CheckAndMarkVolumeAsUncertainViaReconstruction(opts MarkVolumeOpts) (bool, error)
	// CheckAndMarkDeviceUncertainViaReconstruction is the same for the staging.
	CheckAndMarkDeviceUncertainViaReconstruction(volumeName v1.UniqueVolumeName, deviceMountPath string) bool

	ExpansionUpdater
}

// SetUpWatcher learns when set-ups begin. It is an optional interface of an [ActualStateOfWorldMounterUpdater]. Absent, a
// set-up counts as one of the pod as it is when the set-up has ended.
type SetUpWatcher interface {
	// WatchSetUp says that a volume is about to be set up for a pod, as the pod is now. What the state learns of the pod
	// from now on is not in that set-up. end is called when it is over and the state has been told how it went.
	WatchSetUp(volumeName v1.UniqueVolumeName, podName volume.UniquePodName) (end func())
}

// ClaimSizes remembers how large the volumes of this node are. It is an optional interface of an
// [ActualStateOfWorldAttacherUpdater]. Absent, no claim is read when a volume is found attached. Its methods do no I/O.
type ClaimSizes interface {
	// InitializeClaimSize says how large the volume's claim was when the volume was found attached; it does not replace a
	// size that is known.
	InitializeClaimSize(volumeName v1.UniqueVolumeName, claimSize resource.Quantity)
	// GetClaimSize returns the size in bytes to which the volume was last expanded on this node; zero when it is not
	// known.
	GetClaimSize(volumeName v1.UniqueVolumeName) resource.Quantity
}

// ExpansionUpdater is told how the expansion of volumes on this node went. Its methods do no I/O. A volume that is not
// known has no size and no failures.
type ExpansionUpdater interface {
	ClaimSizes
	// MarkVolumeAsResized says that the volume has this size in bytes on this node now. It returns false when the volume
	// is not known.
	MarkVolumeAsResized(volumeName v1.UniqueVolumeName, claimSize resource.Quantity) bool
	// MarkForInUseExpansionError says that the plugin cannot expand the volume while it is used. Before the volume has left
	// the node it is tried again only when another pod gets it.
	MarkForInUseExpansionError(volumeName v1.UniqueVolumeName)
	// MarkVolumeExpansionFailedWithFinalError says that the volume's expansion on this node failed for good at the size
	// that was asked for.
	MarkVolumeExpansionFailedWithFinalError(volumeName v1.UniqueVolumeName)
	// RemoveVolumeFromFailedWithFinalErrors undoes MarkVolumeExpansionFailedWithFinalError.
	RemoveVolumeFromFailedWithFinalErrors(volumeName v1.UniqueVolumeName)
	// CheckVolumeInFailedExpansionWithFinalErrors reports whether MarkVolumeExpansionFailedWithFinalError was called for
	// the volume and not undone.
	CheckVolumeInFailedExpansionWithFinalErrors(volumeName v1.UniqueVolumeName) bool
}

// VolumeUsers is an optional interface of an [ActualStateOfWorldMounterUpdater] and of an
// [ActualStateOfWorldAttacherUpdater]. Present, a volume is neither unstaged nor detached while it has pods, and a volume
// with the access mode ReadWriteOncePod gets no second one; all are checked when the operation has its key. Absent, only
// the plugin is asked. A state that is both updaters has no volume detached that is staged.
type VolumeUsers interface {
	// PodsOfVolume returns the pods for which the volume is, or may be, set up. It does no I/O.
	PodsOfVolume(volumeName v1.UniqueVolumeName) []volume.UniquePodName
}

// MarkVolumeOpts says which set-up of which volume changed.
type MarkVolumeOpts struct {
	// VolumeName is the unique name of the volume.
	VolumeName v1.UniqueVolumeName
	// PodName is the unique name of the pod.
	PodName volume.UniquePodName
	// PodUID is the UID of the pod.
	PodUID types.UID
	// Pod is the pod; nil when it is not known.
	Pod *v1.Pod
	// VolumeSpec is the volume.
	VolumeSpec *volume.Spec
	// OuterVolumeSpecNames are the names under which the pod refers to the volume, sorted.
	OuterVolumeSpecNames []string
	// Mounter set the volume up; nil for one that is being torn down, and for a block volume.
	Mounter volume.Mounter
	// BlockVolumeMapper mapped the block volume; nil for one that is being unmapped, and for a filesystem.
	BlockVolumeMapper volume.BlockVolumeMapper
	// MountPath is the absolute path of the set-up; empty when it is not known.
	MountPath string
	// SELinuxMountContext is the context with which the volume was mounted; empty when it was mounted without.
	SELinuxMountContext string
	// VolumeGidValue is the supplemental group that the PersistentVolume asks for; empty when it asks for none.
	VolumeGidValue string
	// Incarnation is that of the [VolumeToMount] or [MountedVolume]; zero when it is not known.
	Incarnation uint64
}

// ActualStateOfWorldAttacherUpdater is told how attaching went. Its methods do no I/O.
type ActualStateOfWorldAttacherUpdater interface {
	// MarkVolumeAsAttached says that the volume is attached to the node. An empty volumeName is computed from the plugin
	// of the spec.
	MarkVolumeAsAttached(volumeName v1.UniqueVolumeName, spec *volume.Spec, nodeName types.NodeName, devicePath string) error
	// MarkVolumeAsUncertain says that the volume may be attached to the node.
	MarkVolumeAsUncertain(volumeName v1.UniqueVolumeName, spec *volume.Spec, nodeName types.NodeName) error
	// MarkVolumeAsDetached says that the volume is not attached to the node.
	MarkVolumeAsDetached(volumeName v1.UniqueVolumeName, nodeName types.NodeName)
	// RemoveVolumeFromReportAsAttached withdraws the volume from what the node is told is attached to it, which must
	// happen before it is detached. A volume that is withdrawn already is no error.
	RemoveVolumeFromReportAsAttached(volumeName v1.UniqueVolumeName, nodeName types.NodeName) error
	// AddVolumeToReportAsAttached undoes RemoveVolumeFromReportAsAttached, when the volume is not detached after all.
	AddVolumeToReportAsAttached(volumeName v1.UniqueVolumeName, nodeName types.NodeName)
}

// VolumeNodes is an optional interface of an [ActualStateOfWorldAttacherUpdater]. Present, a volume that one node alone may
// have is not attached to a second one, which is checked when the operation has its key. Absent, only the plugin knows.
type VolumeNodes interface {
	// NodesOfVolume returns the nodes to which the volume is, or may be, attached. It does no I/O.
	NodesOfVolume(volumeName v1.UniqueVolumeName) []types.NodeName
}

// UncertainAttachments is an optional interface of an [ActualStateOfWorldAttacherUpdater]. Present, a volume that may be attached, and
// of which a plugin says that it is, is marked as attached by a verification, with the device path under which it was listed; one of
// which the plugin says that it is not stays as it is. Absent, every volume that is verified counts as attached for certain.
type UncertainAttachments interface {
	// IsAttachmentUncertain reports whether the volume may be attached to the node and is not known to be. It does no I/O.
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

// MapPaths is the part of a [BlockMapper] that is about paths alone.
type MapPaths interface {
	// ResolveDevice returns the path of the device itself: devicePath with its symbolic links followed.
	ResolveDevice(ctx context.Context, devicePath string) (string, error)
	// MappedPods returns the UIDs of the pods for which a device is bound in globalMapPath, sorted. A directory that does
	// not exist has none.
	MappedPods(ctx context.Context, globalMapPath string) ([]string, error)
	// RemoveMapPath removes globalMapPath by rmdir. It succeeds when it is gone already.
	RemoveMapPath(ctx context.Context, globalMapPath string) error
}

// DeviceMapping says which device is mapped where.
type DeviceMapping struct {
	// DevicePath is the absolute path of the device; it may be empty when it is unmapped.
	DevicePath string
	// GlobalMapPath is the absolute directory of the volume's bind mounts.
	GlobalMapPath string
	// PodMapDir is the absolute directory of the pod's link, LinkName the link's name in it.
	PodMapDir, LinkName string
	// PodUID names the bind mount in GlobalMapPath.
	PodUID types.UID
}

// DeviceUse tells whether a device is still held anywhere, another mount namespace included.
type DeviceUse interface {
	// DeviceOpened reports whether the device at the absolute path is held for somebody alone: mounted, or opened with
	// O_EXCL, which is what open(2) with that flag tells and what a kubelet asks. One who merely reads the device is not
	// seen. A path that is no device, or is gone, is not held.
	DeviceOpened(ctx context.Context, devicePath string) (bool, error)
}

// MountPoints tells what is mounted. A mount.Interface is one.
type MountPoints interface {
	// IsMountPoint reports whether path, an absolute one, is the root of a mount. It does not wait for the filesystem there.
	IsMountPoint(ctx context.Context, path string) (bool, error)
}

// PromptMountPoints is a [MountPoints] that returns when its context ends, whatever it waits for. It is asked in the goroutine of
// the operation. Any other is asked in one of its own, which is left behind when it does not return.
type PromptMountPoints interface {
	MountPoints
	// ReturnsInTime says so, and does nothing.
	ReturnsInTime()
}

// Subpaths knows the parts of a volume that were bound for the containers of a pod, beside the volume.
type Subpaths interface {
	// CleanSubpaths takes them off, of all containers of the pod. It is called before the volume is torn down, which
	// otherwise would leave it alive beneath them, or fail for them. It succeeds when there are none; one that
	// cannot be taken off is an error. pluginName and innerVolumeSpecName name the volume: a pod may have volumes of one inner
	// name by several plugins.
	CleanSubpaths(ctx context.Context, podUID types.UID, pluginName, innerVolumeSpecName string) error
}

// NodeReader tells what a node's status says. It reads the source of truth, not a cache.
type NodeReader interface {
	// VolumesInUse returns the volumes that the node says it uses. A node that is gone uses none.
	VolumesInUse(ctx context.Context, nodeName types.NodeName) ([]v1.UniqueVolumeName, error)
	// VolumesAttached returns the volumes that are attached to the node and the paths of their devices there.
	VolumesAttached(ctx context.Context, nodeName types.NodeName) (map[v1.UniqueVolumeName]string, error)
}

// NodeStatusCache is an optional interface of a [NodeReader]. Present, a volume that the node's last status does not list
// as attached is refused before an operation begins, at no cost. Absent, each attempt reads the node.
type NodeStatusCache interface {
	// LastVolumesAttached returns the volumes that the last status seen of the node listed as attached, and false when none
	// was seen. It does no I/O.
	LastVolumesAttached(nodeName types.NodeName) (map[v1.UniqueVolumeName]string, bool)
}

// AttachmentReporter writes into a node's status what the actual state says is attached to the node.
type AttachmentReporter interface {
	// ReportAttached returns when the node's status says what the actual state says. It is called after a volume was
	// withdrawn and before it is detached, so that the node does not begin to use what is being taken from it.
	ReportAttached(ctx context.Context, nodeName types.NodeName) error
}

// NodeLabels tells the labels of this node.
type NodeLabels interface {
	// NodeLabels returns the labels that the node has now. The map is not changed.
	NodeLabels(ctx context.Context) (map[string]string, error)
}

// ClaimStatus reads and writes how far the expansion of a claim has come.
type ClaimStatus interface {
	// Claim returns the claim that the PersistentVolume of spec is bound to, read from the source of truth; the UIDs of
	// both are compared.
	Claim(ctx context.Context, spec *volume.Spec) (*v1.PersistentVolumeClaim, error)
	// SetExpansion writes what [Expansion.Apply] makes of the claim's status, on the condition that the claim still has the
	// version of claim, and returns the claim as it is then. An error says that nothing was written, or perhaps so.
	SetExpansion(ctx context.Context, claim *v1.PersistentVolumeClaim, expansion Expansion) (*v1.PersistentVolumeClaim, error)
}

// VolumeCapacity writes the size of PersistentVolumes.
type VolumeCapacity interface {
	// SetCapacity writes the capacity of the PersistentVolume, on the condition that it still has the version of pv, and
	// returns it as it is then.
	SetCapacity(ctx context.Context, pv *v1.PersistentVolume, size resource.Quantity) (*v1.PersistentVolume, error)
}

// Journal keeps the intent of every call that changes the world, before the call, so that nothing is lost in a crash.
// An implementation makes each entry durable as far as what it describes is: what cannot outlive a boot need only
// survive the process. It never stores a secret.
type Journal interface {
	// Intend records what is about to be done. The operation does not begin unless it returns nil.
	Intend(ctx context.Context, intent Intent) error
	// Conclude records how that ended. An operation that succeeded is not failed when only this fails: the intent that
	// stays on record is the truth, if less exact.
	Conclude(ctx context.Context, intent Intent, end IntentEnd) error
}

// CallWatcher is an optional interface of a [Journal]. Present, it sees what a plugin's call reports about its own work by its
// context, such as the mounts that it makes (mount.WithMade) and the targets that it removes (mount.WithRemoved).
type CallWatcher interface {
	// CallContext returns ctx, or a child of it, for the call of SetUp, MountDevice, TearDown or UnmountDevice that carries the
	// intent out. It does no I/O.
	CallContext(ctx context.Context, intent Intent) context.Context
}

// IntentEnd is what became of an intent.
type IntentEnd uint8

// The ends of an intent.
const (
	IntentDone      IntentEnd = iota // the effect is there, and so the record stays
	IntentUncertain                  // the effect may be there, and so the record stays
	IntentForgotten                  // no trace is left, and so the record goes
)

// Intent is one change of the world that is about to be made, with all that is needed to undo it without the pod, the
// claim or the plugin's memory.
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
	// PodUID is the UID of the pod of a set-up; empty when no pod is concerned.
	PodUID types.UID
	// Pod is the namespace and name of that pod.
	Pod types.NamespacedName
	// OuterVolumeSpecNames are the names under which that pod refers to the volume.
	OuterVolumeSpecNames []string
	// DevicePath is the absolute path of the device; empty while it is not known.
	DevicePath string
	// DeviceMountPath is the absolute path of the staging; empty when the volume is not staged. That of a block volume is
	// its global map path.
	DeviceMountPath string
	// MountPath is the absolute path of the set-up; empty when no pod is concerned. That of a block volume is the pod's
	// link: its directory and its name in it are what unmapping needs, beside DeviceMountPath and PodUID.
	MountPath string
	// SELinuxMountContext is the context with which the volume is staged or set up; empty: without, or, where it is taken
	// away, with the one of the intent before.
	SELinuxMountContext string
	// SetUpArgs is what SetUp is called with; nil when no filesystem is set up for a pod. It must not be changed.
	SetUpArgs *volume.MounterArgs
}

// Observer is told of every operation. Its methods are called from the operation's goroutine and must return soon.
type Observer interface {
	// OperationStarted is called when the operation has its key and begins.
	OperationStarted(o OperationInfo)
	// OperationStepped is called after each step.
	OperationStepped(o OperationInfo, s Step)
	// OperationFinished is called when the operation has ended, with its class and its error.
	OperationFinished(o OperationInfo, r Result)
}

// OperationInfo says which operation.
type OperationInfo struct {
	// Kind is what is done.
	Kind OperationKind
	// PluginName is the name of the volume's plugin; empty when none was found.
	PluginName string
	// VolumeName is the unique name of the volume.
	VolumeName v1.UniqueVolumeName
	// PodName is the unique name of the pod; empty when no pod is concerned.
	PodName volume.UniquePodName
	// NodeName is the node of an attachment; empty when none is concerned.
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
