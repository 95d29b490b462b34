package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	k8svolume "k8s.io/kubernetes/pkg/volume"
	k8sutil "k8s.io/kubernetes/pkg/volume/util"

	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// This file has the objects of a cluster: nodes, and pods that use claims, each bound to a volume of its own.

const namespace = "default"

// clusterSize says how large a cluster is: its attachments are spread evenly over its nodes.
type clusterSize struct{ nodes, attachments int }

func (s clusterSize) String() string {
	return fmt.Sprintf("nodes=%d/attachments=%d", s.nodes, s.attachments)
}

// spare is how many volumes with claims a cluster has beside those that are attached.
const spare = 64

// objects returns a cluster in which everything that is wanted is attached.
func (s clusterSize) objects() []runtime.Object {
	var objects []runtime.Object
	attached := make([][]v1.AttachedVolume, s.nodes)
	for i := range s.attachments + spare {
		objects = append(objects, boundVolume(i), boundClaim(i))
		if i < s.attachments {
			objects = append(objects, s.pod(i))
			attached[i%s.nodes] = append(attached[i%s.nodes], v1.AttachedVolume{Name: uniqueName(i), DevicePath: "/dev/x"})
		}
	}
	for i, volumes := range attached {
		objects = append(objects, &v1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name: nodeName(i), UID: types.UID(nodeName(i)), ResourceVersion: "1",
				Annotations: map[string]string{k8sutil.ControllerManagedAttachAnnotation: "true"},
			},
			Status: v1.NodeStatus{
				Conditions:      []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}},
				VolumesAttached: volumes,
			},
		})
	}
	return objects
}

func nodeName(i int) string   { return fmt.Sprintf("node-%d", i) }
func volumeName(i int) string { return fmt.Sprintf("volume-%d", i) }
func claimName(i int) string  { return fmt.Sprintf("claim-%d", i) }
func uniqueName(i int) v1.UniqueVolumeName {
	return v1.UniqueVolumeName(instantName + "/" + volumeName(i))
}
func capacityOf(size string) v1.ResourceList {
	return v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)}
}

// pod returns the pod that uses claim i.
func (s clusterSize) pod(i int) *v1.Pod {
	p := nodePod(i, 0)
	p.ResourceVersion = "1"
	p.Spec.NodeName = nodeName(i % s.nodes)
	p.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{
		PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claimName(i)},
	}}}
	p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "data", MountPath: "/data"}}
	return p
}

func boundVolume(i int) *v1.PersistentVolume {
	pv := freeVolume(volumeName(i), "", "1Gi")
	pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: namespace, Name: claimName(i), UID: types.UID(claimName(i))}
	pv.Status.Phase = v1.VolumeBound
	return pv
}

func freeVolume(name, class, size string) *v1.PersistentVolume {
	mode := v1.PersistentVolumeFilesystem
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: "1"},
		Spec: v1.PersistentVolumeSpec{
			Capacity: capacityOf(size), StorageClassName: class, VolumeMode: &mode,
			AccessModes:                   []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource:        v1.PersistentVolumeSource{RBD: &v1.RBDPersistentVolumeSource{RBDImage: name}},
		},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeAvailable},
	}
}

func boundClaim(i int) *v1.PersistentVolumeClaim {
	claim := freeClaim(claimName(i), "", "1Gi")
	claim.Spec.VolumeName = volumeName(i)
	claim.Status.Phase = v1.ClaimBound
	return claim
}

func freeClaim(name, class, size string) *v1.PersistentVolumeClaim {
	mode := v1.PersistentVolumeFilesystem
	return &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name), ResourceVersion: "1"},
		Spec: v1.PersistentVolumeClaimSpec{
			StorageClassName: &class, VolumeMode: &mode,
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources:   v1.VolumeResourceRequirements{Requests: capacityOf(size)},
		},
		Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending},
	}
}

// witness is told what happens, and tells who waits for one thing of it.
type witness struct{ attached, detached atomic.Pointer[expectation] }

// expectation is that something becomes of a volume.
type expectation struct {
	volume string
	node   string
	done   chan struct{}
}

func expect(of *atomic.Pointer[expectation], volume, node string) <-chan struct{} {
	e := &expectation{volume: volume, node: node, done: make(chan struct{})}
	of.Store(e)
	return e.done
}

// sawNode is told of every change of a node.
func (w *witness) sawNode(n *v1.Node) {
	e := w.attached.Load()
	if e == nil || e.node != n.Name {
		return
	}
	listed := slices.ContainsFunc(n.Status.VolumesAttached, func(at v1.AttachedVolume) bool { return strings.HasSuffix(string(at.Name), "/"+e.volume) })
	if listed && w.attached.CompareAndSwap(e, nil) {
		close(e.done)
	}
}

// sawDetach is told when a plugin is asked to detach.
func (w *witness) sawDetach(volume string) {
	e := w.detached.Load()
	if e != nil && e.volume == volume && w.detached.CompareAndSwap(e, nil) {
		close(e.done)
	}
}

// clusterK8s is instantK8s for PersistentVolumes.
type clusterK8s struct {
	instantK8s
	witness *witness
}

func (p *clusterK8s) NewAttacher() (k8svolume.Attacher, error) { return p, nil }
func (p *clusterK8s) NewDetacher() (k8svolume.Detacher, error) { return p, nil }
func (*clusterK8s) CanSupport(s *k8svolume.Spec) bool {
	return s.PersistentVolume != nil && s.PersistentVolume.Spec.RBD != nil
}
func (p *clusterK8s) Detach(name string, _ types.NodeName) error {
	p.witness.sawDetach(name)
	return nil
}

// clusterOurs is the same for us.
type clusterOurs struct {
	instantOurs
	witness *witness
}

func (p *clusterOurs) NewAttacher() (volume.Attacher, error) { return p, nil }
func (p *clusterOurs) NewDetacher() (volume.Detacher, error) { return p, nil }
func (*clusterOurs) CanSupport(s *volume.Spec) bool {
	return s.PersistentVolume != nil && s.PersistentVolume.Spec.RBD != nil
}
func (p *clusterOurs) Detach(_ context.Context, name string, _ types.NodeName) error {
	p.witness.sawDetach(name)
	return nil
}

// fillStore creates objects, which have a version for the fake client.
func fillStore(tb testing.TB, s store.Store, objects []runtime.Object) {
	for _, obj := range objects {
		createIn(tb, s, obj)
	}
}

func createIn(tb testing.TB, s store.Store, obj runtime.Object) {
	if o, ok := obj.(metav1.Object); ok {
		o.SetResourceVersion("")
	}
	_, err := s.Create(tb.Context(), obj)
	must(tb, err)
}
