package cache

import (
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/volume"
)

// The sentinels of this package. Match them with errors.Is.
var (
	// ErrNotAttached says that the volume is not attached, or that its attachment is uncertain. Attach it first or, if it needs no
	// attachment, mark it as attached.
	ErrNotAttached = errors.New("volume is not attached")
	// ErrNotStaged says that a volume cannot be mounted for a pod because it is not staged.
	ErrNotStaged = errors.New("volume is not staged")
	// ErrRemountRequired says that a volume is mounted for a pod and has to be set up again because the pod was updated.
	ErrRemountRequired = errors.New("volume must be set up again because its pod was updated")
	// ErrFsResizeRequired says that a volume is mounted for a pod and has to be expanded on this node: see
	// [FsResizeRequiredError].
	ErrFsResizeRequired = errors.New("volume must be expanded on this node")
	// ErrSELinuxMismatch says that a volume is mounted with another SELinux context than the pod wants: see
	// [SELinuxMountMismatchError].
	ErrSELinuxMismatch = errors.New("volume is mounted with another SELinux context")
	// ErrSELinuxConflict says that two pods or containers need different SELinux contexts for one volume: see [SELinuxConflictError].
	ErrSELinuxConflict = errors.New("volume cannot be mounted with two SELinux contexts")
)

// FsResizeRequiredError says that a volume that is mounted has to be expanded on this node. It matches
// [ErrFsResizeRequired].
type FsResizeRequiredError struct {
	// VolumeName and PodName are the volume and its pod.
	VolumeName v1.UniqueVolumeName
	PodName    volume.UniquePodName
	// CurrentSize is the size in bytes that the volume has on this node, DesiredSize the size that it should have.
	CurrentSize, DesiredSize resource.Quantity
}

// Error names the volume and both sizes.
func (e *FsResizeRequiredError) Error() string {
	return fmt.Sprintf("%v: volume %q of pod %q has %s and should have %s",
		ErrFsResizeRequired, e.VolumeName, e.PodName, e.CurrentSize.String(), e.DesiredSize.String())
}

// Unwrap returns the sentinel.
func (e *FsResizeRequiredError) Unwrap() error { return ErrFsResizeRequired }

// SELinuxMountMismatchError says that a volume is, or may be, mounted with another SELinux context than a pod wants, and
// has to be unmounted from all before that pod gets it. It matches [ErrSELinuxMismatch].
type SELinuxMountMismatchError struct {
	// VolumeName is the volume, PodName the pod that waits for it.
	VolumeName v1.UniqueVolumeName
	PodName    volume.UniquePodName
	// Mounted is the context with which it is mounted, Wanted the context that the pod needs; empty means none.
	Mounted, Wanted string
}

// Error names the volume, the pod and both contexts.
func (e *SELinuxMountMismatchError) Error() string {
	return fmt.Sprintf("%v: volume %q is mounted with %q and pod %q wants %q: it waits until all others have given it up",
		ErrSELinuxMismatch, e.VolumeName, e.Mounted, e.PodName, e.Wanted)
}

// Unwrap returns the sentinel.
func (e *SELinuxMountMismatchError) Unwrap() error { return ErrSELinuxMismatch }

// SELinuxConflictError says that two pods, or two containers of a pod, need one volume mounted with different SELinux contexts. It
// matches [ErrSELinuxConflict].
type SELinuxConflictError struct {
	// VolumeName is the inner name of the volume.
	VolumeName string
	// PodName is the refused pod, and Label the context that it needs; empty means none.
	PodName volume.UniquePodName
	Label   string
	// OtherPodName is the pod that has the volume, and OtherLabel the context that it needs. It is the same pod if its own containers
	// disagree.
	OtherPodName volume.UniquePodName
	OtherLabel   string
}

// Error names the volume, both pods and both contexts.
func (e *SELinuxConflictError) Error() string {
	if e.OtherPodName == e.PodName {
		return fmt.Sprintf("%v: volume %q: containers of pod %q want %q and %q: give them one, or set seLinuxChangePolicy to Recursive",
			ErrSELinuxConflict, e.VolumeName, e.PodName, e.OtherLabel, e.Label)
	}
	return fmt.Sprintf("%v: volume %q: pod %q has it with %q and pod %q wants %q: give both pods one context and one seLinuxChangePolicy",
		ErrSELinuxConflict, e.VolumeName, e.OtherPodName, e.OtherLabel, e.PodName, e.Label)
}

// Unwrap returns the sentinel.
func (e *SELinuxConflictError) Unwrap() error { return ErrSELinuxConflict }
