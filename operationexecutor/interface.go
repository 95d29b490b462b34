package operationexecutor

import (
	"context"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// OperationExecutor begins operations. [*Executor] implements it. Use this interface, or a smaller one of your own, if a test needs
// another implementation. The methods do the same as those of [Executor].
type OperationExecutor interface {
	// AttachVolume begins to attach a volume to a node.
	AttachVolume(ctx context.Context, v VolumeToAttach, actualState ActualStateOfWorldAttacherUpdater) (*Operation, error)
	// DetachVolume begins to detach a volume from a node.
	DetachVolume(ctx context.Context, v AttachedVolume, options DetachOptions, actualState ActualStateOfWorldAttacherUpdater) (*Operation, error)
	// VerifyVolumesAreAttached begins to check whether volumes of several nodes are still attached.
	VerifyVolumesAreAttached(ctx context.Context, volumesByNode map[types.NodeName][]AttachedVolume, actualState ActualStateOfWorldAttacherUpdater) ([]*Operation, error)
	// VerifyVolumesAreAttachedPerNode is VerifyVolumesAreAttached for one node.
	VerifyVolumesAreAttachedPerNode(ctx context.Context, volumes []AttachedVolume, nodeName types.NodeName, actualState ActualStateOfWorldAttacherUpdater) ([]*Operation, error)
	// VerifyControllerAttachedVolume begins to read whether the control plane has attached a volume to this node.
	VerifyControllerAttachedVolume(ctx context.Context, v VolumeToMount, nodeName types.NodeName, actualState ActualStateOfWorldAttacherUpdater) (*Operation, error)
	// MountVolume begins to stage a volume, if that is needed, and to set it up or map it for a pod.
	MountVolume(ctx context.Context, v VolumeToMount, options MountOptions, actualState ActualStateOfWorldMounterUpdater) (*Operation, error)
	// UnmountVolume begins to tear a volume down for a pod.
	UnmountVolume(ctx context.Context, v MountedVolume, actualState ActualStateOfWorldMounterUpdater) (*Operation, error)
	// UnmountDevice begins to unstage a volume that no pod uses.
	UnmountDevice(ctx context.Context, v AttachedVolume, actualState ActualStateOfWorldMounterUpdater) (*Operation, error)
	// ExpandVolume begins to expand the storage of a volume, in the control plane.
	ExpandVolume(ctx context.Context, v VolumeToExpand) (*Operation, error)
	// ModifyVolume begins to apply the attributes of the class that a volume's claim names, in the control plane.
	ModifyVolume(ctx context.Context, v VolumeToModify) (*Operation, error)
	// ExpandInUseVolume begins to expand a volume on the node that uses it.
	ExpandInUseVolume(ctx context.Context, v VolumeToMount, actualState ActualStateOfWorldMounterUpdater, currentSize resource.Quantity) (*Operation, error)
	// ReconstructVolume gets the spec of a volume that was found on disk from its plugin.
	ReconstructVolume(ctx context.Context, v VolumeToReconstruct) (volume.ReconstructedVolume, error)
	// IsOperationPending reports whether an operation holds a key that conflicts with key.
	IsOperationPending(key Key) bool
}

var _ OperationExecutor = (*Executor)(nil)
