package operationexecutor

import (
	"context"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// OperationExecutor is what an orchestrator begins operations with. [*Executor] is the real one; declare a variable of this
// type, or of a smaller interface of your own, where a test puts another in its place. Methods of one name do what those of
// [Executor] do.
type OperationExecutor interface {
	// AttachVolume begins to attach a volume to a node.
	AttachVolume(ctx context.Context, v VolumeToAttach, actualState ActualStateOfWorldAttacherUpdater) (*Operation, error)
	// DetachVolume begins to detach a volume from a node.
	DetachVolume(ctx context.Context, v AttachedVolume, options DetachOptions, actualState ActualStateOfWorldAttacherUpdater) (*Operation, error)
	// VerifyVolumesAreAttached begins to ask whether volumes are still attached, to several nodes.
	VerifyVolumesAreAttached(ctx context.Context, volumesByNode map[types.NodeName][]AttachedVolume, actualState ActualStateOfWorldAttacherUpdater) ([]*Operation, error)
	// VerifyVolumesAreAttachedPerNode is VerifyVolumesAreAttached for one node.
	VerifyVolumesAreAttachedPerNode(ctx context.Context, volumes []AttachedVolume, nodeName types.NodeName, actualState ActualStateOfWorldAttacherUpdater) ([]*Operation, error)
	// VerifyControllerAttachedVolume begins to look whether the control plane has attached a volume to this node.
	VerifyControllerAttachedVolume(ctx context.Context, v VolumeToMount, nodeName types.NodeName, actualState ActualStateOfWorldAttacherUpdater) (*Operation, error)
	// MountVolume begins to stage a volume where that is needed and to set it up for a pod, or to map it.
	MountVolume(ctx context.Context, v VolumeToMount, options MountOptions, actualState ActualStateOfWorldMounterUpdater) (*Operation, error)
	// UnmountVolume begins to take a volume away from a pod.
	UnmountVolume(ctx context.Context, v MountedVolume, actualState ActualStateOfWorldMounterUpdater) (*Operation, error)
	// UnmountDevice begins to unstage a volume that no pod uses.
	UnmountDevice(ctx context.Context, v AttachedVolume, actualState ActualStateOfWorldMounterUpdater) (*Operation, error)
	// ExpandVolume begins to grow the storage of a volume, from the control plane.
	ExpandVolume(ctx context.Context, v VolumeToExpand) (*Operation, error)
	// ModifyVolume begins to give a volume the attributes of the class that its claim names, from the control plane.
	ModifyVolume(ctx context.Context, v VolumeToModify) (*Operation, error)
	// ExpandInUseVolume begins to grow a volume on the node that uses it.
	ExpandInUseVolume(ctx context.Context, v VolumeToMount, actualState ActualStateOfWorldMounterUpdater, currentSize resource.Quantity) (*Operation, error)
	// ReconstructVolume asks a plugin what a volume is that was found on disk.
	ReconstructVolume(ctx context.Context, v VolumeToReconstruct) (volume.ReconstructedVolume, error)
	// IsOperationPending reports whether an operation holds a key that meets key.
	IsOperationPending(key Key) bool
}

var _ OperationExecutor = (*Executor)(nil)
