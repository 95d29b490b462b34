package attachdetach_test

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// This file is the cluster whose pods are placed by schedulers: its nodes are in zones and attach few volumes, and its claims are
// restored from archives and change their classes of attributes.

var (
	zoneOfNode  = map[string]string{"n-1": "a", "n-2": "a", "n-3": "b"}
	zoneOfStock = map[string]string{"s-1": "a", "s-2": "b", "s-3": "a"}
	// limits is how many volumes a node can attach.
	limits = map[string]int{"n-1": 2, "n-2": 1, "n-3": 2}
	// claimKinds are the classes of claims by the beginnings of their names. A claim never has the name of an earlier one: a scheduler
	// that is late would take it for that one. Claims of the kinds filled are filled from an archive.
	claimKinds  = []string{"fast", "late", "late", "manual", "fast-filled", "late-filled"}
	newPodNames = []string{"p-1", "p-2", "p-3", "p-4", "p-5", "p-6"}
	// attributesOf are the classes of attributes. No volume can be "broken", and "missing" is never created.
	attributesOf = map[string]map[string]string{
		"gold": {fake.ParameterIOPS: "100", fake.ParameterTier: "g"}, "silver": {fake.ParameterIOPS: "50", fake.ParameterTier: "s"},
		"broken": {fake.ParameterTier: ""},
	}
	attributesNames = []string{"gold", "silver", "broken", "missing"}
)

const (
	mostClaims = 8
	archive    = "Archive"
)

// furnish makes what the cluster has from the beginning.
func (c *cluster) furnish(ctx context.Context) {
	for _, name := range nodeNames {
		count := int32(limits[name])
		c.make(ctx, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{
			Name: volume.DriverOfPluginName(fake.DefaultPluginName), NodeID: name, Allocatable: &storagev1.VolumeNodeResources{Count: &count},
		}}}})
	}
	for _, name := range attributesNames[:3] {
		c.make(ctx, &storagev1.VolumeAttributesClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, DriverName: volume.DriverOfPluginName(fake.DefaultPluginName), Parameters: attributesOf[name],
		})
	}
}

// mendClass gives the class that no volume could have attributes that all can: a volume that may have the first ones in part is given
// that class until it succeeds.
func (c *cluster) mendClass(ctx context.Context) {
	class, err := store.Get[*storagev1.VolumeAttributesClass](ctx, c.world, "", "broken")
	if err == nil {
		c.mended = map[string]string{fake.ParameterIOPS: "1", fake.ParameterTier: "m"}
		class.Parameters = c.mended
		_, err = store.Update(ctx, c.world, class)
	}
	c.note("class broken is mended: %v", err)
}

// attributes returns the attributes of a class.
func (c *cluster) attributes(class string) map[string]string {
	if class == "broken" && c.mended != nil {
		return c.mended
	}
	return attributesOf[class]
}

// tenants make pods and claims, want other sizes and attributes, and delete them.
func (c *cluster) tenants(ctx context.Context) {
	pod := newPodNames[c.luck(len(newPodNames))]
	switch luck := c.luck(30); {
	case luck < 6:
		c.makeClaim(ctx)
	case luck < 14:
		c.make(ctx, newPod(pod, "", c.someClaims(ctx)...))
	case luck < 16:
		c.make(ctx, newEphemeralPod("e-1", "", "late"))
	case luck < 20:
		c.remove(ctx, store.Key{Kind: store.Pods, Namespace: "default", Name: pod})
	case luck < 21:
		c.remove(ctx, store.Key{Kind: store.Pods, Namespace: "default", Name: "e-1"})
	case luck < 23:
		c.remove(ctx, store.Key{Kind: store.PersistentVolumeClaims, Namespace: "default", Name: c.someClaim(ctx)})
	case luck < 28:
		c.modify(ctx, c.someClaim(ctx), attributesNames[c.luck(len(attributesNames))])
	default:
		c.request(ctx, c.someClaim(ctx), []string{"1Gi", "2Gi", "3Gi", "20Gi"}[c.luck(4)])
	}
}

// makeClaim makes a claim under a new name.
func (c *cluster) makeClaim(ctx context.Context) {
	if len(all[*v1.PersistentVolumeClaim](ctx, c)) >= mostClaims {
		return
	}
	kind := claimKinds[c.luck(len(claimKinds))]
	class, filled := strings.CutSuffix(kind, "-filled")
	claim := newClaim(fmt.Sprintf("%s-%d", kind, c.uids), class)
	if filled {
		group := "example.com"
		claim.Spec.DataSourceRef = &v1.TypedObjectReference{APIGroup: &group, Kind: archive, Name: claim.Name}
	}
	if class != "manual" && c.luck(3) == 0 {
		claim.Spec.VolumeAttributesClassName = &attributesNames[c.luck(2)]
	}
	c.make(ctx, claim)
}

// someClaim returns the name of a claim, or one that no claim has.
func (c *cluster) someClaim(ctx context.Context) string {
	claims := all[*v1.PersistentVolumeClaim](ctx, c)
	if len(claims) == 0 {
		return "no-claim"
	}
	return claims[c.luck(len(claims))].Name
}

// someClaims returns one or two names of claims.
func (c *cluster) someClaims(ctx context.Context) []string {
	names := []string{c.someClaim(ctx)}
	if other := c.someClaim(ctx); other != names[0] && c.luck(3) == 0 {
		names = append(names, other)
	}
	return names
}

// modify asks for the attributes of another class.
func (c *cluster) modify(ctx context.Context, name, class string) {
	claim, err := store.Get[*v1.PersistentVolumeClaim](ctx, c.world, "default", name)
	if err != nil || claim.Status.Phase != v1.ClaimBound && *claim.Spec.StorageClassName == "manual" {
		return
	}
	claim.Spec.VolumeAttributesClassName = &class
	_, err = store.Update(ctx, c.world, claim)
	c.note("claim %s asks for the attributes of %s: %v", name, class, err)
}

// zoneFor returns the zone of a new volume: that of its node, or any. A volume that is there stays where it is.
func (c *cluster) zoneFor(handle string, node *v1.Node) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.zones[handle] != "" {
		return c.zones[handle]
	}
	hash := fnv.New32()
	_, _ = hash.Write([]byte(handle))
	zone := []string{"a", "b"}[hash.Sum32()%2]
	if node != nil {
		zone = zoneOfNode[node.Name]
	}
	c.zones[handle] = zone
	return zone
}

// inZone has a volume say where it is.
func inZone(pv *v1.PersistentVolume, zone string) {
	pv.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
		MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelTopologyZone, Operator: v1.NodeSelectorOpIn, Values: []string{zone}}},
	}}}}
}

// changing notes that a call changes a volume until done is called. The storage would mix two changes of one controller up.
func (c *cluster) changing(process, handle, what string) (done func()) {
	process, _, _ = strings.Cut(process, " ")
	key := process + " " + handle
	c.mu.Lock()
	other := c.changes[key]
	c.changes[key] = append(slices.Clone(other), what)
	c.mu.Unlock()
	if len(other) > 0 {
		c.violate("volume %s has two changes at once: %v and %s", handle, other, what)
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		i := slices.Index(c.changes[key], what)
		c.changes[key] = slices.Delete(c.changes[key], i, i+1)
	}
}

// ModifyVolume implements volume.ModifiableVolumePlugin.
func (s *storage) ModifyVolume(ctx context.Context, spec *volume.Spec, parameters map[string]string) error {
	c, handle := s.cluster, spec.PersistentVolume.Spec.CSI.VolumeHandle
	defer c.changing(s.process, handle, "modify")()
	if err := s.begin(ctx, fake.MethodModifyVolume, spec.Name()); err != nil {
		return err
	}
	if !slices.Contains(c.backend.Handles(), handle) {
		return fmt.Errorf("there is no volume %s", spec.Name())
	}
	err := s.Plugin.ModifyVolume(ctx, spec, parameters)
	c.note("modify %s to %v: %v", spec.Name(), parameters, err)
	if err == nil {
		c.count("modify")
		if c.luck(5) == 0 {
			return volume.Uncertain(errNetwork)
		}
	}
	return err
}
