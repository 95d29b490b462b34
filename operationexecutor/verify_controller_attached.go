package operationexecutor

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// The reasons of a [MountPreconditionError].
var (
	// ErrNotReportedAttached says that the node's status does not list the volume as attached.
	ErrNotReportedAttached = errors.New("the node's status does not list the volume as attached yet")
	// ErrNotReportedInUse says that the node's status does not list the volume as in use.
	ErrNotReportedInUse = errors.New("the node's status does not list the volume as in use yet")
)

// MountPreconditionError says that the volume cannot be mounted before the node's status changes. If a method returns it before an
// operation began, that is no failure and causes no back-off: try again when the node's status has changed.
type MountPreconditionError struct {
	// Volume is the volume.
	Volume v1.UniqueVolumeName
	// Node is the node.
	Node types.NodeName
	// Err is what is missing: ErrNotReportedAttached or ErrNotReportedInUse.
	Err error
}

// Error names the volume, the node and what is missing.
func (e *MountPreconditionError) Error() string {
	return fmt.Sprintf("volume %q cannot be mounted on node %q: %v", e.Volume, e.Node, e.Err)
}

// Unwrap returns what is missing.
func (e *MountPreconditionError) Unwrap() error { return e.Err }

// VerifyControllerAttachedVolume begins to read from the node's status that v is attached to this node, and the path of its device. It
// is for nodes whose volumes a controller attaches. A volume that needs no attachment counts as attached. The error is a
// [*MountPreconditionError] if the node's status is known not to list the volume yet.
func (e *Executor) VerifyControllerAttachedVolume(ctx context.Context, v VolumeToMount, nodeName types.NodeName, actualState ActualStateOfWorldAttacherUpdater) (*Operation, error) {
	op, err := e.generator.GenerateVerifyControllerAttachedVolumeFunc(v, nodeName, actualState)
	if err != nil {
		return nil, err
	}
	return e.begin(ctx, Key{Volume: v.VolumeName}, op)
}

// verifyingController is one operation that reads from the node's status whether a controller has attached a volume.
type verifyingController struct {
	*generator
	x     *execution
	v     VolumeToMount
	node  types.NodeName
	state ActualStateOfWorldAttacherUpdater
}

// GenerateVerifyControllerAttachedVolumeFunc implements [OperationGenerator].
func (g *generator) GenerateVerifyControllerAttachedVolumeFunc(v VolumeToMount, nodeName types.NodeName, actualState ActualStateOfWorldAttacherUpdater) (*Operation, error) {
	if err := g.checkReported(v, nodeName); err != nil {
		return nil, err
	}
	info := OperationInfo{Kind: OpVerifyControllerAttached, PluginName: v.PluginName, VolumeName: v.VolumeName, NodeName: nodeName}
	return newOperation(info, &verifyingController{generator: g, v: v, node: nodeName, state: actualState}), nil
}

// checkReported returns an error if the operation cannot succeed yet. It does no I/O.
func (g *generator) checkReported(v VolumeToMount, nodeName types.NodeName) error {
	if !v.PluginIsAttachable {
		return nil
	}
	missing := &MountPreconditionError{Volume: v.VolumeName, Node: nodeName}
	if cache, ok := g.nodeReader.(NodeStatusCache); ok {
		attached, seen := cache.LastVolumesAttached(nodeName)
		if _, listed := attached[v.VolumeName]; seen && !listed {
			missing.Err = ErrNotReportedAttached
			return missing
		}
	}
	if !v.ReportedInUse {
		missing.Err = ErrNotReportedInUse
		return missing
	}
	return nil
}

func (c *verifyingController) run(ctx context.Context, x *execution) error {
	c.x = x
	devicePath, err := c.devicePath(ctx)
	if err != nil {
		return err
	}
	size, err := c.claimSize(ctx)
	if err != nil {
		return err
	}
	if err := c.state.MarkVolumeAsAttached(c.v.VolumeName, c.v.VolumeSpec, c.node, devicePath); err != nil {
		return err
	}
	if sizes, ok := c.state.(ClaimSizes); ok && !size.IsZero() {
		sizes.InitializeClaimSize(c.v.VolumeName, size)
	}
	return nil
}

// devicePath returns the path of the device in the node's status, which it reads from the store and not from a cache. It is empty for
// a volume that needs no attachment.
func (c *verifyingController) devicePath(ctx context.Context) (devicePath string, err error) {
	if !c.v.PluginIsAttachable {
		return "", nil
	}
	if c.nodeReader == nil {
		return "", errors.New("what is attached to the node cannot be asked: give GeneratorOptions a NodeReader")
	}
	err = c.x.port(ctx, "VolumesAttached", func(ctx context.Context) error {
		attached, err := c.nodeReader.VolumesAttached(ctx, c.node)
		if err != nil {
			return volume.Transient(fmt.Errorf("what is attached to node %q is not known: %w", c.node, err))
		}
		path, listed := attached[c.v.VolumeName]
		if !listed {
			return volume.Transient(&MountPreconditionError{Volume: c.v.VolumeName, Node: c.node, Err: ErrNotReportedAttached})
		}
		devicePath = path
		return nil
	})
	return devicePath, err
}

// claimSize returns the size of the volume's claim, from which an expansion on this node starts. It is zero if the size is known
// already, if there is no claim, or if the state does not keep sizes.
func (c *verifyingController) claimSize(ctx context.Context) (size resource.Quantity, err error) {
	sizes, ok := c.state.(ClaimSizes)
	if !ok || c.claims == nil || !claimed(c.v.VolumeSpec) {
		return size, nil
	}
	if known := sizes.GetClaimSize(c.v.VolumeName); !known.IsZero() {
		return size, nil
	}
	claim, err := c.readClaim(ctx, c.x, c.v.VolumeSpec)
	if err != nil {
		return size, err
	}
	return claimSize(claim), nil
}
