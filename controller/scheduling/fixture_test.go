package scheduling

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/store"
)

// world is a store and a scheduler that follows it, in a bubble of synctest.
type world struct {
	t     *testing.T
	store store.Store
	s     *Scheduler
	stop  func()
}

// inWorld runs test in a bubble, with a world that holds objects.
func inWorld(t *testing.T, options Options, objects []store.Object, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, store: store.NewMemory(store.MemoryOptions{})}
		for _, obj := range objects {
			w.create(obj)
		}
		w.start(options)
		test(w)
		w.stop()
	})
}

// start runs a scheduler until the world stops.
func (w *world) start(options Options) {
	w.s = New(w.store, options)
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.s.Run(ctx) }()
	w.stop = func() {
		cancel()
		require.NoError(w.t, <-ended)
	}
	bounded, done := context.WithTimeout(ctx, time.Hour)
	defer done()
	require.True(w.t, w.s.WaitSynced(bounded))
	synctest.Wait()
}

func (w *world) create(obj store.Object) {
	w.t.Helper()
	_, err := w.store.Create(w.t.Context(), obj.DeepCopyObject())
	require.NoError(w.t, err)
}

func (w *world) delete(obj store.Object) {
	w.t.Helper()
	key, err := store.KeyOf(obj)
	require.NoError(w.t, err)
	require.NoError(w.t, w.store.Delete(w.t.Context(), key, store.Preconditions{}))
	synctest.Wait()
}

// change reads an object, changes it, writes it and waits until it is seen.
func change[T store.Object](w *world, obj T, f func(T)) T {
	w.t.Helper()
	now, err := store.Get[T](w.t.Context(), w.store, obj.GetNamespace(), obj.GetName())
	require.NoError(w.t, err)
	f(now)
	now, err = store.Update(w.t.Context(), w.store, now)
	require.NoError(w.t, err)
	synctest.Wait()
	return now
}

// requireFits fails unless the pod can have its volumes on these nodes and no others, and every other has a reason.
func (w *world) requireFits(p *v1.Pod, nodes ...string) *Result {
	w.t.Helper()
	result, err := w.s.Find(p)
	require.NoError(w.t, err)
	got := slices.Sorted(result.Nodes())
	slices.Sort(nodes)
	if len(nodes) == 0 {
		nodes = nil
	}
	require.Equal(w.t, nodes, got)
	for _, name := range result.names {
		if name != "" && !slices.Contains(nodes, name) {
			require.NotNil(w.t, result.Why(name))
			require.NotContains(w.t, result.Why(name).Error(), "Reason(")
		}
	}
	return result
}

// requireRefused fails unless the pod cannot have its volumes on a node, for this reason first.
func (w *world) requireRefused(p *v1.Pod, node string, reason Reason) *RefusalError {
	w.t.Helper()
	result, err := w.s.Find(p)
	require.NoError(w.t, err)
	why := result.Why(node)
	require.NotNil(w.t, why, "node %q fits", node)
	require.Equal(w.t, reason.String(), why.Reason.String(), why.Error())
	require.Zero(w.t, result.Score(node))
	return why
}

// requirePodError fails unless the pod as a whole is refused.
func (w *world) requirePodError(p *v1.Pod, reason Reason) *PodError {
	w.t.Helper()
	_, err := w.s.Find(p)
	var e *PodError
	require.ErrorAs(w.t, err, &e)
	require.Equal(w.t, reason.String(), e.Reason.String())
	return e
}

// reserve reserves what a pod needs on a node.
func (w *world) reserve(p *v1.Pod, node string) *Reservation {
	w.t.Helper()
	r, err := w.s.Reserve(p, node)
	require.NoError(w.t, err)
	return r
}

// objectsOf joins lists of objects.
func objectsOf(lists ...[]store.Object) []store.Object { return slices.Concat(lists...) }

func list(objects ...store.Object) []store.Object { return objects }

// threeNodes are node-1 and node-2 in zone a and node-3 in zone b.
func threeNodes() []store.Object {
	return list(
		newNode("node-1", "zone", "a"), newNode("node-2", "zone", "a"), newNode("node-3", "zone", "b"),
	)
}

func newNode(name string, labels ...string) *v1.Node {
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name}}}
	for i := 0; i < len(labels); i += 2 {
		node.Labels[labels[i]] = labels[i+1]
	}
	return node
}

func newPod(name string, claims ...string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}}
	for _, claim := range claims {
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: claim, VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}})
	}
	return p
}

// on puts a pod on a node.
func on(p *v1.Pod, node string) *v1.Pod {
	p.Spec.NodeName = node
	return p
}

func ptr[T any](v T) *T { return &v }

func size(s string) v1.ResourceList {
	return v1.ResourceList{v1.ResourceStorage: resource.MustParse(s)}
}

func newClaim(name string, change ...func(*v1.PersistentVolumeClaim)) *v1.PersistentVolumeClaim {
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec: v1.PersistentVolumeClaimSpec{
			AccessModes:      []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			StorageClassName: ptr("late"),
			Resources:        v1.VolumeResourceRequirements{Requests: size("1Gi")},
		},
	}
	for _, f := range change {
		f(claim)
	}
	return claim
}

func asks(s string) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) { c.Spec.Resources.Requests = size(s) }
}

func ofClass(name string) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) { c.Spec.StorageClassName = &name }
}

// attributes makes a claim name a VolumeAttributesClass.
func attributes(name string) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeAttributesClassName = &name }
}

func newAttributesClass(name, driver string) *storagev1.VolumeAttributesClass {
	return &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: name}, DriverName: driver}
}

func claimModes(m ...v1.PersistentVolumeAccessMode) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) { c.Spec.AccessModes = m }
}

func claimAnnotation(key, value string) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) { metav1.SetMetaDataAnnotation(&c.ObjectMeta, key, value) }
}

// boundTo makes a claim one that is bound.
func boundTo(volumeName string) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) {
		c.Spec.VolumeName = volumeName
		c.Status.Phase = v1.ClaimBound
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, objects.AnnBindCompleted, objects.Yes)
	}
}

func newVolume(name string, change ...func(*v1.PersistentVolume)) *v1.PersistentVolume {
	pv := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)},
		Spec: v1.PersistentVolumeSpec{
			AccessModes:      []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Capacity:         size("1Gi"),
			StorageClassName: "late",
			PersistentVolumeSource: v1.PersistentVolumeSource{
				CSI: &v1.CSIPersistentVolumeSource{Driver: "csi.example", VolumeHandle: name},
			},
		},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeAvailable},
	}
	for _, f := range change {
		f(pv)
	}
	return pv
}

func holding(s string) func(*v1.PersistentVolume) {
	return func(pv *v1.PersistentVolume) { pv.Spec.Capacity = size(s) }
}

func volumeClass(name string) func(*v1.PersistentVolume) {
	return func(pv *v1.PersistentVolume) { pv.Spec.StorageClassName = name }
}

func volumeModes(m ...v1.PersistentVolumeAccessMode) func(*v1.PersistentVolume) {
	return func(pv *v1.PersistentVolume) { pv.Spec.AccessModes = m }
}

func phase(p v1.PersistentVolumePhase) func(*v1.PersistentVolume) {
	return func(pv *v1.PersistentVolume) { pv.Status.Phase = p }
}

// refTo makes a volume name a claim; uid may be empty.
func refTo(name string, uid types.UID) func(*v1.PersistentVolume) {
	return func(pv *v1.PersistentVolume) {
		pv.Spec.ClaimRef = &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "default", Name: name, UID: uid}
	}
}

// at allows the nodes of which a label has one of the values.
func at(key string, values ...string) func(*v1.PersistentVolume) {
	return terms(v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{{Key: key, Operator: v1.NodeSelectorOpIn, Values: values}}})
}

func atNode(names ...string) func(*v1.PersistentVolume) { return at(v1.LabelHostname, names...) }

func terms(all ...v1.NodeSelectorTerm) func(*v1.PersistentVolume) {
	return func(pv *v1.PersistentVolume) {
		pv.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: all}}
	}
}

func newClass(name string, change ...func(*storagev1.StorageClass)) *storagev1.StorageClass {
	class := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: objects.NoProvisioner, VolumeBindingMode: ptr(storagev1.VolumeBindingWaitForFirstConsumer),
	}
	for _, f := range change {
		f(class)
	}
	return class
}

func makes(class *storagev1.StorageClass) { class.Provisioner = "csi.example" }
func immediate(class *storagev1.StorageClass) {
	class.VolumeBindingMode = ptr(storagev1.VolumeBindingImmediate)
}

func allows(key string, values ...string) func(*storagev1.StorageClass) {
	return func(class *storagev1.StorageClass) {
		class.AllowedTopologies = append(class.AllowedTopologies, v1.TopologySelectorTerm{
			MatchLabelExpressions: []v1.TopologySelectorLabelRequirement{{Key: key, Values: values}},
		})
	}
}

func newDriver(change ...func(*storagev1.CSIDriver)) *storagev1.CSIDriver {
	d := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "csi.example"}, Spec: storagev1.CSIDriverSpec{StorageCapacity: ptr(true)}}
	for _, f := range change {
		f(d)
	}
	return d
}

func newCapacity(name, capacity string, change ...func(*storagev1.CSIStorageCapacity)) *storagev1.CSIStorageCapacity {
	c := &storagev1.CSIStorageCapacity{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, StorageClassName: "made",
		NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{v1.LabelHostname: name}},
	}
	if capacity != "" {
		c.Capacity = ptr(resource.MustParse(capacity))
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func largest(s string) func(*storagev1.CSIStorageCapacity) {
	return func(c *storagev1.CSIStorageCapacity) { c.MaximumVolumeSize = ptr(resource.MustParse(s)) }
}

// segment makes a capacity that of the nodes with a label; without arguments of all nodes.
func segment(labels ...string) func(*storagev1.CSIStorageCapacity) {
	return func(c *storagev1.CSIStorageCapacity) {
		c.NodeTopology = &metav1.LabelSelector{}
		for i := 0; i < len(labels); i += 2 {
			metav1.AddLabelToSelector(c.NodeTopology, labels[i], labels[i+1])
		}
	}
}

// newCSINode says how many volumes of csi.example a node can have; none when limit is negative.
func newCSINode(name string, limit int32) *storagev1.CSINode {
	n := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	d := storagev1.CSINodeDriver{Name: "csi.example", NodeID: name}
	if limit >= 0 {
		d.Allocatable = &storagev1.VolumeNodeResources{Count: &limit}
	}
	n.Spec.Drivers = []storagev1.CSINodeDriver{d}
	return n
}

func newAttachment(name, volumeName, node string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.VolumeAttachmentSpec{
		Attacher: "csi.example", NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volumeName},
	}}
}

// bound returns a volume and the claim that is bound to it.
func bound(claim, pv string, change ...func(*v1.PersistentVolume)) []store.Object {
	return list(newClaim(claim, boundTo(pv)), newVolume(pv, append([]func(*v1.PersistentVolume){refTo(claim, types.UID("uid-"+claim)), phase(v1.VolumeBound)}, change...)...))
}
