package world

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/volume"
)

// sizes has how far each volume was expanded. The world's lock guards it.
type sizes struct {
	// requested is the size that the control plane has added to each volume. expanded is the part of it that a node has.
	requested map[string]int
	expanded  map[At]int
	// promised is the value of requested when the last mount began; 0 if a node finds that the volume can never have that size.
	promised map[At]int
	// refused is the verdict by which a node need not expand a volume: never to this size, or not while it is used.
	refused map[string]string
}

// firstSize is the size of each volume at first. maxSize bounds what the control plane adds to it.
const firstSize, maxSize = 1, 4

// Size is a size as specs say it.
func Size(size int) resource.Quantity {
	return *resource.NewQuantity(int64(size)<<30, resource.BinarySI)
}

// RequiresFSResize implements volume.NodeExpandableVolumePlugin.
func (p *plugin) RequiresFSResize() bool { return true }

// NodeExpand implements volume.NodeExpandableVolumePlugin.
func (p *plugin) NodeExpand(ctx context.Context, options volume.NodeResizeOptions) (bool, error) {
	w, at := p.process.world, At{Node: p.process.node, Volume: options.VolumeSpec.Name()}
	added := int(options.NewSize.Value()>>30) - firstSize
	err := p.process.call(ctx, "NodeExpand", at, effect{apply: func() { w.expanded[at] = max(w.expanded[at], added) }})
	return err == nil, err
}

// offerExpansions offers to expand each volume.
func (o *offers) offerExpansions() {
	if _, ok := o.engines[o.nodes[0]].(Expander); !ok {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, v := range o.config.Volumes {
		if v.Expands && o.requested[v.Name] < maxSize {
			o.offer(verbExpand, v.Name)
		}
	}
}

// expand expands a volume as the control plane does.
func (w *World) expand(name string) bool {
	expander, ok := w.engines[w.nodes[0]].(Expander)
	if !ok || !w.volumes[name].Expands {
		return false
	}
	size := 0
	w.change(func() {
		w.requested[name]++
		size = firstSize + w.requested[name]
		if w.refused[name] == infeasible {
			delete(w.refused, name)
		}
	})
	expander.Expand(name, size)
	return true
}

// promise notes the size that a mount which begins has to have. The lock is held.
func (w *World) promise(at At) {
	w.promised[at] = w.requested[at.Volume]
	if w.refused[at.Volume] == infeasible {
		w.promised[at] = 0
	}
}

// refuse ends a call that expands a volume without an effect. The node need not try it again.
func (p *Process) refuse(e effect, verdict string) error {
	p.world.change(func() {
		p.world.refused[e.call.at.Volume] = verdict
		for at := range p.world.promised {
			if verdict == infeasible && at.Node == p.node && at.Volume == e.call.at.Volume {
				p.world.promised[at] = 0 // Its pod starts, whatever is requested next.
			}
		}
	})
	if verdict == refused {
		return fmt.Errorf("%s: %w: %w", e.call.label, volume.ErrInUse, errSimulated)
	}
	return fmt.Errorf("%s: %w: %w", e.call.label, volume.ErrInfeasible, errSimulated)
}

// isTooSmall reports whether a volume that expands has less than a size on a node, and the node need not refuse to expand it.
// The lock is held.
func (w *World) isTooSmall(at At, size int) bool {
	whole := At{Node: at.Node, Volume: at.Volume}
	return w.volumes[at.Volume].Expands && w.refused[at.Volume] == "" && w.expanded[whole] < size
}

// tooSmall returns a volume that was not expanded where a pod has it.
func (c convergence) tooSmall(mounted map[At]bool) error {
	for _, at := range sorted(mounted) {
		if c.isTooSmall(at, c.requested[at.Volume]) {
			return &RuleError{Rule: "L1", Text: at.String() + " has less than the size that was requested"}
		}
	}
	return nil
}
