package reclaim

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/controller/internal/work"
	"github.com/volumekit/volumekit/controller/persistentvolume/internal/bind"
	"github.com/volumekit/volumekit/controller/persistentvolume/internal/inuse"
	"github.com/volumekit/volumekit/controller/persistentvolume/internal/storage"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/internal/backoff"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

type world struct {
	*Reclaimer

	store  store.Store
	plugin *fake.Plugin
	events *fake.Recorder
	users  *inuse.Tracker
}

func newWorld(t *testing.T) *world {
	t.Helper()
	host, err := volume.NewHost(volume.HostOptions{RootDir: t.TempDir(), NodeName: "n"})
	require.NoError(t, err)
	plugins := volume.NewVolumePluginMgr(host)
	plugin := fake.NewPlugin(fake.PluginOptions{Mounter: fake.NewMounter(fake.MounterOptions{})})
	require.NoError(t, plugins.InitPlugins(t.Context(), plugin))
	s, events := store.NewMemory(store.MemoryOptions{}), &fake.Recorder{}
	queue := work.New(backoff.Policy{})
	t.Cleanup(queue.Stop)
	claims := store.NewMirror[*v1.PersistentVolumeClaim](s, store.MirrorOptions{})
	volumes := store.NewMirror[*v1.PersistentVolume](s, store.MirrorOptions{})
	pods := store.NewMirror[*v1.Pod](s, store.MirrorOptions{})
	attachments := store.NewMirror[*storagev1.VolumeAttachment](s, store.MirrorOptions{})
	users := inuse.New(inuse.Options{
		Store: s, Plugins: plugins, Queue: queue, Claims: claims, Volumes: volumes, Pods: pods,
		VolumesIn: store.NewIndex(volumes, objects.StoragesAround),
		PodsOf:    store.NewIndex(pods, volume.ClaimsOfPod), Attachments: attachments,
		AttachmentsOf: store.NewIndex(attachments, func(at *storagev1.VolumeAttachment) []string { return []string{*at.Spec.Source.PersistentVolumeName} }),
	})
	return &world{
		Reclaimer: New(Options{
			Store: s, Claims: claims, Users: users, Plugins: plugins, Storage: storage.New(plugins, s, events, time.Minute),
			Binder: bind.New(s, claims, volumes, func(string) {}), Queue: queue, Events: events,
		}),
		store: s, plugin: plugin, events: events, users: users,
	}
}

// released makes a volume whose claim is gone, with storage.
func (w *world) released(t *testing.T, policy v1.PersistentVolumeReclaimPolicy) *v1.PersistentVolume {
	t.Helper()
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c", UID: "uid-c"},
		Spec: v1.PersistentVolumeClaimSpec{Resources: v1.VolumeResourceRequirements{
			Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")},
		}},
	}
	provisioner, err := w.plugin.NewProvisioner(volume.VolumeOptions{PVName: "v", PVC: claim})
	require.NoError(t, err)
	pv, err := provisioner.Provision(t.Context(), nil, nil)
	require.NoError(t, err)
	pv.UID, pv.Spec.PersistentVolumeReclaimPolicy, pv.Spec.ClaimRef = "uid-v", policy, objects.ClaimRef(claim)
	pv.Status.Phase = v1.VolumeBound
	made, err := store.Create(t.Context(), w.store, pv)
	require.NoError(t, err)
	return made
}

// reclaim reclaims a volume to the end: pods and volumes are read as a worker does.
func (w *world) reclaim(t *testing.T, pv *v1.PersistentVolume) error {
	t.Helper()
	require.ErrorIs(t, w.Reclaim(t.Context(), pv), work.ErrAwaited, "that no pod uses it is believed only of the store")
	require.NoError(t, w.users.ReadPods(t.Context(), "default"))
	if err := w.Reclaim(t.Context(), w.read(t)); !errors.Is(err, work.ErrAwaited) {
		return err
	}
	require.NoError(t, w.users.ReadVolumes(t.Context()))
	return w.Reclaim(t.Context(), w.read(t))
}

func (w *world) read(t *testing.T) *v1.PersistentVolume {
	t.Helper()
	pv, err := store.Get[*v1.PersistentVolume](t.Context(), w.store, "", "v")
	require.NoError(t, err)
	return pv
}

func TestDeleteDeletesTheStorageAndThenTheObject(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, w.reclaim(t, w.released(t, v1.PersistentVolumeReclaimDelete)))
	assert.Empty(t, w.plugin.Backend().Handles())
	_, err := store.Get[*v1.PersistentVolume](t.Context(), w.store, "", "v")
	require.ErrorIs(t, err, store.ErrNotFound)
}

func TestRetainLeavesEverything(t *testing.T) {
	for _, policy := range []v1.PersistentVolumeReclaimPolicy{v1.PersistentVolumeReclaimRetain, ""} {
		w := newWorld(t)
		require.NoError(t, w.Reclaim(t.Context(), w.released(t, policy)))
		assert.Len(t, w.plugin.Backend().Handles(), 1)
		assert.Equal(t, v1.VolumeReleased, w.read(t).Status.Phase)
	}
}

func TestAPolicyThatIsNotKnownNeedsAPerson(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, w.Reclaim(t.Context(), w.released(t, "Shred")))
	assert.Equal(t, v1.VolumeFailed, w.read(t).Status.Phase)
	require.Len(t, w.events.Events(), 1)
	assert.Equal(t, objects.ReasonVolumeUnknownReclaimPolicy, w.events.Events()[0].Reason)
	assert.Len(t, w.plugin.Backend().Handles(), 1)
}

// A volume is left whole while the store has a user of it, or its claim after all.
func TestWhatIsUsedIsLeftWhole(t *testing.T) {
	name := "v"
	for what, object := range map[string]store.Object{
		"pod": &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"},
			Spec: v1.PodSpec{Volumes: []v1.Volume{{Name: "d", VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c"},
			}}}},
		},
		"attachment": &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: "a"},
			Spec:       storagev1.VolumeAttachmentSpec{NodeName: "n", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &name}},
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			pv := w.released(t, v1.PersistentVolumeReclaimDelete)
			_, err := w.store.Create(t.Context(), object)
			require.NoError(t, err)
			require.ErrorIs(t, w.reclaim(t, pv), store.ErrConflict, "memory has not seen the user, so that it is looked at again")
			assert.Len(t, w.plugin.Backend().Handles(), 1)
			assert.Contains(t, w.read(t).Status.Message, "its claim is gone, but")
		})
	}
	t.Run("claim", func(t *testing.T) {
		w := newWorld(t)
		pv := w.released(t, v1.PersistentVolumeReclaimDelete)
		_, err := store.Create(t.Context(), w.store, &v1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c", UID: types.UID("uid-c")}, Spec: v1.PersistentVolumeClaimSpec{VolumeName: "v"},
		})
		require.NoError(t, err)
		require.ErrorIs(t, w.Reclaim(t.Context(), pv), store.ErrConflict)
		assert.Len(t, w.plugin.Backend().Handles(), 1)
	})
}
