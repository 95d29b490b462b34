package volumemanager

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/retry"
)

var errStore = errors.New("the store cannot be reached")

// brokenStore is a store that cannot be reached until it is mended.
type brokenStore struct {
	store.Store
	mended atomic.Bool
	reads  atomic.Int64
}

func (b *brokenStore) Get(ctx context.Context, key store.Key) (runtime.Object, error) {
	b.reads.Add(1)
	if !b.mended.Load() {
		return nil, errStore
	}
	return b.Store.Get(ctx, key)
}

func (b *brokenStore) List(ctx context.Context, kind schema.GroupVersionKind, namespace string) (store.List, error) {
	if !b.mended.Load() {
		return store.List{}, errStore
	}
	return b.Store.List(ctx, kind, namespace)
}

func TestPodIsReadyWithTheChangeThatItsClaimWaitsFor(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		m := w.start()
		m.PodsComplete()
		pod := podOf("web", "data")
		require.NoError(t, m.AddPod(t.Context(), pod))
		phase := func() (Phase, error) {
			synctest.Wait()
			s := m.PodStatus(pod.UID)[0]
			return s.Phase, s.Err
		}
		began := time.Now()
		got, err := phase()
		assert.Equal(t, PhaseUnresolved, got)
		require.ErrorIs(t, err, store.ErrNotFound)

		pvc, _ := w.create(claimOfName("data")).(*v1.PersistentVolumeClaim)
		_, err = phase()
		require.ErrorContains(t, err, "not bound")
		w.bind("data")
		_, err = phase()
		require.ErrorContains(t, err, `PersistentVolume "pv-data"`)
		w.create(volumeOfClaim(pvc))
		got, err = phase()
		require.NoError(t, err)
		assert.Equal(t, PhaseMounted, got)
		assert.Zero(t, time.Since(began), "nothing waited for a clock")
	})
}

// TestTheStatusSaysSinceWhenAVolumeIsWantedAndResolved, whatever is changed of the pod after that.
func TestTheStatusSaysSinceWhenAVolumeIsWantedAndResolved(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		m := w.start()
		m.PodsComplete()
		pod := podOf("web", "data")
		wanted := time.Now()
		require.NoError(t, m.AddPod(t.Context(), pod))
		pass(time.Minute)
		s := m.PodStatus(pod.UID)[0]
		assert.Equal(t, wanted, s.WantedSince)
		assert.Zero(t, s.ResolvedSince)

		w.claim("data")
		resolved := time.Now()
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
		pass(time.Minute)
		require.NoError(t, m.UpdatePod(t.Context(), pod))
		s = m.PodStatus(pod.UID)[0]
		assert.Equal(t, wanted, s.WantedSince)
		assert.Equal(t, resolved, s.ResolvedSince)
	})
}

func TestClaimsThatAreNotThePodsOwnAreNotUsed(t *testing.T) {
	now := metav1.Now()
	cases := map[string]struct {
		pvc  func(*v1.PersistentVolumeClaim)
		pv   func(*v1.PersistentVolume)
		want string
	}{
		"other claim's volume": {pv: func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef.UID = "another" }, want: "another"},
		"an unbound volume":    {pv: func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef = nil }, want: "claimRef"},
		"not bound":            {pvc: func(pvc *v1.PersistentVolumeClaim) { pvc.Status.Phase = v1.ClaimLost }, want: "not bound"},
		"being deleted": {pvc: func(pvc *v1.PersistentVolumeClaim) {
			pvc.DeletionTimestamp, pvc.Finalizers = &now, []string{"example.com/other"}
		}, want: "being deleted"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			m := managerFor(t, storeOf(c.pvc, c.pv))
			pod := podOf("web", "data")
			require.NoError(t, m.AddPod(t.Context(), pod))
			err := m.PodStatus(pod.UID)[0].Err
			require.ErrorIs(t, err, ErrClaimNotReady)
			require.ErrorContains(t, err, c.want)
			assert.Empty(t, m.desired.GetVolumesToMount())
		})
	}
}

// managerFor returns a manager with a store.
func managerFor(t *testing.T, s store.Store) *Manager {
	t.Helper()
	w := newWorld(t, Options{})
	w.options.Store = s
	return w.prepare()
}

// storeOf returns a store that holds the claim "data" and its volume, changed.
func storeOf(changeClaim func(*v1.PersistentVolumeClaim), changeVolume func(*v1.PersistentVolume)) fixedStore {
	pvc := claimOfName("data")
	pvc.UID = "uid-data"
	pvc.Spec.VolumeName, pvc.Status.Phase = "pv-data", v1.ClaimBound
	pv := volumeOfClaim(pvc)
	if changeClaim != nil {
		changeClaim(pvc)
	}
	if changeVolume != nil {
		changeVolume(pv)
	}
	return fixedStore{
		{Kind: store.PersistentVolumeClaims, Namespace: "default", Name: pvc.Name}: pvc,
		{Kind: store.PersistentVolumes, Name: pv.Name}:                             pv,
	}
}

// fixedStore is a store that can only be read.
type fixedStore map[store.Key]runtime.Object

func (f fixedStore) Get(_ context.Context, key store.Key) (runtime.Object, error) {
	if obj, ok := f[key]; ok {
		return obj.DeepCopyObject(), nil
	}
	return nil, store.ErrNotFound
}

func (f fixedStore) Create(context.Context, runtime.Object) (runtime.Object, error) {
	return nil, errStore
}
func (f fixedStore) Update(context.Context, runtime.Object) (runtime.Object, error) {
	return nil, errStore
}
func (f fixedStore) Delete(context.Context, store.Key, store.Preconditions) error { return errStore }
func (f fixedStore) List(context.Context, schema.GroupVersionKind, string) (store.List, error) {
	return store.List{}, errStore
}
func (f fixedStore) Watch(context.Context, schema.GroupVersionKind, string, string) (<-chan store.Event, error) {
	return nil, errStore
}

func TestClaimIsResolved(t *testing.T) {
	now := metav1.Now()
	m := managerFor(t, storeOf(func(pvc *v1.PersistentVolumeClaim) {
		pvc.DeletionTimestamp, pvc.Finalizers = &now, []string{"kubernetes.io/pvc-protection"}
	}, func(pv *v1.PersistentVolume) { pv.Annotations = map[string]string{"pv.beta.kubernetes.io/gid": "7"} }))
	require.NoError(t, m.AddPod(t.Context(), podOf("web", "data:ro")))
	wanted := m.desired.GetVolumesToMount()
	require.Len(t, wanted, 1, "a claim that is kept for its pods can be used")
	assert.Equal(t, "pv-data", wanted[0].VolumeSpec.Name())
	assert.True(t, wanted[0].VolumeSpec.ReadOnly)
	assert.Equal(t, "7", wanted[0].VolumeGidValue)
	assert.Equal(t, v1.UniqueVolumeName(testPluginName+"/disk-data"), wanted[0].VolumeName)
}

func TestTheVolumeModeMustBeWhatContainersUse(t *testing.T) {
	block, filesystem, none := v1.PersistentVolumeBlock, v1.PersistentVolumeFilesystem, v1.PersistentVolumeMode("Tape")
	cases := map[string]struct {
		claim, volume *v1.PersistentVolumeMode
		change        func(*v1.Pod)
		want          error
		says          string
	}{
		"mounted filesystem":    {&filesystem, nil, nil, nil, ""},
		"mounted by default":    {nil, nil, nil, nil, ""},
		"mapped device":         {&block, &block, asDevice, nil, ""},
		"mounted device":        {&block, &block, nil, volume.ErrInvalid, `"pv-data" has volumeMode Block, but container "main" mounts it`},
		"mapped filesystem":     {nil, &filesystem, asDevice, volume.ErrInvalid, `"pv-data" has volumeMode Filesystem, but container "main" uses it as a device`},
		"mapped by default":     {nil, nil, asDevice, volume.ErrInvalid, "volumeMode Filesystem"},
		"no mode that there is": {nil, &none, nil, volume.ErrInvalid, "Tape"},
		"claim of another mode": {&filesystem, &block, asDevice, ErrClaimNotReady, "do not have the same volumeMode"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			m := managerFor(t, storeOf(func(pvc *v1.PersistentVolumeClaim) { pvc.Spec.VolumeMode = c.claim },
				func(pv *v1.PersistentVolume) { pv.Spec.VolumeMode = c.volume }))
			pod := podOf("web", "data")
			if c.change != nil {
				c.change(pod)
			}
			err := m.AddPod(t.Context(), pod)
			assert.Equal(t, errors.Is(c.want, volume.ErrInvalid), err != nil, "what only the caller can mend is an error")
			if err == nil {
				err = m.PodStatus(pod.UID)[0].Err
			}
			if c.want == nil {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, c.want)
			require.ErrorContains(t, err, c.says)
		})
	}
}

func TestEphemeralClaimMustBelongToItsPod(t *testing.T) {
	pod := podOf("web", "-scratch")
	pod.Spec.Volumes[0].VolumeSource = v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}
	for _, owner := range []types.UID{pod.UID, "another"} {
		claims := storeOf(nil, nil)
		key := store.Key{Kind: store.PersistentVolumeClaims, Namespace: "default", Name: "data"}
		pvc, _ := claims[key].(*v1.PersistentVolumeClaim)
		pvc.Name = "web-scratch"
		controller := true
		pvc.OwnerReferences = []metav1.OwnerReference{{UID: owner, Controller: &controller}}
		key.Name = "web-scratch"
		claims[key] = pvc
		m := managerFor(t, claims)
		require.NoError(t, m.AddPod(t.Context(), pod))
		err := m.PodStatus(pod.UID)[0].Err
		if owner == pod.UID {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, ErrClaimNotReady)
		}
	}
}

func TestStoreThatCannotBeReadIsReadAgain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.claim("data")
		broken := &brokenStore{Store: w.store}
		w.options.Store = broken
		m := w.start()
		pod := podOf("web", "data")
		require.NoError(t, m.AddPod(t.Context(), pod))
		pass(10 * time.Minute)
		assert.Less(t, broken.reads.Load(), int64(25), "and not too often")
		require.ErrorIs(t, m.PodStatus(pod.UID)[0].Err, errStore)
		broken.mended.Store(true)
		began := time.Now()
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
		assert.LessOrEqual(t, time.Since(began), retry.Last)
	})
}

func TestVolumeStaysWhenItsClaimIsGone(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.claim("data")
		m := w.start()
		m.PodsComplete()
		pod := podOf("web", "data")
		w.add(pod)
		require.NoError(t, w.store.Delete(t.Context(), store.Key{Kind: store.PersistentVolumeClaims, Namespace: "default", Name: "data"}, store.Preconditions{}))
		require.NoError(t, m.UpdatePod(t.Context(), pod))
		pass(24 * time.Hour)
		assert.Len(t, w.mounts(), 2)
		status := m.PodStatus(pod.UID)[0]
		assert.Equal(t, PhaseMounted, status.Phase)
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
		w.remove(pod)
		w.isClean()
	})
}

func TestTwoNamesForOneClaim(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.claim("data")
		m := w.start()
		m.PodsComplete()
		pod := podOf("web", "data", "again:ro")
		pod.Spec.Volumes[1].PersistentVolumeClaim.ClaimName = "data"
		w.add(pod)
		volumes := m.GetMountedVolumesForPod(volume.GetUniquePodName(pod))
		assert.Equal(t, volumes["data"].Path, volumes["again"].Path)
		require.NoError(t, w.mounter.WriteFile(volumes["data"].Path+"/f", nil, 0o644), "one of the names is writable")
		assert.False(t, volumes["data"].ReadOnly)
		assert.True(t, volumes["again"].ReadOnly)
		w.remove(pod)
		w.isClean()
	})
}

func TestNothingIsSwappedUnderAPodThatRuns(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.claim("data")
		w.claim("other")
		m := w.start()
		m.PodsComplete()
		pod := podOf("web", "data")
		w.add(pod)
		before := m.GetMountedVolumesForPod(volume.GetUniquePodName(pod))["data"].Volume
		w.changeClaim("data", func(pvc *v1.PersistentVolumeClaim) { pvc.Spec.VolumeName = "pv-other" })
		pv, err := store.Get[*v1.PersistentVolume](t.Context(), w.store, "", "pv-other")
		require.NoError(t, err)
		pvc, err := store.Get[*v1.PersistentVolumeClaim](t.Context(), w.store, "default", "data")
		require.NoError(t, err)
		pv.Spec.ClaimRef.UID = pvc.UID
		_, err = w.store.Update(t.Context(), pv)
		require.NoError(t, err)

		require.NoError(t, m.UpdatePod(t.Context(), pod))
		pass(time.Hour)
		status := m.PodStatus(pod.UID)
		require.Len(t, status, 1)
		assert.Equal(t, before, status[0].Volume)
		assert.Equal(t, PhaseMounted, status[0].Phase)
		require.ErrorIs(t, status[0].Err, ErrClaimNotReady)

		pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = "other"
		pv.Spec.ClaimRef.UID = "another"
		mounts := w.mounts()
		require.NoError(t, m.UpdatePod(t.Context(), pod))
		synctest.Wait()
		assert.Equal(t, PhaseUnresolved, m.PodStatus(pod.UID)[0].Phase, "the pod does not have what it asks for")
		assert.Equal(t, mounts, w.mounts(), "the other claim cannot be used, so what was there stays")
	})
}

func TestAddPodChangesNothingWhenItsContextEnds(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		m := w.start()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, m.AddPod(ctx, podOf("web", "-scratch")), context.Canceled)
		synctest.Wait()
		assert.Empty(t, m.Status().Volumes)
		assert.Empty(t, w.mounts())
	})
}

// hookedStore calls a function before each read.
type hookedStore struct {
	store.Store
	reading func()
}

func (h *hookedStore) Get(ctx context.Context, key store.Key) (runtime.Object, error) {
	if h.reading != nil {
		h.reading()
	}
	return h.Store.Get(ctx, key)
}

// TestAPodThatIsRemovedWhileItIsUpdatedStaysAway: the program would not remove it a second time.
func TestAPodThatIsRemovedWhileItIsUpdatedStaysAway(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.claim("data")
		hooked := &hookedStore{Store: w.store}
		w.options.Store = hooked
		m := w.start()
		m.PodsComplete()
		pod := podOf("web", "data")
		w.add(pod)
		hooked.reading = func() { assert.NoError(t, m.RemovePod(pod.UID)) }
		require.ErrorIs(t, m.UpdatePod(t.Context(), pod), volume.ErrInvalid)
		w.isClean()
		assert.Empty(t, m.populator.Waiting(), "no pod waits for its claims")
	})
}

// TestNoPodWaitsForClaimsAfterItWasRemovedWhileTheyWereRead: otherwise each change of a claim resolves the removed pod.
func TestNoPodWaitsForClaimsAfterItWasRemovedWhileTheyWereRead(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		hooked := &hookedStore{Store: w.store}
		w.options.Store = hooked
		m := w.start()
		pod := podOf("web", "data", "more")
		require.NoError(t, m.AddPod(t.Context(), pod))
		synctest.Wait()
		require.NotEmpty(t, m.populator.Waiting())
		hooked.reading = sync.OnceFunc(func() { assert.NoError(t, m.RemovePod(pod.UID)) })
		m.populator.Recheck()
		synctest.Wait()
		assert.Empty(t, m.populator.Waiting())
	})
}

// fickleStore ends every watch after one event.
type fickleStore struct {
	store.Store
	lists atomic.Int64
}

func (f *fickleStore) List(ctx context.Context, kind schema.GroupVersionKind, namespace string) (store.List, error) {
	f.lists.Add(1)
	return f.Store.List(ctx, kind, namespace)
}

func (f *fickleStore) Watch(context.Context, schema.GroupVersionKind, string, string) (<-chan store.Event, error) {
	events := make(chan store.Event, 1)
	events <- store.Event{Object: claimOfName("any")}
	close(events)
	return events, nil
}

func TestAWatchThatEndsAgainAndAgainIsNoHotLoop(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		fickle := &fickleStore{Store: w.store}
		w.options.Store = fickle
		w.start()
		pass(time.Minute)
		assert.InDelta(t, 2*60, fickle.lists.Load(), 20)
	})
}
