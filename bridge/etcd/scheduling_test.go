package etcd_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/controller/scheduling"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// Two schedulers place one pod on two nodes at the same time.
func TestOfTwoSchedulersOneBindsThePod(t *testing.T) {
	c := newCluster(t)
	s := c.store(c.clientOf(), "/schedulers")
	modes, size := []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	class := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer),
	}
	objects := []store.Object{class}
	for _, node := range []string{"node-1", "node-2"} {
		objects = append(objects, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{v1.LabelHostname: node}}})
		for _, name := range []string{"a", "b"} {
			pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name + "-on-" + node}, Spec: v1.PersistentVolumeSpec{
				AccessModes: modes, Capacity: size, PersistentVolumeSource: v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: "/disks/" + name}},
			}}
			pv.Spec.StorageClassName = class.Name
			pv.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
				MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{node}}},
			}}}}
			objects = append(objects, pv)
		}
	}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "two"}}
	for _, name := range []string{"a", "b"} {
		objects = append(objects, &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: modes, StorageClassName: &class.Name, Resources: v1.VolumeResourceRequirements{Requests: size},
		}})
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		}})
	}
	for _, obj := range objects {
		_, err := s.Create(t.Context(), obj)
		require.NoError(t, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 3)
	host, err := volume.NewHost(volume.HostOptions{RootDir: t.TempDir(), NodeName: "controller"})
	require.NoError(t, err)
	controller := persistentvolume.New(volume.NewVolumePluginMgr(host), s, persistentvolume.Options{})
	options := scheduling.Options{BindTimeout: time.Minute}
	first, second := scheduling.New(s, options), scheduling.New(s, options)
	go func() { ended <- first.Run(ctx) }()
	go func() { ended <- second.Run(ctx) }()
	runs := 2
	t.Cleanup(func() {
		cancel()
		for range runs {
			require.NoError(t, <-ended)
		}
	})
	require.True(t, first.WaitSynced(ctx) && second.WaitSynced(ctx))

	one, err := first.Reserve(pod, "node-1")
	require.NoError(t, err)
	two, err := second.Reserve(pod, "node-2")
	require.NoError(t, err)
	bound := map[string]chan error{"node-1": make(chan error, 1), "node-2": make(chan error, 1)}
	for _, r := range []*scheduling.Reservation{one, two} {
		go func() { bound[r.Node()] <- r.Bind(ctx) }()
	}
	node := "node-1" // of the one that goes on
	select {
	case err = <-bound["node-1"]:
		node = "node-2"
	case err = <-bound["node-2"]:
	}
	require.ErrorIs(t, err, scheduling.ErrPlaceAnew)
	runs++
	go func() { ended <- controller.Run(ctx) }() // no earlier: it writes claims too, and a claim that has changed refuses both
	require.NoError(t, <-bound[node])
	for _, name := range []string{"a", "b"} {
		claim, err := store.Get[*v1.PersistentVolumeClaim](t.Context(), s, "default", name)
		require.NoError(t, err)
		pv, err := store.Get[*v1.PersistentVolume](t.Context(), s, "", claim.Spec.VolumeName)
		require.NoError(t, err)
		require.Equal(t, node, pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0])
	}
}
