package snapshot

import (
	"fmt"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/volume"
)

// sourcesOfGroup returns the claims that a group is made of, by their names, and their volumes, which are all of one plugin.
func (c *Controller) sourcesOfGroup(group *groupv1.VolumeGroupSnapshot) ([]*v1.PersistentVolumeClaim, []source, error) {
	selector, err := metav1.LabelSelectorAsSelector(group.Spec.Source.Selector)
	if err != nil {
		return nil, nil, fmt.Errorf("the selector of the group is malformed: %w", err)
	}
	var claims []*v1.PersistentVolumeClaim
	var sources []source
	for _, claim := range c.seen.claims.All() {
		if claim.Namespace != group.Namespace || !selector.Matches(labels.Set(claim.Labels)) {
			continue
		}
		from, err := c.sourceOfClaim(claim)
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
	if _, err := c.plugins.mgr.FindGroupSnapshottablePluginByName(sources[0].plugin.GetPluginName()); err != nil {
		return nil, nil, &pluginError{fmt.Errorf("no group of snapshots can be made: %w", err)}
	}
	return claims, sources, nil
}

// groupClassOf returns the class that a group names, and the default class for the driver of its volumes if it names none.
func (c *Controller) groupClassOf(group *groupv1.VolumeGroupSnapshot, pluginName string) (*groupv1.VolumeGroupSnapshotClass, error) {
	if name := group.Spec.VolumeGroupSnapshotClassName; name != nil {
		class, ok := c.seen.groupClasses.Get(objects.Named(*name))
		if !ok {
			return nil, fmt.Errorf("group snapshot class %q does not exist: create it, or name another", *name)
		}
		if !volume.IsDriverOfPlugin(class.Driver, pluginName) {
			return nil, fmt.Errorf("group snapshot class %q is for driver %q, and the volumes are those of plugin %q: name a class of that plugin",
				*name, class.Driver, pluginName)
		}
		return class, nil
	}
	var found []*groupv1.VolumeGroupSnapshotClass
	for _, class := range c.seen.groupClasses.All() {
		if class.Annotations[AnnDefaultGroupClass] == "true" && volume.IsDriverOfPlugin(class.Driver, pluginName) {
			found = append(found, class)
		}
	}
	switch len(found) {
	case 0:
		return nil, fmt.Errorf("the group names no class, and plugin %q has no default group snapshot class: name a class", pluginName)
	case 1:
		return found[0], nil
	}
	return nil, fmt.Errorf("%d group snapshot classes of plugin %q are the default, %q and %q among them: name one, or unmark all others",
		len(found), pluginName, found[0].Name, found[1].Name)
}
