package csidriver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// errNoTopology says that the topology of a node is unknown.
var errNoTopology = errors.New("the topology of the node is not known")

// topologyRequirement returns the required topologies of a new volume: those that the class allows, the node's first. Nil says that
// the driver may choose.
func (p *Plugin) topologyRequirement(ctx context.Context, f facts, node *v1.Node, allowed []v1.TopologySelectorTerm) (*csi.TopologyRequirement, error) {
	if !f.services[csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS] {
		if len(allowed) > 0 {
			return nil, fmt.Errorf("driver %q: the class has allowedTopologies, and the driver has no topology: %w", f.name, volume.ErrUnsupported)
		}
		return nil, nil
	}
	requisite := allowedSegments(allowed)
	if node == nil {
		return requirement(requisite, nil), nil
	}
	known, err := p.driverNode(ctx, f, types.NodeName(node.Name))
	if err != nil {
		return nil, err
	}
	own, err := segmentsOf(f.name, known.TopologyKeys, node)
	if err != nil {
		return nil, err
	}
	if len(requisite) == 0 {
		return requirement([]map[string]string{own}, own), nil
	}
	for _, segments := range requisite {
		if covers(segments, own) {
			return requirement(requisite, segments), nil
		}
	}
	return nil, fmt.Errorf("driver %q: node %q is in none of the topologies that the class allows: %w", f.name, node.Name, volume.ErrInfeasible)
}

// segmentsOf returns the topology of a node: its labels with the driver's keys.
func segmentsOf(driver string, keys []string, node *v1.Node) (map[string]string, error) {
	segments := map[string]string{}
	for _, key := range keys {
		value, ok := node.Labels[key]
		if !ok {
			return nil, volume.Transient(fmt.Errorf("driver %q: node %q has no label %q: %w", driver, node.Name, key, errNoTopology))
		}
		segments[key] = value
	}
	if len(segments) == 0 {
		return nil, volume.Transient(fmt.Errorf("driver %q: node %q: %w", driver, node.Name, errNoTopology))
	}
	return segments, nil
}

func requirement(requisite []map[string]string, preferred map[string]string) *csi.TopologyRequirement {
	if len(requisite) == 0 {
		return nil
	}
	r := &csi.TopologyRequirement{}
	for _, segments := range requisite {
		r.Requisite = append(r.Requisite, &csi.Topology{Segments: segments})
	}
	if preferred != nil {
		r.Preferred = append(r.Preferred, &csi.Topology{Segments: preferred})
	}
	for _, segments := range requisite {
		if preferred != nil && !maps.Equal(segments, preferred) {
			r.Preferred = append(r.Preferred, &csi.Topology{Segments: segments})
		}
	}
	return r
}

// allowedSegments returns every combination of values that the terms of a class allow.
func allowedSegments(allowed []v1.TopologySelectorTerm) []map[string]string {
	var all []map[string]string
	for _, term := range allowed {
		combined := []map[string]string{{}}
		for _, expression := range term.MatchLabelExpressions {
			var next []map[string]string
			for _, segments := range combined {
				for _, value := range expression.Values {
					more := maps.Clone(segments)
					more[expression.Key] = value
					next = append(next, more)
				}
			}
			combined = next
		}
		all = append(all, slices.DeleteFunc(combined, func(s map[string]string) bool { return len(s) == 0 })...)
	}
	return all
}

// covers reports whether one of segments has all labels of own.
func covers(segments, own map[string]string) bool {
	for key, value := range segments {
		if own[key] != value {
			return false
		}
	}
	return true
}

// nodeAffinity returns the nodes that can have a volume: those of one of the topologies. Nil says that all can.
func nodeAffinity(topologies []*csi.Topology) *v1.VolumeNodeAffinity {
	var terms []v1.NodeSelectorTerm
	for _, topology := range topologies {
		var term v1.NodeSelectorTerm
		for _, key := range slices.Sorted(maps.Keys(topology.GetSegments())) {
			term.MatchExpressions = append(term.MatchExpressions, v1.NodeSelectorRequirement{
				Key: key, Operator: v1.NodeSelectorOpIn, Values: []string{topology.GetSegments()[key]},
			})
		}
		if len(term.MatchExpressions) > 0 {
			terms = append(terms, term)
		}
	}
	if len(terms) == 0 {
		return nil
	}
	return &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: terms}}
}
