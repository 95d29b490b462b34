package operationexecutor

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/volume"
)

// ExpandVolume begins to expand the storage of a volume to the size that its claim requests, on the control plane. The
// claim's status records the progress before and after the plugin is called, so an interrupted expansion continues there.
// An expansion that is infeasible is dropped when the claim requests less. If there is nothing to do, ExpandVolume succeeds
// at once. The error matches volume.ErrInfeasible if the plugin says that the size is impossible.
func (e *Executor) ExpandVolume(ctx context.Context, v VolumeToExpand) (*Operation, error) {
	return e.begin(ctx, Key{Volume: v.VolumeName}, e.generator.GenerateExpandVolumeFunc(v))
}

// expanding is one expansion by the control plane.
type expanding struct {
	*generator
	x *execution
	v VolumeToExpand

	plugin volume.ExpandableVolumePlugin
	// resizesFS says that a node must expand the filesystem after the storage.
	resizesFS bool
	// claim is the claim as it was last read or written; nil before that.
	claim *v1.PersistentVolumeClaim
}

// GenerateExpandVolumeFunc implements [OperationGenerator].
func (g *generator) GenerateExpandVolumeFunc(v VolumeToExpand) *Operation {
	info := OperationInfo{Kind: OpExpand, PluginName: v.PluginName, VolumeName: v.VolumeName}
	return newOperation(info, &expanding{generator: g, v: v})
}

// ended writes an event when the operation failed.
func (e *expanding) ended(err error) error {
	if err != nil {
		e.event(e.object(), v1.EventTypeWarning, ReasonVolumeResizeFailed, "expanding volume %q failed: %v", e.v.VolumeSpec.Name(), err)
	}
	return err
}

func (e *expanding) run(ctx context.Context, x *execution) (err error) {
	e.x = x
	if err := e.prepare(ctx); err != nil {
		return err
	}
	if e.claim, err = e.readClaim(ctx, e.x, e.v.VolumeSpec); err != nil {
		return err
	}
	switch plan := planControl(e.claim, e.capacityOf()); plan.step {
	case controlExpand:
		return e.expand(ctx, plan.target)
	case controlNodeAgain:
		return e.finish(ctx, plan.target)
	case controlNothing:
	}
	return nil
}

// prepare finds the plugin and refuses volumes that cannot be expanded.
func (e *expanding) prepare(ctx context.Context) (err error) {
	if e.claims == nil || e.capacity == nil {
		return errors.New("an expansion cannot be written down: give GeneratorOptions Claims and Capacity")
	}
	if !claimed(e.v.VolumeSpec) {
		return fmt.Errorf("volume %q is no PersistentVolume with a claim, and so cannot be expanded: %w", e.v.VolumeSpec.Name(), volume.ErrUnsupported)
	}
	spec := e.copyOf(e.x, e.v.VolumeSpec)
	e.plugin, err = find(ctx, e.x, func() (volume.ExpandableVolumePlugin, error) {
		return e.plugins.FindExpandablePluginBySpec(spec)
	})
	if err != nil {
		return err
	}
	e.resizesFS, err = construct(ctx, e.x, "RequiresFSResize", func() (bool, error) { return e.plugin.RequiresFSResize(), nil })
	return err
}

// expand records the expansion in the claim, expands the storage, and records the result.
func (e *expanding) expand(ctx context.Context, target resource.Quantity) error {
	if err := e.mark(ctx, Expansion{Status: v1.PersistentVolumeClaimControllerResizeInProgress, Size: target}); err != nil {
		return err
	}
	spec, current := e.copyOf(e.x, e.v.VolumeSpec), claimSize(e.claim)
	size, err := perform(ctx, e.x, e.x.changing("ExpandVolumeDevice"), func(ctx context.Context) (resource.Quantity, error) {
		return e.plugin.ExpandVolumeDevice(ctx, spec, target, current)
	})
	if err == nil && size.Cmp(target) < 0 {
		err = fmt.Errorf("plugin %q expanded the volume to %s, which is less than %s: %w", e.x.pluginName(), size.String(), target.String(), volume.ErrInvalid)
	}
	if err != nil {
		return e.failed(ctx, target, err)
	}
	if capacity := e.capacityOf(); capacity.Cmp(size) < 0 {
		if err := e.setCapacity(ctx, size); err != nil {
			return err
		}
	}
	return e.finish(ctx, size)
}

// failed records a final failure in the claim. An expansion that may have happened, or did not begin, keeps its record and
// is resumed.
func (e *expanding) failed(ctx context.Context, target resource.Quantity, cause error) error {
	if outcome.ClassOf(cause) != Final {
		return cause
	}
	failed := Expansion{Status: v1.PersistentVolumeClaimControllerResizeInProgress, Size: target, Err: cause}
	if errors.Is(cause, volume.ErrInfeasible) {
		failed.Status = v1.PersistentVolumeClaimControllerResizeInfeasible
	}
	if err := e.mark(ctx, failed); err != nil {
		return notWritten(cause, err)
	}
	return cause
}

// notWritten returns cause, whose class it keeps, with the error of writing it to the claim.
func notWritten(cause, err error) error {
	return fmt.Errorf("%w (and this could not be written down: %s)", cause, err.Error())
}

func (e *expanding) setCapacity(ctx context.Context, size resource.Quantity) error {
	return e.x.port(ctx, "SetCapacity", func(ctx context.Context) error {
		if _, err := e.capacity.SetCapacity(ctx, e.v.VolumeSpec.PersistentVolume, size); err != nil {
			return volume.Transient(fmt.Errorf("the capacity of PersistentVolume %q could not be written: %w", e.v.VolumeSpec.Name(), err))
		}
		return nil
	})
}

// finish records that the storage has its size. If the filesystem must grow too, it records that a node has to continue.
func (e *expanding) finish(ctx context.Context, size resource.Quantity) error {
	filesystem, err := volume.CheckVolumeModeFilesystem(e.v.VolumeSpec)
	if err != nil {
		return err
	}
	if filesystem && e.resizesFS {
		if err := e.mark(ctx, Expansion{Status: v1.PersistentVolumeClaimNodeResizePending, Size: size}); err != nil {
			return err
		}
		e.event(e.object(), v1.EventTypeNormal, reasonFileSystemResizeRequired, "the storage of volume %q has %s; a node has to go on",
			e.v.VolumeSpec.Name(), size.String())
		return nil
	}
	if err := e.mark(ctx, Expansion{Size: size}); err != nil {
		return err
	}
	e.event(e.object(), v1.EventTypeNormal, reasonVolumeResizeSuccessful, "volume %q has %s", e.v.VolumeSpec.Name(), size.String())
	return nil
}

// mark writes the progress of the expansion to the claim.
func (e *expanding) mark(ctx context.Context, expansion Expansion) error {
	claim, err := e.setExpansion(ctx, e.x, e.claim, expansion)
	if err == nil {
		e.claim = claim
	}
	return err
}

// capacityOf returns the size of the PersistentVolume.
func (e *expanding) capacityOf() resource.Quantity {
	return e.v.VolumeSpec.PersistentVolume.Spec.Capacity[v1.ResourceStorage]
}

// object returns the object of the events: the claim, or the PersistentVolume until the claim is read.
func (e *expanding) object() runtime.Object {
	if e.claim == nil {
		return volumeObject(e.v.VolumeSpec)
	}
	return e.claim
}
