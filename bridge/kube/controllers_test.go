package kube_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/controller/attachdetach"
	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// noMounts is the mounter of a plugin that mounts nothing here.
type noMounts struct{ mount.Interface }

// testControllers runs the controllers over the store, through the life of one claim: provisioned, bound, attached to the node of its
// pod, detached, deleted.
func testControllers(t *testing.T, s store.Store) {
	backend := fake.NewBackend()
	runController(t, backend, func(ctx context.Context, plugins *volume.VolumePluginMgr) error {
		return persistentvolume.New(plugins, s, persistentvolume.Options{}).Run(ctx)
	})
	runController(t, backend, func(ctx context.Context, plugins *volume.VolumePluginMgr) error {
		return attachdetach.New(plugins, s, attachdetach.Options{VerifyPeriod: -1}).Run(ctx)
	})
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: fake.DefaultPluginName}
	node := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-1"},
		Status:     v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}},
	}
	claim, pod := newClaim("data", class.Name), newPod("web", node.Name, "data")
	for _, obj := range []store.Object{class, node, claim, pod} {
		_, err := s.Create(t.Context(), obj)
		require.NoError(t, err)
	}
	bound := await(t, s, claim, func(c *v1.PersistentVolumeClaim) bool { return c.Status.Phase == v1.ClaimBound })
	name := bound.Spec.VolumeName
	pv := await(t, s, newVolume(name), func(pv *v1.PersistentVolume) bool { return pv.Status.Phase == v1.VolumeBound })
	require.Equal(t, bound.UID, pv.Spec.ClaimRef.UID)
	await(t, s, node, func(n *v1.Node) bool {
		return len(n.Status.VolumesAttached) == 1 && n.Status.VolumesAttached[0].DevicePath != ""
	})
	records, _, err := store.ListOf[*storagev1.VolumeAttachment](t.Context(), s, "")
	require.NoError(t, err)
	record := records[len(records)-1]
	require.Equal(t, name, *record.Spec.Source.PersistentVolumeName)
	await(t, s, record, func(a *storagev1.VolumeAttachment) bool { return a.Status.Attached })

	inline := newPod("inline", node.Name, "")
	inline.Spec.Volumes = []v1.Volume{{Name: "scratch", VolumeSource: v1.VolumeSource{
		FlexVolume: &v1.FlexVolumeSource{Driver: fake.DefaultPluginName, Options: map[string]string{fake.ParameterHandle: "scratch"}},
	}}}
	_, err = s.Create(t.Context(), inline)
	require.NoError(t, err)
	await(t, s, node, func(n *v1.Node) bool { return len(n.Status.VolumesAttached) == 2 })

	for _, pod := range []*v1.Pod{pod, inline} {
		require.NoError(t, s.Delete(t.Context(), keyOf(t, pod), store.Preconditions{}))
	}
	await(t, s, node, func(n *v1.Node) bool { return len(n.Status.VolumesAttached) == 0 })
	awaitGone(t, s, record)
	require.NoError(t, s.Delete(t.Context(), keyOf(t, claim), store.Preconditions{}))
	awaitGone(t, s, pv)
	awaitGone(t, s, claim)
	require.Empty(t, backend.Nodes(pv.Spec.CSI.VolumeHandle))
}

// runController runs a controller until the test ends.
func runController(t *testing.T, backend *fake.Backend, run func(context.Context, *volume.VolumePluginMgr) error) {
	t.Helper()
	host, err := volume.NewHost(volume.HostOptions{RootDir: t.TempDir(), NodeName: "controller"})
	require.NoError(t, err)
	plugins := volume.NewVolumePluginMgr(host)
	require.NoError(t, plugins.InitPlugins(t.Context(), fake.NewPlugin(fake.PluginOptions{Mounter: noMounts{}, Backend: backend})))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, plugins) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
}

// await follows the kind of an object until the one of its name is as is wanted, and returns it.
func await[T store.Object](t *testing.T, s store.Store, of T, as func(T) bool) T {
	t.Helper()
	var last T
	follow(t, s, of, func(obj store.Object, err error) bool {
		last, _ = obj.(T)
		return err == nil && as(last)
	})
	return last
}

// awaitGone follows it until there is none of its name.
func awaitGone(t *testing.T, s store.Store, of store.Object) {
	t.Helper()
	follow(t, s, of, func(_ store.Object, err error) bool { return errors.Is(err, store.ErrNotFound) })
}

func follow(t *testing.T, s store.Store, of store.Object, done func(store.Object, error) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	key := keyOf(t, of)
	list, err := s.List(ctx, key.Kind, "")
	require.NoError(t, err)
	events, err := s.Watch(ctx, key.Kind, "", list.ResourceVersion)
	require.NoError(t, err)
	for {
		var obj store.Object
		found, err := s.Get(ctx, key)
		if err == nil {
			obj = found.(store.Object)
		}
		if done(obj, err) {
			return
		}
		select {
		case _, open := <-events:
			require.True(t, open, "the watch of %s ended: it is %v, %v", key, obj, err)
		case <-time.After(patience):
			t.Fatalf("%s stays as it is: %v, %v", key, obj, err)
		}
	}
}
