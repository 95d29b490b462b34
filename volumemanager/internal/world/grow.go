package world

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/volume"
)

// firstSize is what each volume has at first, and maxSize the most that it is given.
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
	grown := int(options.NewSize.Value()>>30) - firstSize
	err := p.process.call(ctx, "NodeExpand", at, effect{apply: func() { w.grown[at] = max(w.grown[at], grown) }})
	return err == nil, err
}

// offerGrowth offers that the control plane gives a volume more.
func (o *offers) offerGrowth() {
	if _, ok := o.engines[o.nodes[0]].(Grower); !ok {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, v := range o.config.Volumes {
		if v.Grows && o.given[v.Name] < maxSize {
			o.offer(verbGrow, v.Name)
		}
	}
}

// grow is what the control plane does.
func (w *World) grow(name string) bool {
	grower, ok := w.engines[w.nodes[0]].(Grower)
	if !ok || !w.volumes[name].Grows {
		return false
	}
	size := 0
	w.change(func() {
		w.given[name]++
		size = firstSize + w.given[name]
		if w.refused[name] == infeasible {
			delete(w.refused, name)
		}
	})
	grower.Grow(name, size)
	return true
}

// refuse is how a call that lets a volume grow ends without an effect. What a node was refused it need not try again.
func (p *Process) refuse(e effect, verdict string) error {
	p.world.change(func() { p.world.refused[e.call.at.Volume] = verdict })
	if verdict == refused {
		return fmt.Errorf("%s: %w: %w", e.call.label, volume.ErrInUse, errSimulated)
	}
	return fmt.Errorf("%s: %w: %w", e.call.label, volume.ErrInfeasible, errSimulated)
}

// isSmall reports whether a volume is smaller where it is than it was to be. The lock is held.
func (w *World) isSmall(at At, given int) bool {
	whole := At{Node: at.Node, Volume: at.Volume}
	return w.volumes[at.Volume].Grows && w.refused[at.Volume] == "" && w.grown[whole] < given
}

// small returns a volume that has not grown where a pod has it.
func (c convergence) small(mounted map[At]bool) error {
	for _, at := range sorted(mounted) {
		if c.isSmall(at, c.given[at.Volume]) {
			return &RuleError{Rule: "L1", Text: at.String() + " has not the size that it was given"}
		}
	}
	return nil
}
