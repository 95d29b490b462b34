package scheduling_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/controller/scheduling"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// noMounts is the mounter of a plugin that mounts nothing here.
type noMounts struct{ mount.Interface }

func (noMounts) IsMountPoint(context.Context, string) (bool, error) { return false, nil }

// A pod with three claims, two for existing volumes and one for a new one, is placed with the persistent volume controller.
func TestThePersistentVolumeControllerBindsWhatIsReserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host, err := volume.NewHost(volume.HostOptions{RootDir: t.TempDir(), NodeName: "node-1"})
		require.NoError(t, err)
		plugins := volume.NewVolumePluginMgr(host)
		require.NoError(t, plugins.InitPlugins(t.Context(), fake.NewPlugin(fake.PluginOptions{Mounter: noMounts{}})))
		objects := store.NewMemory(store.MemoryOptions{})
		late := storagev1.VolumeBindingWaitForFirstConsumer
		size := v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
		create := func(obj store.Object) {
			_, err := objects.Create(t.Context(), obj)
			require.NoError(t, err)
		}
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "web"}}
		for _, name := range []string{"one", "two", "new"} {
			class := map[bool]string{true: "made", false: "local"}[name == "new"]
			create(&v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: v1.PersistentVolumeClaimSpec{
				StorageClassName: &class, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, Resources: v1.VolumeResourceRequirements{Requests: size},
			}})
			pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name},
			}})
		}
		create(pod)
		create(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: &late})
		create(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "made"}, Provisioner: fake.DefaultPluginName, VolumeBindingMode: &late})
		for node, volumes := range map[string][]string{"node-1": {"a"}, "node-2": {"b", "c"}} {
			create(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{v1.LabelHostname: node}}})
			for _, name := range volumes {
				create(&v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PersistentVolumeSpec{
					StorageClassName: "local", AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, Capacity: size,
					PersistentVolumeSource: v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: "/disks/" + name}},
					NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
						MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{node}}},
					}}}},
				}})
			}
		}

		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 2)
		controller, s := persistentvolume.New(plugins, objects, persistentvolume.Options{}), scheduling.New(objects, scheduling.Options{})
		go func() { ended <- controller.Run(ctx) }()
		go func() { ended <- s.Run(ctx) }()
		require.True(t, s.WaitSynced(ctx))
		synctest.Wait()

		result, err := s.Find(pod)
		require.NoError(t, err)
		require.Nil(t, result.Why("node-2"))
		require.ErrorContains(t, result.Why("node-1"), "no available volume fits claim")
		reservation, err := s.Reserve(pod, "node-2")
		require.NoError(t, err)
		require.NoError(t, reservation.Bind(ctx))
		for _, name := range []string{"one", "two", "new"} {
			claim, err := store.Get[*v1.PersistentVolumeClaim](ctx, objects, "default", name)
			require.NoError(t, err)
			assert.Equal(t, v1.ClaimBound, claim.Status.Phase)
			if name != "new" {
				assert.Contains(t, []string{"b", "c"}, claim.Spec.VolumeName)
			}
		}
		synctest.Wait()
		result, err = s.Find(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "other"}, Spec: pod.Spec})
		require.NoError(t, err)
		require.Equal(t, scheduling.NodeAffinity, result.Why("node-1").Reasons[0])

		cancel()
		require.NoError(t, <-ended)
		require.NoError(t, <-ended)
	})
}
