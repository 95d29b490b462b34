package attachdetach_test

import (
	"context"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/volumekit/volumekit/store"
)

// number returns a number of the environment, or what it is without one.
func number(t *testing.T, name string, without uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return without
	}
	n, err := strconv.ParseUint(text, 10, 64)
	require.NoError(t, err, name)
	return n
}

// bugs are what is planted.
type bugs struct {
	// rare is one that some tens of seeds are needed for: only ./test.sh and ./test.sh simulation look for it.
	rare bool
	// finds is what the simulation says of it; "" is anything.
	finds string
	// unelected is the lease without which every process leads; "" is none.
	unelected string
	// noBind gives a pod its node before its claims are bound. twoExpanders has a second controller of sizes and attributes.
	noBind, twoExpanders bool
	// noFencing is storage that does not compare fencing tokens.
	noFencing bool
	// scheduled has the pods placed by schedulers, in a cluster with zones, limits, archives and classes of attributes.
	scheduled bool
	// part is what is changed: claims, attachments, growth or scheduling; "" means all. What it reads is what read makes of it, and
	// what that makes nil it does not see. What it writes is what write makes of it; nil is not written, and it does not know.
	part  string
	read  func(c *cluster, obj runtime.Object) runtime.Object
	write func(c *cluster, obj runtime.Object) runtime.Object
	// drop loses events.
	drop func(c *cluster, event store.Event) bool
}

// stops is the odds of a process that is stopped in a call, above those of other faults.
func (b bugs) stops() int {
	if b.noFencing {
		return 60
	}
	return 29
}

// view returns the store as a controller with a bug sees it.
func (b bugs) view(c *cluster, part string, s store.Store) store.Store {
	if b.part != "" && b.part != part || b.read == nil && b.write == nil && b.drop == nil {
		return s
	}
	return &tampered{Store: s, cluster: c, bugs: b}
}

type tampered struct {
	store.Store

	cluster *cluster
	bugs    bugs
}

func (s *tampered) seen(obj runtime.Object) runtime.Object {
	if s.bugs.read == nil {
		return obj
	}
	return s.bugs.read(s.cluster, obj)
}

func (s *tampered) Get(ctx context.Context, key store.Key) (runtime.Object, error) {
	obj, err := s.Store.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	if obj = s.seen(obj); obj == nil {
		return nil, store.ErrNotFound
	}
	return obj, nil
}

func (s *tampered) List(ctx context.Context, kind schema.GroupVersionKind, namespace string) (store.List, error) {
	list, err := s.Store.List(ctx, kind, namespace)
	items := list.Items
	list.Items = nil
	for _, obj := range items {
		if obj = s.seen(obj); obj != nil {
			list.Items = append(list.Items, obj)
		}
	}
	return list, err
}

func (s *tampered) Watch(ctx context.Context, kind schema.GroupVersionKind, namespace, version string) (<-chan store.Event, error) {
	events, err := s.Store.Watch(ctx, kind, namespace, version)
	if err != nil {
		return nil, err
	}
	return relay(ctx, events, func(event store.Event) (store.Event, bool) {
		if s.bugs.drop != nil && s.bugs.drop(s.cluster, event) {
			return event, false
		}
		event.Object = s.seen(event.Object)
		return event, event.Object != nil
	}), nil
}

func (s *tampered) Create(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	if changed := s.written(obj); changed != nil {
		return s.Store.Create(ctx, changed)
	}
	return obj, nil
}

func (s *tampered) Update(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	if changed := s.written(obj); changed != nil {
		return s.Store.Update(ctx, changed)
	}
	return obj, nil
}

func (s *tampered) written(obj runtime.Object) runtime.Object {
	if s.bugs.write == nil {
		return obj
	}
	return s.bugs.write(s.cluster, obj.DeepCopyObject())
}

// hide is a bug that does not see a kind of object.
func hide[T runtime.Object](_ *cluster, obj runtime.Object) runtime.Object {
	if _, hidden := obj.(T); hidden {
		return nil
	}
	return obj
}

// on is a bug that changes one kind of object.
func on[T runtime.Object](change func(c *cluster, obj T)) func(c *cluster, obj runtime.Object) runtime.Object {
	return func(c *cluster, obj runtime.Object) runtime.Object {
		if o, is := obj.(T); is {
			change(c, o)
		}
		return obj
	}
}

// planted are bugs as people make them, each as what it makes of what a controller reads or writes.
var planted = map[string]bugs{
	"two controllers at once":                           {rare: true, unelected: "volumes"},
	"storage does not refuse a leader that was stopped": {rare: true, noFencing: true},
	"a node's use does not count": {part: "attachments", write: on(tellsOnly), read: on(func(_ *cluster, node *v1.Node) {
		node.Status.VolumesInUse = nil
	})},
	"force detach of a healthy node": {part: "attachments", write: on(tellsOnly), read: on(func(_ *cluster, node *v1.Node) {
		for i := range node.Status.Conditions {
			node.Status.Conditions[i].Status = v1.ConditionUnknown
		}
	})},
	"force detach without a limit of time": {rare: true, part: "attachments", write: on(tellsOnly), read: on(func(_ *cluster, node *v1.Node) {
		if !isReady(node) {
			node.Spec.Taints = []v1.Taint{{Key: v1.TaintNodeOutOfService}}
		}
	})},
	"a node is not told before the detach": {rare: true, part: "attachments", write: on(func(c *cluster, node *v1.Node) {
		if now, err := store.Get[*v1.Node](context.Background(), c.memory, "", node.Name); err == nil && len(node.Status.VolumesAttached) < len(now.Status.VolumesAttached) {
			node.Status.VolumesAttached = now.Status.VolumesAttached
		}
	})},
	"attachments are not on record": {part: "attachments", write: func(_ *cluster, obj runtime.Object) runtime.Object {
		return hide[*storagev1.VolumeAttachment](nil, obj)
	}},
	"reclaims without looking at the node":       {part: "claims", read: hide[*storagev1.VolumeAttachment]},
	"lets claims go without looking at the pods": {rare: true, part: "claims", read: hide[*v1.Pod]},
	"a read that found nothing is believed":      {part: "claims", read: forgetful[*v1.PersistentVolumeClaim]},
	"binds without UID check":                    {rare: true, read: on(sameName)},
	"volumes are recycled without a look at claims": {part: "claims", read: on(func(_ *cluster, pv *v1.PersistentVolume) {
		if pv.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimRecycle && pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID != "" {
			pv.Spec.ClaimRef.UID = "older"
		}
	})},
	"provisioning is not on record": {rare: true, part: "claims", write: on(func(_ *cluster, claim *v1.PersistentVolumeClaim) {
		if claim.Spec.VolumeName == "" {
			claim.Finalizers = nil
		}
	})},
	"expand shrinks status": {part: "growth", write: on(func(_ *cluster, claim *v1.PersistentVolumeClaim) {
		claim.Status.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	})},
	"expand does not wait for the node": {part: "growth", write: on(func(_ *cluster, claim *v1.PersistentVolumeClaim) {
		if claim.Status.AllocatedResourceStatuses[v1.ResourceStorage] == v1.PersistentVolumeClaimNodeResizePending {
			claim.Status.Capacity = claim.Status.AllocatedResources
			claim.Status.AllocatedResourceStatuses = nil
		}
	})},
	"expand writes down nothing before": {part: "growth", write: on(func(_ *cluster, claim *v1.PersistentVolumeClaim) {
		claim.Status.AllocatedResources = nil
	})},
	"events are lost": {drop: func(*cluster, store.Event) bool { return true }},
}

// tellsOnly has a controller that sees what a node does not say write no more than what is attached.
func tellsOnly(c *cluster, node *v1.Node) {
	if now, err := store.Get[*v1.Node](context.Background(), c.memory, "", node.Name); err == nil {
		node.Spec, node.Status.Conditions, node.Status.VolumesInUse = now.Spec, now.Status.Conditions, now.Status.VolumesInUse
	}
}

// sameName makes a volume name the claim that has the name of its claim now.
func sameName(c *cluster, pv *v1.PersistentVolume) {
	if ref := pv.Spec.ClaimRef; ref != nil && ref.UID != "" {
		if now, err := store.Get[*v1.PersistentVolumeClaim](context.Background(), c.memory, ref.Namespace, ref.Name); err == nil {
			ref.UID = now.UID
		}
	}
}

// forgetful misses some.
func forgetful[T runtime.Object](c *cluster, obj runtime.Object) runtime.Object {
	if c.dice(3) == 0 {
		return hide[T](nil, obj)
	}
	return obj
}

// says reports whether anything has gone wrong that is described so.
func (c *cluster) says(what string) bool {
	return slices.ContainsFunc(c.violations, func(text string) bool { return strings.Contains(text, what) })
}

// A simulation that finds nothing is worth as much as the bugs that it would find. What a seed has found it finds again.
func TestTheSimulationFindsBugs(t *testing.T) {
	findsBugs(t, planted)
}

// findsBugs fails unless each bug is found.
func findsBugs(t *testing.T, planted map[string]bugs) {
	t.Helper()
	replays := number(t, "CLUSTER_REPLAYS", replaysByDefault)
	for _, name := range slices.Sorted(maps.Keys(planted)) {
		bug := planted[name]
		t.Run(name, func(t *testing.T) {
			if bug.rare && (raceDetector || os.Getenv("CLUSTER_SEEDS") == "") {
				t.Log("looked for where CLUSTER_SEEDS is set, without the race detector")
				return
			}
			for seed := range uint64(300) {
				found := simulate(t, seed, 250, bug)
				if !found.says(bug.finds) {
					continue
				}
				t.Logf("%s: seed %d: %s", name, seed, found.violations[0])
				for range replays {
					requireSameTrace(t, found, simulate(t, seed, 250, bug), "seed %d finds it again", seed)
				}
				return
			}
			t.Error("nothing was found")
		})
	}
}
