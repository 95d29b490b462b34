package persistentvolume

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// has reports whether the store has the object.
func (w *world) has(obj store.Object) bool {
	w.t.Helper()
	key, err := store.KeyOf(obj)
	require.NoError(w.t, err)
	_, err = w.store.Get(w.t.Context(), key)
	if err != nil {
		require.ErrorIs(w.t, err, store.ErrNotFound)
	}
	return err == nil
}

func (w *world) end(pod *v1.Pod) {
	w.t.Helper()
	now, err := store.Get[*v1.Pod](w.t.Context(), w.store, pod.Namespace, pod.Name)
	require.NoError(w.t, err)
	now.Status.Phase = v1.PodSucceeded
	_, err = store.Update(w.t.Context(), w.store, now)
	require.NoError(w.t, err)
	idle()
}

// A claim that pods use stays, with its volume, until the last of their objects is gone.
func TestAClaimStaysWhilePodsUseIt(t *testing.T) {
	deletes := policy(v1.PersistentVolumeReclaimDelete)
	inWorld(t, objectList{newClaim("c"), newVolume("a", deletes), newPod("p", "n", "c"), newPod("q", "n", "c"), newPod("unscheduled", "", "c")},
		func(t *testing.T, w *world) {
			w.settle()
			w.delete(newClaim("c"))
			w.requireBound("c", "a")
			w.delete(newPod("p", "n", "c"))
			w.end(newPod("q", "n", "c"))
			w.delete(newPod("q", "n", "c"))
			assert.True(t, w.has(newClaim("c")))
			w.delete(newPod("unscheduled", "", "c"))
			assert.False(t, w.has(newClaim("c")))
			w.requireNoVolume("a")
		})
}

// podsWhoseObjectsAreThere are pods of claim c that may run on some node, as far as their objects prove.
func podsWhoseObjectsAreThere() map[string]*v1.Pod {
	inPhase := func(phase v1.PodPhase) *v1.Pod {
		pod := newPod("p", "n", "c")
		pod.Status.Phase = phase
		return pod
	}
	dying := inPhase(v1.PodRunning)
	dying.Finalizers, dying.Labels = []string{"example.com/runs"}, map[string]string{"dying": "yes"}
	stopped := dying.DeepCopy()
	stopped.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "main", State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{}}}}
	return map[string]*v1.Pod{
		"no node name":                           newPod("p", "", "c"),
		"no status":                              newPod("p", "n", "c"),
		"being deleted, no container statuses":   dying,
		"being deleted, its container has ended": stopped,
		"failed":                                 inPhase(v1.PodFailed),
		"succeeded":                              inPhase(v1.PodSucceeded),
		"an unknown phase":                       inPhase("Paused"),
	}
}

// The object of a pod protects its claim, and the volume of a claim that was torn away from beneath it, whatever its node name,
// its phase and its container statuses are: no program has to write them.
func TestThePodsObjectProtectsWhateverItsStatusSays(t *testing.T) {
	for name, pod := range podsWhoseObjectsAreThere() {
		for _, options := range []Options{{}, {NodeName: "n"}} {
			t.Run(name+", node "+string(options.NodeName), func(t *testing.T) {
				used := newVolume("a", policy(v1.PersistentVolumeReclaimDelete))
				torn := newVolume("b", refTo("c", "earlier"), policy(v1.PersistentVolumeReclaimDelete))
				inWorld(t, objectList{pod, newClaim("c"), used, torn}, func(t *testing.T, w *world) {
					w.start(w.store, options)
					idle()
					w.delete(newClaim("c"))
					sleepUntilIdle()
					w.requireBound("c", "a")
					assert.Zero(t, w.calls(fake.MethodDelete))
					assert.Contains(t, w.volume("b").Status.Message, `pod "default/p"`)
					w.remove(pod)
					assert.False(t, w.has(newClaim("c")))
					w.requireNoVolume("a")
					w.requireNoVolume("b")
				})
			})
		}
	}
}

// remove takes the object of a pod away, finalizers and all.
func (w *world) remove(pod *v1.Pod) {
	w.t.Helper()
	now, err := store.Get[*v1.Pod](w.t.Context(), w.store, pod.Namespace, pod.Name)
	require.NoError(w.t, err)
	if len(now.Finalizers) == 0 {
		w.delete(pod)
		return
	}
	now.Finalizers = nil
	_, err = store.Update(w.t.Context(), w.store, now)
	require.NoError(w.t, err)
	idle()
}

// blind does not list pods for the mirror, which lists all namespaces.
type blind struct{ store.Store }

func (s blind) List(ctx context.Context, kind schema.GroupVersionKind, namespace string) (store.List, error) {
	list, err := s.Store.List(ctx, kind, namespace)
	if kind == store.Pods && namespace == "" {
		list.Items = nil
	}
	return list, err
}

// What memory does not know of is found in the store.
func TestAPodThatIsNotSeenYetKeepsItsClaim(t *testing.T) {
	inWorld(t, objectList{newClaim("c"), newVolume("a"), newPod("p", "n", "c")}, func(t *testing.T, w *world) {
		w.start(blind{w.store}, Options{})
		idle()
		w.requireBound("c", "a")
		w.delete(newClaim("c"))
		assert.True(t, w.has(newClaim("c")))
	})
}

// The object of a volume stays while it is bound, and of one that is not goes at once.
func TestAVolumeStaysWhileItIsBound(t *testing.T) {
	inWorld(t, objectList{newClaim("c"), newVolume("a"), newVolume("b", inClass("x"))}, func(t *testing.T, w *world) {
		w.settle()
		w.delete(newVolume("a"))
		w.delete(newVolume("b"))
		w.requireBound("c", "a")
		assert.False(t, w.has(newVolume("b")))
		w.delete(newClaim("c"))
		assert.False(t, w.has(newVolume("a")))
	})
}

// A volume whose claim is gone is neither deleted nor recycled while something uses it: that its claim was torn away from
// beneath a pod, or that a node still has it, does not matter. It is reclaimed as soon as nothing does.
func TestAVolumeInUseIsNotReclaimed(t *testing.T) {
	attachment := attachmentOf("a")
	for _, how := range []v1.PersistentVolumeReclaimPolicy{v1.PersistentVolumeReclaimDelete, v1.PersistentVolumeReclaimRecycle} {
		for name, user := range map[string]store.Object{"a pod": newPod("p", "n", "c"), "a node": attachment} {
			t.Run(string(how)+" while used by "+name, func(t *testing.T) {
				inWorld(t, objectList{newVolume("a", refTo("c", "uid-c"), policy(how)), user}, func(t *testing.T, w *world) {
					w.settle()
					sleepUntilIdle()
					assert.Zero(t, w.calls(fake.MethodDelete)+w.calls(fake.MethodRecycle))
					assert.Equal(t, v1.VolumeReleased, w.volume("a").Status.Phase)
					assert.Contains(t, w.volume("a").Status.Message, `node "n"`)
					assert.Len(t, w.reasons(), 1, "it is told once")
					w.delete(user)
					assert.Equal(t, 1, w.calls(fake.MethodDelete)+w.calls(fake.MethodRecycle))
				})
			})
		}
	}
}

// The controller reads the store before it treats a volume as attached nowhere: its mirror may lack a new attachment.
func TestAnAttachmentThatIsNotSeenYetKeepsItsVolume(t *testing.T) {
	for _, how := range []v1.PersistentVolumeReclaimPolicy{v1.PersistentVolumeReclaimDelete, v1.PersistentVolumeReclaimRecycle} {
		t.Run(string(how), func(t *testing.T) {
			inWorld(t, objectList{newVolume("a", refTo("c", "uid-c"), policy(how)), attachmentOf("a")}, func(t *testing.T, w *world) {
				w.start(&blindAtFirst{Store: w.store}, Options{})
				sleepUntilIdle()
				assert.Zero(t, w.calls(fake.MethodDelete)+w.calls(fake.MethodRecycle))
				assert.Contains(t, w.volume("a").Status.Message, `node "n"`)
			})
		})
	}
}

// attachmentOf returns the attachment of a volume to node n.
func attachmentOf(pv string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "at"},
		Spec:       storagev1.VolumeAttachmentSpec{NodeName: "n", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}},
	}
}

// blindAtFirst lists no attachment the first time, which is the mirror's.
type blindAtFirst struct {
	store.Store

	mu   sync.Mutex
	sees bool
}

func (s *blindAtFirst) List(ctx context.Context, kind schema.GroupVersionKind, namespace string) (store.List, error) {
	list, err := s.Store.List(ctx, kind, namespace)
	s.mu.Lock()
	defer s.mu.Unlock()
	if kind == store.VolumeAttachments && !s.sees {
		s.sees, list.Items = true, nil
	}
	return list, err
}

// The pods of a claim that was made again under the old name are not those of the old one.
func TestPodsOfTheNextClaimDoNotHoldTheVolumeOfTheOldOne(t *testing.T) {
	next := newClaim("c", func(claim *v1.PersistentVolumeClaim) { claim.UID = "second" })
	old := newVolume("a", refTo("c", "uid-c"), policy(v1.PersistentVolumeReclaimDelete))
	inWorld(t, objectList{next, old}, func(_ *testing.T, w *world) {
		pod := newPod("p", "n", "c")
		pod.CreationTimestamp = metav1.NewTime(w.claim("c").CreationTimestamp.Add(1e9))
		w.create(pod)
		w.settle()
		w.requireNoVolume("a")
	})
}

// A volume that cannot be recycled is tried again, and no claim gets it before.
func TestRecycleThatFailsIsTriedAgain(t *testing.T) {
	recycled := newVolume("a", refTo("c", "uid-c"), policy(v1.PersistentVolumeReclaimRecycle), volumeAnnotation(objects.AnnBoundByController, objects.Yes))
	inWorld(t, objectList{recycled, newClaim("d")}, func(t *testing.T, w *world) {
		w.plugin.Inject(fake.MethodRecycle, fake.FailN(2, errors.New("not empty")))
		w.settle()
		assert.Equal(t, v1.VolumeFailed, w.volume("a").Status.Phase)
		assert.Equal(t, v1.ClaimPending, w.claim("d").Status.Phase)
		sleepUntilIdle()
		assert.Equal(t, 3, w.calls(fake.MethodRecycle))
		w.requireBound("d", "a")
		assert.Contains(t, w.reasons(), objects.ReasonVolumeFailedRecycle)
		assert.Contains(t, w.reasons(), objects.ReasonVolumeRecycled)
	})
}

// withEphemeral returns a pod with a volume that has a claim of its own.
func withEphemeral(name, uid string) *v1.Pod {
	pod := newPod(name, "n", "c")
	pod.UID = types.UID(uid)
	pod.Spec.Volumes = []v1.Volume{{Name: "scratch", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{
		VolumeClaimTemplate: &v1.PersistentVolumeClaimTemplate{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"for": "scratch"}}, Spec: newClaim("x").Spec,
		},
	}}}}
	return pod
}

// The claim of a generic ephemeral volume is made for its pod, belongs to it, and goes with it.
func TestAnEphemeralVolumeHasAClaim(t *testing.T) {
	pod := withEphemeral("p", "uid-p")
	inWorld(t, objectList{newVolume("a", policy(v1.PersistentVolumeReclaimDelete))}, func(t *testing.T, w *world) {
		w.settle()
		w.create(pod)
		idle()
		w.requireBound("p-scratch", "a")
		claim := w.claim("p-scratch")
		assert.True(t, metav1.IsControlledBy(claim, pod))
		assert.Equal(t, "scratch", claim.Labels["for"])
		ref, ok := volume.ClaimOfVolume(pod, &pod.Spec.Volumes[0])
		require.True(t, ok)
		assert.Equal(t, store.NameOf(claim), ref.Name)
		w.delete(pod)
		assert.False(t, w.has(claim))
		w.requireNoVolume("a")
	})
}

// A pod that is made again gets a claim of its own, after that of the first one has gone.
func TestAPodThatIsMadeAgainGetsAnotherClaim(t *testing.T) {
	inWorld(t, objectList{withEphemeral("p", "first"), newVolume("a"), newVolume("b")}, func(t *testing.T, w *world) {
		_, stop := w.start(w.store, Options{})
		idle()
		first := w.claim("p-scratch")
		stop()
		w.delete(withEphemeral("p", "first"))
		w.create(withEphemeral("p", "second"))
		w.settle()
		sleepUntilIdle()
		second := w.claim("p-scratch")
		assert.NotEqual(t, first.UID, second.UID)
		assert.Equal(t, "second", string(metav1.GetControllerOf(second).UID))
		w.requireBound("p-scratch", second.Spec.VolumeName)
		assert.NotEqual(t, first.Spec.VolumeName, second.Spec.VolumeName)
	})
}

// A claim of that name that the pod does not own is neither used nor deleted. An event of the pod says so.
func TestAnEphemeralVolumeTakesNoForeignClaim(t *testing.T) {
	inWorld(t, objectList{newClaim("p-scratch"), newVolume("a"), withEphemeral("p", "uid-p")}, func(t *testing.T, w *world) {
		w.settle()
		assert.Equal(t, []string{objects.ReasonFailedClaim}, w.reasons())
		w.delete(withEphemeral("p", "uid-p"))
		w.requireBound("p-scratch", "a")
	})
}

// Claims that others made for pods are theirs, also where pods are kept somewhere else.
func TestAClaimThatWasNotMadeHereIsNotCollected(t *testing.T) {
	claim := newClaim("c")
	claim.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "gone", UID: "gone", Controller: ptr(true)}}
	inWorld(t, objectList{claim, newVolume("a")}, func(_ *testing.T, w *world) {
		w.settle()
		w.requireBound("c", "a")
	})
}

// flaky is a store that takes every other write only.
type flaky struct {
	store.Store

	mu    sync.Mutex
	turns int
}

func (s *flaky) Update(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	s.mu.Lock()
	s.turns++
	refused := s.turns%2 == 1
	s.mu.Unlock()
	if refused {
		return nil, errors.New("the server is down")
	}
	return s.Store.Update(ctx, obj)
}

// Whichever program made them, and in whatever state they are: claims and volumes get their finalizers, also when the first write fails,
// and lose them when they are deleted and nothing uses them.
func TestEveryClaimAndVolumeIsProtected(t *testing.T) {
	pending := func(claim *v1.PersistentVolumeClaim) { claim.Status.Phase = v1.ClaimPending }
	all := objectList{
		newClaim("pending", ofClass("gone"), pending), newClaim("lost", completed, names("nowhere"), lost),
		newClaim("bound", completed, names("a")), newVolume("a", refTo("bound", "uid-bound")),
		newVolume("free", inClass("x")), newVolume("reserved", inClass("x"), refTo("missing", "")),
		newVolume("released", refTo("gone", "uid-gone"), policy(v1.PersistentVolumeReclaimRetain), func(pv *v1.PersistentVolume) {
			pv.Status.Phase = v1.VolumeReleased
		}),
		newVolume("failed", refTo("gone", "uid-gone"), policy("Shred")),
	}
	inWorld(t, all, func(t *testing.T, w *world) {
		w.start(&flaky{Store: w.store}, Options{})
		sleepUntilIdle()
		for _, obj := range all {
			key, err := store.KeyOf(obj)
			require.NoError(t, err)
			now, err := w.store.Get(t.Context(), key)
			require.NoError(t, err)
			want := objects.FinalizerVolumeProtection
			if key.Kind == store.PersistentVolumeClaims {
				want = objects.FinalizerClaimProtection
			}
			assert.Contains(t, now.(store.Object).GetFinalizers(), want, key.Name)
		}
		for _, obj := range all {
			w.delete(obj)
		}
		sleepUntilIdle()
		for _, obj := range all {
			assert.False(t, w.has(obj), "%s %s", obj.GetObjectKind().GroupVersionKind().Kind, obj.GetName())
		}
	})
}
