package operationexecutor

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// VolumeToAttach is a volume that should be attached to a node.
type VolumeToAttach struct {
	// VolumeName is the unique name of the volume.
	VolumeName v1.UniqueVolumeName
	// VolumeSpec is the volume.
	VolumeSpec *volume.Spec
	// NodeName is the node.
	NodeName types.NodeName
	// ScheduledPods are the pods on that node that use the volume. They get the events of success and failure.
	ScheduledPods []*v1.Pod
	// MultiAttachErrorReported says that its pods were told that another node has the volume.
	MultiAttachErrorReported bool
}

// VolumeToMount is a volume that should be attached to this node and set up for a pod.
type VolumeToMount struct {
	// VolumeName is the unique name of the volume.
	VolumeName v1.UniqueVolumeName
	// PodName is the unique name of the pod.
	PodName volume.UniquePodName
	// VolumeSpec is the volume.
	VolumeSpec *volume.Spec
	// OuterVolumeSpecNames are the names under which the pod's spec refers to the volume, sorted. A pod may refer to
	// one claim under several names.
	OuterVolumeSpecNames []string
	// Pod is the pod. It must not be changed.
	Pod *v1.Pod
	// PluginName is the name of the volume's plugin.
	PluginName string
	// PluginIsAttachable says that the volume must be attached to the node.
	PluginIsAttachable bool
	// PluginIsDeviceMountable says that the volume must be staged before it is set up.
	PluginIsDeviceMountable bool
	// VolumeGidValue is the supplemental group that the PersistentVolume asks for; empty when it asks for none.
	VolumeGidValue string
	// DevicePath is the absolute path of the attached device; empty when there is none or it is not known yet.
	DevicePath string
	// ReportedInUse says that the node's status lists the volume as in use.
	ReportedInUse bool
	// DesiredSizeLimit is the size limit in bytes of a volume that is local to the pod; nil means no limit.
	DesiredSizeLimit *resource.Quantity
	// SELinuxLabel is the context with which to mount; empty means none.
	SELinuxLabel string
	// DesiredPersistentVolumeSize is the size in bytes that the PersistentVolume has been given; zero when the volume has
	// no claim, or when the pod only reads it.
	DesiredPersistentVolumeSize resource.Quantity
	// MountRequestTime is when the pod first asked for the volume.
	MountRequestTime time.Time
	// Incarnation tells the pod from an earlier one with the same UID: it is handed to the actual state with what becomes
	// of the set-up. Zero says that it is not known.
	Incarnation uint64
}

// AttachedVolume is a volume that is attached to a node, or needs no attaching.
type AttachedVolume struct {
	// VolumeName is the unique name of the volume.
	VolumeName v1.UniqueVolumeName
	// VolumeSpec is the volume; nil when only its name is known.
	VolumeSpec *volume.Spec
	// NodeName is the node.
	NodeName types.NodeName
	// PluginName is the name of the volume's plugin.
	PluginName string
	// PluginIsAttachable says that the volume must be detached from the node.
	PluginIsAttachable bool
	// PluginIsDeviceMountable says that the plugin stages this volume. Operations do not read it.
	PluginIsDeviceMountable bool
	// DevicePath is the absolute path of the device; empty when there is none.
	DevicePath string
	// DeviceMountPath is the absolute path at which the device is staged; empty when it is not.
	DeviceMountPath string
	// SELinuxMountContext is the context with which the device is staged; empty when it is staged without.
	SELinuxMountContext string
}

// MountedVolume is a volume that is, or may be, set up for a pod.
type MountedVolume struct {
	// PodName is the unique name of the pod.
	PodName volume.UniquePodName
	// PodUID is the UID of the pod, a part of paths on disk.
	PodUID types.UID
	// Pod is the pod as it was when the volume was set up, for events; nil when it is not known any more.
	Pod *v1.Pod
	// VolumeName is the unique name of the volume.
	VolumeName v1.UniqueVolumeName
	// InnerVolumeSpecName is the name that plugins use in the pod's path: the PersistentVolume's name for a claim, the
	// name in the pod's spec otherwise.
	InnerVolumeSpecName string
	// OuterVolumeSpecNames are the names under which the pod's spec refers to the volume, sorted.
	OuterVolumeSpecNames []string
	// PluginName is the name of the volume's plugin.
	PluginName string
	// VolumeSpec is the volume.
	VolumeSpec *volume.Spec
	// Mounter set the volume up; nil when the volume was found after a restart, and for a block volume.
	Mounter volume.Mounter
	// BlockVolumeMapper mapped the block volume; nil when it was found after a restart, and for a filesystem.
	BlockVolumeMapper volume.BlockVolumeMapper
	// MountPath is the absolute path of the set-up; empty when it is not known.
	MountPath string
	// SELinuxMountContext is the context with which the volume was mounted; empty when it was mounted without.
	SELinuxMountContext string
	// DevicePath is the absolute path of the volume's device; empty when there is none or it is not known.
	DevicePath string
	// VolumeGidValue is the supplemental group that the PersistentVolume asks for; empty when it asks for none.
	VolumeGidValue string
	// DeviceMountPath is the absolute path at which the device is staged; empty when it is not.
	DeviceMountPath string
	// Incarnation is that of the [VolumeToMount] for which the volume was set up; zero when it is not known, as after a
	// restart.
	Incarnation uint64
}

// VolumeToExpand is a volume whose storage the control plane should expand to what its claim asks for.
type VolumeToExpand struct {
	// VolumeName is the unique name of the volume.
	VolumeName v1.UniqueVolumeName
	// VolumeSpec is the volume, with its PersistentVolume as it is now.
	VolumeSpec *volume.Spec
	// PluginName is the name of the volume's plugin; it may be empty.
	PluginName string
}

// VolumeToModify is a volume to which the control plane should give the attributes of the class that its claim names.
type VolumeToModify struct {
	// VolumeName is the unique name of the volume.
	VolumeName v1.UniqueVolumeName
	// VolumeSpec is the volume, with its PersistentVolume as it is now.
	VolumeSpec *volume.Spec
	// PluginName is the name of the volume's plugin; it may be empty.
	PluginName string
}

// VolumeToReconstruct is a volume that was found on disk and has no record.
type VolumeToReconstruct struct {
	// VolumeMode is Block for a device that is mapped; empty and Filesystem are a mount.
	VolumeMode v1.PersistentVolumeMode
	// PluginName is the name of the volume's plugin, as the path tells it.
	PluginName string
	// PodUID is the UID of the pod, as the path tells it.
	PodUID types.UID
	// InnerVolumeSpecName is the inner name of the volume, as the path tells it.
	InnerVolumeSpecName string
	// VolumePath is the absolute path of the mount, or of the link to the device.
	VolumePath string
}

// DeviceMountState is what is known of a volume's staging on this node.
type DeviceMountState uint8

// The states of staging. Uncertain: it must be staged again before use and unstaged before it is forgotten.
const (
	DeviceNotMounted DeviceMountState = iota
	DeviceMountUncertain
	DeviceGloballyMounted
)

// String returns the state in lower case.
func (s DeviceMountState) String() string {
	return [...]string{"not staged", "staging uncertain", "staged"}[s]
}

// VolumeMountState is what is known of a volume's set-up for one pod.
type VolumeMountState uint8

// The states of set-up. Uncertain: it must be set up again before use and torn down before it is forgotten.
const (
	VolumeNotMounted VolumeMountState = iota
	VolumeMountUncertain
	VolumeMounted
)

// String returns the state in lower case.
func (s VolumeMountState) String() string {
	return [...]string{"not mounted", "mount uncertain", "mounted"}[s]
}
