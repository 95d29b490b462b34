package persistentvolume

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// mounts is what a node has mounted.
type mounts struct {
	mu   sync.Mutex
	err  error // what is known; nil when nothing is mounted
	free chan struct{}
}

func newMounts(err error) *mounts { return &mounts{err: err, free: make(chan struct{})} }

func (m *mounts) WaitForVolumeUnused(ctx context.Context, _ *v1.PersistentVolume) error {
	m.mu.Lock()
	err := m.err
	m.mu.Unlock()
	if err == nil || ctx.Err() != nil {
		return err
	}
	select {
	case <-m.free:
		return nil
	case <-ctx.Done():
		return err
	}
}

// unmount takes everything away.
func (m *mounts) unmount() {
	m.mu.Lock()
	m.err = nil
	m.mu.Unlock()
	close(m.free)
}

func usedByPodOf(name string) error {
	return &volume.NotReadyError{Awaited: "unused", Volumes: []volume.NotReadyVolume{{
		Volume: "v", Phase: "mounted", PodName: types.NamespacedName{Namespace: "default", Name: name},
	}}}
}

// What is mounted protects claim and volume also where the store has no pod, and where what is mounted is not known. They go at
// once when nothing is mounted any more.
func TestWhatIsMountedIsNotDeleted(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		says string
	}{
		"by a pod": {usedByPodOf("p"), `pod "default/p" has it mounted`},
		"staged":   {&volume.NotReadyError{Volumes: []volume.NotReadyVolume{{Volume: "v"}}}, "its node has not let go of it yet"},
		"unknown":  {errors.New("nothing is known yet"), "nothing is known yet"},
	} {
		for _, how := range []v1.PersistentVolumeReclaimPolicy{v1.PersistentVolumeReclaimDelete, v1.PersistentVolumeReclaimRecycle} {
			t.Run(name+", "+string(how), func(t *testing.T) {
				torn := newVolume("b", refTo("gone", "uid-gone"), policy(how))
				inWorld(t, objectList{newClaim("c"), newVolume("a", policy(how)), torn}, func(t *testing.T, w *world) {
					node := newMounts(c.err)
					w.start(w.store, Options{Mounts: node})
					idle()
					w.delete(newClaim("c"))
					sleepUntilIdle()
					w.requireBound("c", "a")
					assert.Zero(t, w.calls(fake.MethodDelete)+w.calls(fake.MethodRecycle))
					assert.Equal(t, v1.VolumeReleased, w.volume("b").Status.Phase)
					assert.Contains(t, w.volume("b").Status.Message, c.says)
					node.unmount()
					idle()
					assert.False(t, w.has(newClaim("c")))
					assert.Equal(t, 2, w.calls(fake.MethodDelete)+w.calls(fake.MethodRecycle))
				})
			})
		}
	}
}

// failingMounts fails each wait at once, as a manager does that has ended.
type failingMounts struct {
	mu    sync.Mutex
	asked int
	left  int
}

func (m *failingMounts) WaitForVolumeUnused(context.Context, *v1.PersistentVolume) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked++
	if m.left--; m.left < 0 {
		return nil
	}
	return errors.New("no longer known")
}

func (m *failingMounts) timesAsked() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.asked
}

// A report that cannot be had is asked for again, after a while.
func TestAReportOfMountsThatFailsIsAskedForAgain(t *testing.T) {
	inWorld(t, objectList{newVolume("a", refTo("c", "uid-c"), policy(v1.PersistentVolumeReclaimDelete))}, func(t *testing.T, w *world) {
		node := &failingMounts{left: 10}
		w.start(w.store, Options{Mounts: node})
		time.Sleep(time.Minute)
		assert.True(t, w.has(newVolume("a")))
		assert.Less(t, node.timesAsked(), 8)
		sleepUntilIdle()
		w.requireNoVolume("a")
	})
}

// A volume that a node's status lists as in use is not reclaimed, though nothing says that it is attached.
func TestAVolumeThatANodeListsAsInUseIsNotReclaimed(t *testing.T) {
	pv := newVolume("a", refTo("c", "uid-c"), policy(v1.PersistentVolumeReclaimDelete))
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	node.Status.VolumesInUse = []v1.UniqueVolumeName{"example.com/other/a", fake.DefaultPluginName + "/a"}
	inWorld(t, objectList{pv, node}, func(t *testing.T, w *world) {
		w.settle()
		sleepUntilIdle()
		assert.Zero(t, w.calls(fake.MethodDelete))
		assert.Contains(t, w.volume("a").Status.Message, `node "n"`)
		assert.Len(t, w.reasons(), 1, "it is told once")
		now, err := store.Get[*v1.Node](t.Context(), w.store, "", "n")
		require.NoError(t, err)
		now.Status.VolumesInUse = now.Status.VolumesInUse[:1]
		_, err = store.Update(t.Context(), w.store, now)
		require.NoError(t, err)
		sleepUntilIdle()
		w.requireNoVolume("a")
	})
}

// A list that another program than the node has emptied does not count.
func TestAVolumeThatANodeMayUseIsNotReclaimed(t *testing.T) {
	pv := newVolume("a", refTo("c", "uid-c"), policy(v1.PersistentVolumeReclaimDelete))
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: map[string]string{store.AnnVolumesInUseOf: ""}}}
	inWorld(t, objectList{pv, node}, func(t *testing.T, w *world) {
		w.settle()
		sleepUntilIdle()
		assert.Zero(t, w.calls(fake.MethodDelete))
		assert.Contains(t, w.volume("a").Status.Message, `node "n"`)
		now, err := store.Get[*v1.Node](t.Context(), w.store, "", "n")
		require.NoError(t, err)
		now.Annotations[store.AnnVolumesInUseOf] = string(now.UID)
		_, err = store.Update(t.Context(), w.store, now)
		require.NoError(t, err)
		sleepUntilIdle()
		w.requireNoVolume("a")
	})
}

// unlisted cannot list one kind, but for the first time, which is a mirror's.
type unlisted struct {
	store.Store

	kind schema.GroupVersionKind
	mu   sync.Mutex
	read bool
}

func (s *unlisted) List(ctx context.Context, kind schema.GroupVersionKind, namespace string) (store.List, error) {
	s.mu.Lock()
	fails := kind == s.kind && (s.read || kind == store.Nodes)
	s.read = s.read || kind == s.kind
	s.mu.Unlock()
	if fails {
		return store.List{}, errors.New("the store is away")
	}
	return s.Store.List(ctx, kind, namespace)
}

// A volume is not used when the store says so: that it cannot be asked says nothing.
func TestNothingIsDeletedWhileItsUsersCannotBeRead(t *testing.T) {
	for _, kind := range []schema.GroupVersionKind{store.Pods, store.VolumeAttachments, store.Nodes, store.PersistentVolumes} {
		t.Run(kind.Kind, func(t *testing.T) {
			torn := newVolume("a", refTo("c", "uid-c"), policy(v1.PersistentVolumeReclaimDelete))
			inWorld(t, objectList{torn}, func(t *testing.T, w *world) {
				w.start(&unlisted{Store: w.store, kind: kind}, Options{})
				sleepUntilIdle()
				assert.Zero(t, w.calls(fake.MethodDelete))
				assert.True(t, w.has(torn))
			})
		})
	}
}

// A pod that names a claim of today does not hold the volume of the claim that had the name before, when the report of the one node
// says that it is not mounted; also a pod that is no younger than the claim.
func TestAPodOfTheNextClaimDoesNotHoldTheVolumeOfTheLast(t *testing.T) {
	last := newVolume("a", refTo("c", "uid-of-the-last"), policy(v1.PersistentVolumeReclaimDelete))
	for name, o := range map[string]Options{
		"without Mounts": {NodeName: "n"}, "many nodes": {Mounts: newMounts(nil)},
		"it is mounted": {NodeName: "n", Mounts: newMounts(usedByPodOf("p"))}, "it is not mounted": {NodeName: "n", Mounts: newMounts(nil)},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, objectList{last, newClaim("c"), newPod("p", "n", "c")}, func(t *testing.T, w *world) {
				if node, ok := o.Mounts.(*mounts); ok {
					o.Mounts = newMounts(node.err) // in the bubble
				}
				w.start(w.store, o)
				sleepUntilIdle()
				assert.Equal(t, name != "it is not mounted", w.has(newVolume("a")))
			})
		})
	}
}
