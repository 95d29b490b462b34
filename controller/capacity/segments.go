package capacity

import (
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/volume"
)

// segment is a part of the cluster: the labels that all of its nodes have. An empty segment is all nodes.
type segment map[string]string

// key returns a segment as text. Equal segments have the same key, because keys and values of labels have no comma.
func (s segment) key() string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(s)) {
		all = append(all, key+"="+s[key])
	}
	return strings.Join(all, ",")
}

// segmentsOf returns the segments of a plugin by their keys.
func (c *Controller) segmentsOf(plugin string) map[string]segment {
	all := map[string]segment{}
	if given, ok := c.options.Segments[plugin]; ok {
		for _, s := range given {
			all[segment(s).key()] = s
		}
		return all
	}
	driver := volume.DriverOfPluginName(plugin)
	for _, csiNode := range c.csiNodes.All() {
		for _, d := range csiNode.Spec.Drivers {
			if d.Name != driver {
				continue
			}
			if s, ok := c.segmentOf(csiNode, d.TopologyKeys); ok {
				all[s.key()] = s
			}
		}
	}
	return all
}

// segmentOf returns the segment of a node, and false if the node is gone or lacks one of the labels.
func (c *Controller) segmentOf(csiNode *storagev1.CSINode, keys []string) (segment, bool) {
	node, ok := c.nodes.Get(objects.Named(csiNode.Name))
	if !ok {
		return nil, false
	}
	s := segment{}
	for _, key := range keys {
		value, ok := node.Labels[key]
		if !ok {
			return nil, false
		}
		s[key] = value
	}
	return s, true
}

// mayHave reports whether a volume may have its storage in a segment. It is false only if each term of the volume's
// node affinity demands another value of one of the segment's labels.
func (s segment) mayHave(pv *v1.PersistentVolume) bool {
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil {
		return true
	}
	return slices.ContainsFunc(pv.Spec.NodeAffinity.Required.NodeSelectorTerms, func(term v1.NodeSelectorTerm) bool {
		return !slices.ContainsFunc(term.MatchExpressions, func(e v1.NodeSelectorRequirement) bool {
			value, has := s[e.Key]
			return has && e.Operator == v1.NodeSelectorOpIn && !slices.Contains(e.Values, value)
		})
	})
}
