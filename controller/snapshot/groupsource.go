package snapshot

import (
	"fmt"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// sourcesOfGroup returns the claims that a group is made of, by their names, and their volumes, which are all of one plugin.
func (c *groupSync) sourcesOfGroup(group *groupv1.VolumeGroupSnapshot) ([]*v1.PersistentVolumeClaim, []source, error) {
	selector, err := metav1.LabelSelectorAsSelector(group.Spec.Source.Selector)
	if err != nil {
		return nil, nil, fmt.Errorf("the selector of the group is malformed: %w", err)
	}
	var claims []*v1.PersistentVolumeClaim
	var sources []source
	for _, claim := range c.mirrors.claims.All() {
		if claim.Namespace != group.Namespace || !selector.Matches(labels.Set(claim.Labels)) {
			continue
		}
		from, err := c.sources.ofClaim(claim)
		if err != nil {
			return nil, nil, err
		}
		if len(sources) > 0 && from.plugin.GetPluginName() != sources[0].plugin.GetPluginName() {
			return nil, nil, fmt.Errorf("claim %q is one of plugin %q and claim %q one of plugin %q: select claims of one plugin",
				claim.Name, from.plugin.GetPluginName(), claims[0].Name, sources[0].plugin.GetPluginName())
		}
		claims, sources = append(claims, claim), append(sources, from)
	}
	if len(claims) == 0 {
		return nil, nil, fmt.Errorf("the selector %q selects no claim", selector)
	}
	if _, err := c.sources.plugins.mgr.FindGroupSnapshottablePluginByName(sources[0].plugin.GetPluginName()); err != nil {
		return nil, nil, &pluginError{fmt.Errorf("no group of snapshots can be made: %w", err)}
	}
	return claims, sources, nil
}

// classOf returns the class that a group names, and the default class for the driver of its volumes if it names none.
func (c *groupSync) classOf(group *groupv1.VolumeGroupSnapshot, pluginName string) (*groupv1.VolumeGroupSnapshotClass, error) {
	return classes[*groupv1.VolumeGroupSnapshotClass]{
		mirror: c.mirrors.groupClasses, kind: "group snapshot class", defaults: AnnDefaultGroupClass,
		driver: func(class *groupv1.VolumeGroupSnapshotClass) string { return class.Driver },
	}.find(group.Spec.VolumeGroupSnapshotClassName, pluginName)
}
