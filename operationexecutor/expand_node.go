package operationexecutor

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/volume"
)

// nodeExpansion grows one volume on this node, while it is mounted or mapped for a pod or while it is in use.
type nodeExpansion struct {
	*generator
	x     *execution
	v     VolumeToMount
	state ActualStateOfWorldMounterUpdater
	// paths says where the volume is reached.
	paths volume.NodeResizeOptions

	plugin volume.NodeExpandableVolumePlugin
	// claim is the claim as it was read or written last.
	claim *v1.PersistentVolumeClaim
	// current is the size that the volume has here.
	current resource.Quantity
}

// duringMount grows a volume that was just set up or mapped for a pod, where it is smaller than its PersistentVolume. An
// error says that the pod must not start: it would find too little space. A volume that the plugin cannot grow while it is in
// use, or never, is left as it is, and the pod starts.
//
// The size that the volume has is that of the claim's status; that of the PersistentVolume is what it should have.
func (n *nodeExpansion) duringMount(ctx context.Context) error {
	if n.hasItsSize() {
		return nil
	}
	expands, err := n.prepare(ctx)
	if err != nil || !expands {
		return err
	}
	if n.claim, err = n.readClaim(ctx, n.x, n.v.VolumeSpec); err != nil {
		return err
	}
	n.current = claimSize(n.claim)
	if n.current.IsZero() {
		return nil // A claim that does not say what it has asks for nothing.
	}
	n.state.InitializeClaimSize(n.v.VolumeName, n.current)
	plan := n.plan()
	if plan.step == nodeNothing || plan.step == nodeWait {
		return nil // What the control plane has not asked for yet is grown in use.
	}
	err = n.do(ctx, plan)
	if errors.Is(err, volume.ErrInfeasible) && outcome.ClassOf(err) == Final {
		return nil // The volume is whole and has its former size. Only the control plane can ask for another one.
	}
	return err
}

// hasItsSize reports whether it is known, without a call of the plugin or the store, that the volume has its size on this node.
func (n *nodeExpansion) hasItsSize() bool {
	if !claimed(n.v.VolumeSpec) {
		return true
	}
	desired, known := n.desired(), n.state.GetClaimSize(n.v.VolumeName)
	return known.Cmp(desired) >= 0
}

// prepare finds the plugin, and reports whether the node has anything to do for such a volume at all.
func (n *nodeExpansion) prepare(ctx context.Context) (expands bool, err error) {
	if n.claims == nil || !claimed(n.v.VolumeSpec) || !n.plugins.Capabilities(n.x.pluginName()).Has(volume.CapNodeExpand) {
		return false, nil
	}
	spec := n.copyOf(n.x, n.v.VolumeSpec)
	n.plugin, err = find(ctx, n.x, func() (volume.NodeExpandableVolumePlugin, error) {
		return n.plugins.FindNodeExpandablePluginBySpec(spec)
	})
	if err != nil {
		return false, err
	}
	return construct(ctx, n.x, "RequiresFSResize", func() (bool, error) { return n.plugin.RequiresFSResize(), nil })
}

// plan chooses what is done.
func (n *nodeExpansion) plan() nodePlan {
	return planNode(nodeFacts{
		spec: n.v.VolumeSpec, claim: n.claim, desired: n.desired(), current: n.current,
		failedBefore: n.state.CheckVolumeInFailedExpansionWithFinalErrors(n.v.VolumeName),
	})
}

// desired is the size that the volume should have. The spec may be older than what the pod's volume was given since.
func (n *nodeExpansion) desired() resource.Quantity {
	size := n.v.VolumeSpec.PersistentVolume.Spec.Capacity[v1.ResourceStorage]
	if size.Cmp(n.v.DesiredPersistentVolumeSize) < 0 {
		return n.v.DesiredPersistentVolumeSize
	}
	return size
}

// do does what was chosen. It returns nil when the volume has its size, and when it cannot have it as long as it is used.
func (n *nodeExpansion) do(ctx context.Context, plan nodePlan) error {
	switch plan.step {
	case nodeReadOnly:
		n.eventOnPodAndClaim(v1.EventTypeWarning, reasonFileSystemResizeFailed, "volume %q is read-only here and is not expanded", n.v.VolumeSpec.Name())
		return nil // Another pod may have it writable.
	case nodeGrow:
		return n.grow(ctx, plan)
	case nodeNothing, nodeTake, nodeWait:
	}
	n.resized(plan)
	return nil
}

func (n *nodeExpansion) resized(plan nodePlan) {
	n.state.RemoveVolumeFromFailedWithFinalErrors(n.v.VolumeName)
	n.state.MarkVolumeAsResized(n.v.VolumeName, plan.target)
}

// grow writes down that the node is at it, calls the plugin, and writes down what became of it.
func (n *nodeExpansion) grow(ctx context.Context, plan nodePlan) error {
	if plan.recorded && !plan.updated {
		if err := n.mark(ctx, Expansion{Status: v1.PersistentVolumeClaimNodeResizeInProgress, Size: plan.target}); err != nil {
			return err
		}
	}
	err := n.call(ctx, plan)
	if err != nil {
		return n.failed(ctx, plan, err)
	}
	if err := n.finish(ctx, plan); err != nil {
		return err
	}
	n.resized(plan)
	n.eventOnPodAndClaim(v1.EventTypeNormal, reasonFileSystemResizeSuccessful, "volume %q has %s on this node", n.v.VolumeSpec.Name(), plan.target.String())
	return nil
}

// finish writes the new size, unless the claim has it and tells of no expansion. It never writes a smaller one.
func (n *nodeExpansion) finish(ctx context.Context, plan nodePlan) error {
	has := claimSize(n.claim)
	switch {
	case has.Cmp(plan.target) < 0:
		has = plan.target
	case plan.updated:
		return nil
	}
	return n.mark(ctx, Expansion{Size: has})
}

// call calls the plugin. That it did nothing and has no error is an error too, which may go away.
func (n *nodeExpansion) call(ctx context.Context, plan nodePlan) error {
	if err := n.checkRoot(ctx, n.x); err != nil {
		return volume.Transient(fmt.Errorf("nothing was begun: %w", err))
	}
	options, plugin := n.paths, n.plugin
	options.VolumeSpec, options.NewSize, options.OldSize = n.copyOf(n.x, n.v.VolumeSpec), plan.target, n.current
	c := n.x.changing("NodeExpand")
	c.timeout = n.x.executor.options.timeout(n.x.pluginName(), OpExpandInUse)
	done, err := perform(ctx, n.x, c, func(ctx context.Context) (bool, error) { return plugin.NodeExpand(ctx, options) })
	if err == nil && !done {
		return volume.Transient(fmt.Errorf("plugin %q says that the volume does not have %s yet", n.x.pluginName(), plan.target.String()))
	}
	return err
}

// failed decides what a failure of the plugin means.
func (n *nodeExpansion) failed(ctx context.Context, plan nodePlan, cause error) error {
	if outcome.ClassOf(cause) != Final {
		return cause
	}
	if errors.Is(cause, volume.ErrUnsupported) && (plan.updated || !plan.recorded) {
		n.resized(plan)
		return nil
	}
	n.eventOnPodAndClaim(v1.EventTypeWarning, ReasonVolumeResizeFailed, "expanding volume %q on this node failed: %v", n.v.VolumeSpec.Name(), cause)
	n.state.MarkVolumeExpansionFailedWithFinalError(n.v.VolumeName)
	inUse := errors.Is(cause, volume.ErrInUse)
	if inUse {
		n.state.MarkForInUseExpansionError(n.v.VolumeName)
	}
	if plan.recorded && !plan.updated {
		if err := n.mark(ctx, failedExpansion(plan, cause)); err != nil {
			cause = notWritten(cause, err)
		}
	}
	if inUse {
		return nil
	}
	return cause
}

// failedExpansion is what is written of a failure that is over: the node may try again when the volume is not in use, or
// at once, unless the size can never be met or the claim asks for another one by now.
func failedExpansion(plan nodePlan, cause error) Expansion {
	e := Expansion{Status: v1.PersistentVolumeClaimNodeResizeInProgress, Size: plan.target, Err: cause}
	switch {
	case errors.Is(cause, volume.ErrInfeasible), plan.changed:
		e.Status = v1.PersistentVolumeClaimNodeResizeInfeasible
	case errors.Is(cause, volume.ErrInUse):
		e.Status = v1.PersistentVolumeClaimNodeResizePending
	}
	return e
}

// mark writes how far the expansion has come, unless the claim says so.
func (n *nodeExpansion) mark(ctx context.Context, expansion Expansion) error {
	if expansion.Err == nil && expansion.Status != "" && resizeStatus(n.claim) == expansion.Status {
		return nil
	}
	claim, err := n.setExpansion(ctx, n.x, n.claim, expansion)
	if err == nil {
		n.claim = claim
	}
	return err
}

// eventOnPodAndClaim records an event on the pod and on the claim.
func (n *nodeExpansion) eventOnPodAndClaim(eventtype, reason, format string, args ...any) {
	n.event(podObject(n.v.Pod), eventtype, reason, format, args...)
	n.event(n.claim, eventtype, reason, format, args...)
}
