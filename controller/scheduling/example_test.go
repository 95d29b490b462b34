package scheduling_test

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/controller/scheduling"
	"github.com/volumekit/volumekit/store"
)

// The volume of the pod's claim is in zone a. The node of the other zone is refused, with the reason.
func ExampleScheduler_Find() {
	ctx, cancel := context.WithCancel(context.Background())
	objects := store.NewMemory(store.MemoryOptions{})
	for _, object := range []runtime.Object{zonedNode("node-a", "a"), zonedNode("node-b", "b"), zonedVolume("a"), claimOfVolume()} {
		if _, err := objects.Create(ctx, object); err != nil {
			fmt.Println(err)
		}
	}
	scheduler := scheduling.New(objects, scheduling.Options{})
	ended := make(chan error, 1)
	go func() { ended <- scheduler.Run(ctx) }()
	defer func() {
		cancel()
		<-ended
	}()
	scheduler.WaitSynced(ctx)

	result, err := scheduler.Find(&v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "pod-1"},
		Spec: v1.PodSpec{Volumes: []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}}}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for node := range result.Nodes() {
		fmt.Println("possible:", node)
	}
	fmt.Println("node-b:", result.Why("node-b"))
	// Output:
	// possible: node-a
	// node-b: pod "default/web" cannot run on node "node-b": volume "disk" of claim "default/data" cannot be used there: its node affinity excludes the node
}

func zonedNode(name, zone string) *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelTopologyZone: zone}}}
}

func zonedVolume(zone string) *v1.PersistentVolume {
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "disk"},
		Spec: v1.PersistentVolumeSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			ClaimRef:    &v1.ObjectReference{Namespace: "default", Name: "data", UID: "claim-1"},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
				Driver: "disk.example.com", VolumeHandle: "disk-7",
			}},
			NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
				MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelTopologyZone, Operator: v1.NodeSelectorOpIn, Values: []string{zone}}},
			}}}},
		},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeBound},
	}
}

func claimOfVolume() *v1.PersistentVolumeClaim {
	return &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "data", UID: "claim-1", Annotations: map[string]string{"pv.kubernetes.io/bind-completed": "yes"},
		},
		Spec:   v1.PersistentVolumeClaimSpec{VolumeName: "disk", AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}},
		Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound},
	}
}
