package expand_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/internal/crashstore"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// driver is the fake plugin's CSI driver, as a VolumeAttributesClass names it.
const driver = "fake.example.com"

// createClass stores a class whose parameter is its own name.
func (w *world) createClass(name, driver string) {
	w.t.Helper()
	_, err := store.Create(w.t.Context(), w.store, &storagev1.VolumeAttributesClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, DriverName: driver, Parameters: map[string]string{fake.ParameterTier: name},
	})
	require.NoError(w.t, err)
	idle()
}

// inModifyWorld is inWorld with the classes slow and fast, of which the claim has slow.
func inModifyWorld(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	inWorld(t, hasClass("slow"), func(t *testing.T, w *world) {
		w.createClass("slow", driver)
		w.createClass("fast", driver)
		test(t, w)
	})
}

func hasClass(name string) func(*v1.PersistentVolumeClaim, *v1.PersistentVolume) {
	return func(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) {
		claim.Spec.VolumeAttributesClassName, claim.Status.CurrentVolumeAttributesClassName = &name, &name
		pv.Spec.VolumeAttributesClassName = &name
	}
}

// names makes the claim name a class; "" for none.
func (w *world) names(class string) {
	w.t.Helper()
	w.change(func(claim *v1.PersistentVolumeClaim) {
		claim.Spec.VolumeAttributesClassName = &class
		if class == "" {
			claim.Spec.VolumeAttributesClassName = nil
		}
	})
}

// requireClass fails unless the claim and its volume have this class, and the status says this of another.
func (w *world) requireClass(has string, status v1.PersistentVolumeClaimModifyVolumeStatus, target string) {
	w.t.Helper()
	claim := w.claim()
	pv, err := store.Get[*v1.PersistentVolume](w.t.Context(), w.store, "", "pv")
	require.NoError(w.t, err)
	text := func(name *string) string {
		if name == nil {
			return ""
		}
		return *name
	}
	is := v1.ModifyVolumeStatus{}
	if claim.Status.ModifyVolumeStatus != nil {
		is = *claim.Status.ModifyVolumeStatus
	}
	require.Equal(w.t, []string{has, has, string(status), target},
		[]string{text(claim.Status.CurrentVolumeAttributesClassName), text(pv.Spec.VolumeAttributesClassName), string(is.Status), is.TargetVolumeAttributesClassName},
		"the class of the claim and of the volume, the state, and the class that is wanted")
}

func (w *world) tier() string { return w.plugin.Backend().Attributes("pv")[fake.ParameterTier] }

func (w *world) conditions() []string {
	var all []string
	for _, c := range w.claim().Status.Conditions {
		all = append(all, string(c.Type)+" "+c.Reason)
	}
	return all
}

func (w *world) reasons() []string {
	var all []string
	for _, event := range w.events.Events() {
		all = append(all, event.Type+" "+event.Reason)
	}
	return all
}

func (w *world) modifyCalls() int { return w.callsOf(fake.MethodModifyVolume) }

var nameOfClaim = types.NamespacedName{Namespace: "default", Name: "c"}

func TestAClaimGetsTheClassThatItNames(t *testing.T) {
	inModifyWorld(t, func(t *testing.T, w *world) {
		w.start(w.store)
		assert.Zero(t, w.modifyCalls())
		w.names("fast")
		w.requireClass("fast", "", "")
		assert.Equal(t, "fast", w.tier())
		w.names("slow")
		w.requireClass("slow", "", "")
		assert.Equal(t, "slow", w.tier())
		assert.Equal(t, 2, w.modifyCalls())
		assert.Empty(t, w.claim().Status.Conditions)
		assert.Equal(t, []string{"Normal VolumeModifySuccessful", "Normal VolumeModifySuccessful"}, w.reasons())
		w.names("")
		w.requireClass("slow", "", "")
		assert.Equal(t, 2, w.modifyCalls(), "a claim that names no class keeps what it has")
	})
}

func TestAClassThatIsNotThereIsWaitedFor(t *testing.T) {
	inModifyWorld(t, func(t *testing.T, w *world) {
		c, _ := w.start(w.store)
		w.names("gold")
		w.requireClass("slow", v1.PersistentVolumeClaimModifyVolumePending, "gold")
		assert.ErrorIs(t, c.WhyNotModified(nameOfClaim), store.ErrNotFound)
		writes := w.claim().ResourceVersion
		time.Sleep(24 * time.Hour)
		assert.Equal(t, writes, w.claim().ResourceVersion, "nothing polls")
		assert.Zero(t, w.modifyCalls())
		w.createClass("gold", driver)
		w.requireClass("gold", "", "")
		assert.NoError(t, c.WhyNotModified(nameOfClaim))
	})
}

func TestAClassOfAnotherDriverIsInfeasible(t *testing.T) {
	inModifyWorld(t, func(t *testing.T, w *world) {
		w.createClass("foreign", "other.example.com")
		c, _ := w.start(w.store)
		w.names("foreign")
		w.requireClass("slow", v1.PersistentVolumeClaimModifyVolumeInfeasible, "foreign")
		assert.ErrorContains(t, c.WhyNotModified(nameOfClaim), `is for driver "other.example.com"`)
		assert.Zero(t, w.modifyCalls())
		w.names("fast")
		w.requireClass("fast", "", "")
	})
}

// An infeasible class stays so until the claim names another, and is tried rarely.
func TestAnInfeasibleClassIsTriedRarelyAndLeftAtOnce(t *testing.T) {
	inModifyWorld(t, func(t *testing.T, w *world) {
		w.plugin.Inject(fake.MethodModifyVolume, fake.FailN(2, fmt.Errorf("the pool has no such disks: %w", volume.ErrInfeasible)))
		w.start(w.store)
		w.names("fast")
		w.requireClass("slow", v1.PersistentVolumeClaimModifyVolumeInfeasible, "fast")
		assert.Equal(t, []string{"ModifyingVolume ", "ModifyVolumeError Infeasible"}, w.conditions())
		time.Sleep(operationexecutor.DefaultInfeasible / 2)
		w.change(func(claim *v1.PersistentVolumeClaim) { claim.Labels = map[string]string{"changed": "yes"} })
		assert.Equal(t, 1, w.modifyCalls())
		time.Sleep(operationexecutor.DefaultInfeasible)
		assert.Equal(t, 2, w.modifyCalls())
		w.requireClass("slow", v1.PersistentVolumeClaimModifyVolumeInfeasible, "fast")
		w.names("slow")
		w.requireClass("slow", "", "")
		assert.Equal(t, 3, w.modifyCalls(), "the former class is given again")
		assert.Equal(t, "slow", w.tier())
		assert.Empty(t, w.conditions())
	})
}

// A claim that names no class any more after one that is infeasible is as it was.
func TestAnInfeasibleClassIsWithdrawn(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.createClass("fast", driver)
		w.plugin.Inject(fake.MethodModifyVolume, fake.Fail(volume.ErrInfeasible))
		w.start(w.store)
		w.names("fast")
		w.names("")
		w.requireClass("", "", "")
		assert.Empty(t, w.conditions())
		assert.Contains(t, w.reasons(), "Normal VolumeModifyCanceled")
	})
}

func TestAModificationThatFailsIsTriedAgain(t *testing.T) {
	inModifyWorld(t, func(t *testing.T, w *world) {
		w.plugin.Inject(fake.MethodModifyVolume, fake.FailN(3, errors.New("busy")))
		c, _ := w.start(w.store)
		w.names("fast")
		w.requireClass("slow", v1.PersistentVolumeClaimModifyVolumeInProgress, "fast")
		assert.Equal(t, []string{"ModifyingVolume ", "ModifyVolumeError Failed"}, w.conditions())
		assert.ErrorContains(t, c.WhyNotModified(nameOfClaim), "busy")
		time.Sleep(time.Minute)
		assert.Equal(t, 4, w.modifyCalls())
		w.requireClass("fast", "", "")
	})
}

// A claim may change its mind when a call has certainly failed. While one may still take effect, the class of that call is
// finished first: a later call that certainly failed says nothing about the earlier one.
func TestAnotherClassWaitsForAnUncertainCall(t *testing.T) {
	inModifyWorld(t, func(t *testing.T, w *world) {
		w.createClass("gold", driver)
		lost := fake.FailAfter(volume.Uncertain(errors.New("no answer")))
		lost.Times = 2
		// The next process may call twice at once: before it has listed the classes, and after.
		w.plugin.Inject(fake.MethodModifyVolume, lost, fake.FailN(2, errors.New("busy")))
		_, stop := w.start(w.store)
		w.names("fast")
		w.names("gold")
		w.requireClass("slow", v1.PersistentVolumeClaimModifyVolumeInProgress, "fast")
		assert.Equal(t, "fast", w.tier())
		stop()
		w.start(w.store)
		w.requireClass("slow", v1.PersistentVolumeClaimModifyVolumeInProgress, "fast")
		assert.Equal(t, []string{"ModifyingVolume ", "ModifyVolumeError Uncertain"}, w.conditions())
		time.Sleep(time.Minute)
		w.requireClass("gold", "", "")
		assert.Equal(t, "gold", w.tier())
		assert.Equal(t, 6, w.modifyCalls(), "fast, again for the change of the claim, two refusals of the next process, fast at last, and gold")
	})
}

// Two changes of a volume are made one after the other, whichever is first.
func TestAVolumeHasOneChangeAtATime(t *testing.T) {
	for name, first := range map[string]fake.Method{"an expansion first": fake.MethodExpandVolume, "a modification first": fake.MethodModifyVolume} {
		t.Run(name, func(t *testing.T) {
			inModifyWorld(t, func(t *testing.T, w *world) {
				release := make(chan struct{})
				w.plugin.Inject(first, fake.HangUntil(release))
				w.start(w.store)
				begin := []func(){func() { w.request("2Gi") }, func() { w.names("fast") }}
				if first == fake.MethodModifyVolume {
					slices.Reverse(begin)
				}
				begin[0]()
				begin[1]()
				require.Equal(t, 1, w.calls()+w.modifyCalls(), "the second waits")
				close(release)
				time.Sleep(time.Minute) // The claim was changed meanwhile: what was written about it is written again.
				w.requireClass("fast", "", "")
				w.require("1Gi", "2Gi", v1.PersistentVolumeClaimNodeResizePending, "2Gi")
			})
		})
	}
}

// A change whose call may still have an effect is finished before another begins, also by the next process.
func TestAnUncertainChangeKeepsTheOtherWaiting(t *testing.T) {
	lost := volume.Uncertain(errors.New("no answer"))
	for name, test := range map[string]struct {
		method        fake.Method
		first, second func(w *world)
	}{
		"an expansion":   {fake.MethodExpandVolume, func(w *world) { w.request("2Gi") }, func(w *world) { w.names("fast") }},
		"a modification": {fake.MethodModifyVolume, func(w *world) { w.names("fast") }, func(w *world) { w.request("2Gi") }},
	} {
		t.Run(name, func(t *testing.T) {
			inModifyWorld(t, func(t *testing.T, w *world) {
				w.plugin.Inject(test.method, fake.FailN(3, lost))
				_, stop := w.start(w.store)
				test.first(w)
				test.second(w)
				assert.Equal(t, w.callsOf(test.method), w.calls()+w.modifyCalls())
				stop()
				w.start(w.store)
				assert.Equal(t, w.callsOf(test.method), w.calls()+w.modifyCalls(), "the next process goes on with it")
				time.Sleep(time.Minute)
				w.requireClass("fast", "", "")
				w.require("1Gi", "2Gi", v1.PersistentVolumeClaimNodeResizePending, "2Gi")
				assert.Equal(t, 4, w.callsOf(test.method))
			})
		})
	}
}

// A change that has certainly failed does not keep the other from its turn.
func TestAChangeThatFailsDoesNotHoldUpTheOther(t *testing.T) {
	inModifyWorld(t, func(t *testing.T, w *world) {
		w.plugin.Inject(fake.MethodExpandVolume, fake.FailN(-1, errors.New("the pool is full")))
		w.start(w.store)
		w.request("2Gi")
		w.names("fast")
		w.requireClass("fast", "", "")
		w.require("1Gi", "2Gi", v1.PersistentVolumeClaimControllerResizeInProgress, "1Gi")
	})
	inModifyWorld(t, func(t *testing.T, w *world) {
		w.plugin.Inject(fake.MethodModifyVolume, fake.FailN(-1, errors.New("the pool is full")))
		w.start(w.store)
		w.names("fast")
		w.request("2Gi")
		w.requireClass("slow", v1.PersistentVolumeClaimModifyVolumeInProgress, "fast")
		w.require("1Gi", "2Gi", v1.PersistentVolumeClaimNodeResizePending, "2Gi")
	})
}

// A volume whose plugin is not here, or cannot modify, is left to other programs, with one event.
func TestAVolumeThatIsNotModifiedHereIsLeftAlone(t *testing.T) {
	for name, test := range map[string]struct {
		without volume.Capabilities
		change  func(*v1.PersistentVolumeClaim, *v1.PersistentVolume)
		events  []string
	}{
		"a driver that is not here": {0, func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) {
			pv.Spec.CSI.Driver = "other.example.com"
		}, []string{"Normal ExternalModifying"}},
		"a plugin that cannot": {volume.CapModify, nil, []string{"Normal ExternalModifying"}},
		"the volume of another claim": {0, func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) {
			pv.Spec.ClaimRef.UID = "older"
		}, nil},
		"a claim that is not bound": {0, func(claim *v1.PersistentVolumeClaim, _ *v1.PersistentVolume) {
			claim.Status.Phase = v1.ClaimPending
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			inWorldWithout(t, test.without, test.change, func(t *testing.T, w *world) {
				w.createClass("fast", driver)
				w.start(w.store)
				w.names("fast")
				time.Sleep(24 * time.Hour)
				assert.Zero(t, w.modifyCalls())
				assert.Nil(t, w.claim().Status.ModifyVolumeStatus)
				assert.Equal(t, test.events, w.reasons())
			})
		})
	}
}

// A controller that dies between any two of its writes, or during the call, leaves what the next one finishes.
func TestACrashDuringAModificationIsFinished(t *testing.T) {
	for writes := range 4 {
		t.Run(fmt.Sprintf("after write %d", writes), func(t *testing.T) {
			inModifyWorld(t, func(t *testing.T, w *world) {
				_, stop := w.start(crashstore.New(w.store, crashstore.Crash{After: writes}))
				w.names("fast")
				stop()
				w.start(w.store)
				w.requireClass("fast", "", "")
				assert.Equal(t, "fast", w.tier())
				assert.Empty(t, w.conditions())
			})
		})
	}
	t.Run("during the call", func(t *testing.T) {
		inModifyWorld(t, func(t *testing.T, w *world) {
			release := make(chan struct{})
			defer close(release)
			w.plugin.Inject(fake.MethodModifyVolume, fake.HangUntil(release))
			_, stop := w.start(w.store)
			w.names("fast")
			stop()
			w.names("slow")
			w.requireClass("slow", v1.PersistentVolumeClaimModifyVolumeInProgress, "fast")
			w.start(w.store)
			w.requireClass("slow", "", "")
			assert.Equal(t, 3, w.modifyCalls(), "fast is finished before the claim gets slow back")
			assert.Equal(t, "slow", w.tier())
		})
	})
}

// unlisted is a store that does not list classes of attributes: the mirror of them is never read.
type unlisted struct{ store.Store }

func (s unlisted) List(ctx context.Context, kind schema.GroupVersionKind, namespace string) (store.List, error) {
	if kind.Kind == "VolumeAttributesClass" {
		return store.List{}, errors.New("the list is on its way")
	}
	return s.Store.List(ctx, kind, namespace)
}

// A class is not missed before the classes were listed: the store has it.
func TestAClassIsNotMissedBeforeTheClassesWereListed(t *testing.T) {
	for name, status := range map[string]v1.PersistentVolumeClaimModifyVolumeStatus{
		"it was missing once": v1.PersistentVolumeClaimModifyVolumePending, "it was begun": v1.PersistentVolumeClaimModifyVolumeInProgress,
	} {
		t.Run(name, func(t *testing.T) {
			inModifyWorld(t, func(t *testing.T, w *world) {
				w.names("fast")
				w.change(func(claim *v1.PersistentVolumeClaim) {
					claim.Status.ModifyVolumeStatus = &v1.ModifyVolumeStatus{Status: status, TargetVolumeAttributesClassName: "fast"}
				})
				w.start(unlisted{w.store})
				w.requireClass("fast", "", "")
			})
		})
	}
}

// A claim that is deleted together with its class while its volume is modified is let go: the call ends, nothing is written of it, and
// it is not made again.
func TestAClaimAndItsClassAreDeletedDuringAModification(t *testing.T) {
	for name, fault := range map[string]func(release <-chan struct{}) fake.Fault{
		"the call succeeds": fake.HangUntil,
		"the call fails": func(release <-chan struct{}) fake.Fault {
			return fake.Fault{Until: release, Err: errors.New("busy")}
		},
		"its end is unknown": func(release <-chan struct{}) fake.Fault {
			return fake.Fault{Until: release, Effect: fake.EffectDone, Err: volume.Uncertain(errors.New("no answer"))}
		},
	} {
		for state, keep := range map[string][]string{"gone": nil, "held by a pod": {"kubernetes.io/pvc-protection"}} {
			t.Run(name+", the claim is "+state, func(t *testing.T) {
				inModifyWorld(t, func(t *testing.T, w *world) {
					w.change(func(claim *v1.PersistentVolumeClaim) { claim.Finalizers = keep })
					release := make(chan struct{})
					w.plugin.Inject(fake.MethodModifyVolume, fault(release))
					w.start(w.store)
					w.names("fast")
					require.Equal(t, 1, w.modifyCalls())
					class, err := store.Get[*storagev1.VolumeAttributesClass](t.Context(), w.store, "", "fast")
					require.NoError(t, err)
					require.NoError(t, store.Delete(t.Context(), w.store, w.claim()))
					require.NoError(t, store.Delete(t.Context(), w.store, class))
					close(release)
					time.Sleep(time.Hour)
					assert.Equal(t, 1, w.modifyCalls())
					claims, _, err := store.ListOf[*v1.PersistentVolumeClaim](t.Context(), w.store, "")
					require.NoError(t, err)
					assert.Len(t, claims, len(keep))
				})
			})
		}
	}
}
