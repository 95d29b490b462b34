package operationexecutor

import (
	"errors"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/volume"
)

// The reasons of events. Those of attach are Kubernetes' own, and so is FailedMount; Kubernetes has no events for
// taking a volume away.
const (
	reasonSuccessfulAttachVolume = "SuccessfulAttachVolume" // normal, on every pod that waits for the volume
	ReasonFailedAttachVolume     = "FailedAttachVolume"     // warning, on every pod that waits for the volume
	reasonFailedMount            = "FailedMount"            // warning, on the pod
	reasonFailedUnmount          = "FailedUnmount"          // warning, on the pod, or on the PersistentVolume when the pod is not known
	reasonFailedUnmountDevice    = "FailedUnmountDevice"    // warning, on the PersistentVolume
	reasonFailedMapVolume        = "FailedMapVolume"        // warning, on the pod
	reasonSuccessfulMountVolume  = "SuccessfulMountVolume"  // normal, on the pod, when a volume was set up or mapped; not when it was refreshed
	// reasonSuccessfulUnmountVolume is normal, on the pod, or on the PersistentVolume when the pod is not known: the volume
	// was torn down or unmapped.
	reasonSuccessfulUnmountVolume = "SuccessfulUnmountVolume"
	// reasonSuccessfulUnmountDevice is normal, on the PersistentVolume: it was unstaged, or its device undone.
	reasonSuccessfulUnmountDevice = "SuccessfulUnmountDevice"
	// ReasonDirectoryKept is a warning, on the pod or the PersistentVolume: the volume was taken away, and its directory stays
	// since something else is in it.
	ReasonDirectoryKept          = "VolumeDirectoryKept"
	reasonFailedUnmapVolume      = "FailedUnmapVolume"      // warning, on the pod, or on the PersistentVolume when the pod is not known
	reasonFailedUnmapDevice      = "FailedUnmapDevice"      // warning, on the PersistentVolume
	reasonVolumePluginMisbehaved = "VolumePluginMisbehaved" // warning, on the PersistentVolume
	reasonFailedDetachVolume     = "FailedDetachVolume"     // warning, on the PersistentVolume
	ReasonSuccessfulDetachVolume = "SuccessfulDetachVolume" // normal, on the PersistentVolume
	ReasonVolumeNotAttached      = "VolumeNotAttached"      // warning, on a PersistentVolume that is found detached
	ReasonVolumeResizeFailed     = "VolumeResizeFailed"     // warning, on the claim, or on the pod
	reasonVolumeResizeSuccessful = "VolumeResizeSuccessful" // normal, on the claim, when the control plane has finished
	ReasonVolumeModifyFailed     = "VolumeModifyFailed"     // warning, on the claim
	reasonVolumeModifySuccessful = "VolumeModifySuccessful" // normal, on the claim
	reasonVolumeModifyCanceled   = "VolumeModifyCanceled"   // normal, on the claim, when it names no class any more
	// reasonFileSystemResizeRequired is normal, on the claim, when a node has to go on.
	reasonFileSystemResizeRequired = "FileSystemResizeRequired"
	// reasonFileSystemResizeSuccessful is normal, on the pod and the claim.
	reasonFileSystemResizeSuccessful = "FileSystemResizeSuccessful"
	// reasonFileSystemResizeFailed is a warning, on the pod and the claim, when the volume is read-only here.
	reasonFileSystemResizeFailed = "FileSystemResizeFailed"
)

// event records an event on object, if there is one.
func (g *generator) event(object runtime.Object, eventtype, reason, format string, args ...any) {
	if g.recorder != nil && object != nil {
		g.recorder.Eventf(object, eventtype, reason, format, args...)
	}
}

// succeeded records that something succeeded with the volume of that name. It allocates nothing without a recorder.
func (g *generator) succeeded(object runtime.Object, reason, format, name string) {
	if g.recorder != nil && object != nil {
		g.recorder.Eventf(object, v1.EventTypeNormal, reason, format, name)
	}
}

// directoryKept tells of a directory that stays when its volume was taken away, and returns any other error. That nothing is
// mounted there is asked after that.
func (g *generator) directoryKept(object runtime.Object, name string, err error) error {
	if !errors.Is(err, volume.ErrDirectoryKept) {
		return err
	}
	g.event(object, v1.EventTypeWarning, ReasonDirectoryKept, "volume %q was taken away, and its directory stays: %v", name, err)
	return nil
}

// podObject returns pod, or a plain nil.
func podObject(pod *v1.Pod) runtime.Object {
	if pod == nil {
		return nil
	}
	return pod
}

// volumeObject returns the PersistentVolume of spec, or a plain nil.
func volumeObject(spec *volume.Spec) runtime.Object {
	if spec == nil || spec.PersistentVolume == nil {
		return nil
	}
	return spec.PersistentVolume
}

// eitherObject returns pod, or else the PersistentVolume of spec.
func eitherObject(pod *v1.Pod, spec *volume.Spec) runtime.Object {
	if pod != nil {
		return pod
	}
	return volumeObject(spec)
}
