package attachdetach

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/internal/cluster"
	"github.com/volumekit/volumekit/internal/crashstore"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

func TestAPodGetsItsVolumesAttached(t *testing.T) {
	inWorld(t, []string{"node-1"}, []string{"data", "logs"}, func(t *testing.T, w *world) {
		c, _ := w.start(w.store)
		pod := w.run("web", "node-1", "data", "logs")
		assert.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("data"))
		assert.Equal(t, []string{"data", "logs"}, w.told("node-1"))
		assert.Equal(t, []string{"data node-1", "logs node-1"}, w.records())
		w.uses("node-1", "data")
		status := c.Status()
		require.Len(t, status, 2)
		assert.Equal(t, PhaseInUse, status[0].Phase)
		assert.Equal(t, PhaseAttached, status[1].Phase)

		w.delete(pod)
		assert.Equal(t, []string{"data"}, w.told("node-1"), "what the node uses stays")
		assert.Empty(t, w.nodesOf("logs"))
		assert.Equal(t, PhaseDetaching, c.Status()[0].Phase)
		require.ErrorIs(t, c.Status()[0].Err, volume.ErrInUse)
		w.uses("node-1")
		assert.Empty(t, w.nodesOf("data"))
		assert.Empty(t, w.told("node-1"))
		assert.Empty(t, w.records(), "the record goes with the last trace")
		assert.Empty(t, c.Status())
	})
}

func TestWhateverComesLaterIsNoticed(t *testing.T) {
	inWorld(t, nil, nil, func(t *testing.T, w *world) {
		w.start(w.store)
		pod := w.run("web", "", "data")
		idle()
		w.claim("data")
		idle()
		assert.Empty(t, w.nodesOf("data"), "it has no node")
		pod, err := store.Get[*v1.Pod](t.Context(), w.store, "default", pod.Name)
		require.NoError(t, err)
		pod.Spec.NodeName = "node-1"
		_, err = store.Update(t.Context(), w.store, pod)
		require.NoError(t, err)
		idle()
		assert.Empty(t, w.nodesOf("data"), "the node is not there")
		w.create(newNode("node-1"))
		idle()
		assert.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("data"))
	})
}

func TestAPodThatHasEndedWantsNothing(t *testing.T) {
	inWorld(t, []string{"node-1"}, []string{"data"}, func(t *testing.T, w *world) {
		w.start(w.store)
		pod := w.run("web", "node-1", "data")
		pod, err := store.Get[*v1.Pod](t.Context(), w.store, "default", pod.Name)
		require.NoError(t, err)
		pod.Status.Phase = v1.PodSucceeded
		_, err = store.Update(t.Context(), w.store, pod)
		require.NoError(t, err)
		idle()
		assert.Empty(t, w.nodesOf("data"))
	})
}

func TestAClaimMadeAgainUnderItsNameIsAnotherOne(t *testing.T) {
	inWorld(t, []string{"node-1"}, []string{"data"}, func(t *testing.T, w *world) {
		w.delete(&v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data"}})
		w.create(&v1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data", UID: "another"},
			Spec:       v1.PersistentVolumeClaimSpec{VolumeName: "data"}, Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound},
		})
		w.start(w.store)
		w.run("web", "node-1", "data")
		assert.Empty(t, w.nodesOf("data"))
	})
}

func TestAVolumeThatCannotBeFoundOutAnyMoreStays(t *testing.T) {
	inWorld(t, []string{"node-1"}, []string{"data"}, func(t *testing.T, w *world) {
		w.start(w.store)
		pod := w.run("web", "node-1", "data")
		w.delete(&v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data"}})
		assert.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("data"), "unknown is not absent")
		w.delete(pod)
		assert.Empty(t, w.nodesOf("data"))
	})
}

func TestAVolumeMovesWhenItsNodeHasLetGoOfIt(t *testing.T) {
	inWorld(t, []string{"node-1", "node-2"}, []string{"data"}, func(t *testing.T, w *world) {
		c, _ := w.start(w.store)
		old := w.run("old", "node-1", "data")
		w.uses("node-1", "data")
		w.run("new", "node-2", "data")
		assert.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("data"))
		messages := w.messages(operationexecutor.ReasonFailedAttachVolume)
		require.Len(t, messages, 1)
		assert.Equal(t, `volume "data" can be on one node at a time and is on "node-1", for the pods old: it is attached to node "node-2" when it is detached there`, messages[0])
		time.Sleep(time.Hour)
		assert.Len(t, w.messages(operationexecutor.ReasonFailedAttachVolume), 1, "it is said once")
		var elsewhere *operationexecutor.MultiAttachError
		require.ErrorAs(t, c.Status()[1].Err, &elsewhere)

		w.delete(old)
		time.Sleep(time.Hour)
		assert.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("data"), "a node that is ready loses nothing")
		w.uses("node-1")
		assert.Equal(t, []types.NodeName{"node-2"}, w.nodesOf("data"))
		assert.Equal(t, []string{"data node-1", "data node-2"}, w.calls(fake.MethodAttach), "it was tried nowhere while another node had it")
		assert.Empty(t, w.told("node-1"))
		assert.Equal(t, []string{"data"}, w.told("node-2"))
	})
}

func TestSharedVolumesAreAttachedToManyNodes(t *testing.T) {
	inWorld(t, []string{"node-1", "node-2"}, nil, func(t *testing.T, w *world) {
		w.claim("shared", v1.ReadWriteMany)
		w.start(w.store)
		w.run("one", "node-1", "shared")
		w.run("two", "node-2", "shared")
		assert.Equal(t, []types.NodeName{"node-1", "node-2"}, w.nodesOf("shared"))
	})
}

// Acceptance: force only when the node is late and known to be sick, or fenced off, and everybody can see it.
func TestAForcedDetachNeedsTimeAndASickNodeOrAFence(t *testing.T) {
	inWorld(t, []string{"well", "sick", "fenced"}, []string{"a", "b", "c"}, func(t *testing.T, w *world) {
		c, _ := w.start(w.store)
		pods := []*v1.Pod{w.run("on-well", "well", "a"), w.run("on-sick", "sick", "b"), w.run("on-fenced", "fenced", "c")}
		w.uses("well", "a")
		w.uses("sick", "b")
		w.uses("fenced", "c")
		w.sicken("sick")
		for _, pod := range pods {
			w.delete(pod)
		}
		w.change("fenced", func(n *v1.Node) {
			n.Spec.Taints = []v1.Taint{{Key: v1.TaintNodeOutOfService, Effect: v1.TaintEffectNoExecute}}
		})
		assert.Empty(t, w.nodesOf("c"), "who fenced the node off has said that it writes no more")
		assert.Equal(t, map[ForceReason]uint64{ForcedByFence: 1}, c.ForcedDetaches())

		time.Sleep(defaultMaxWaitForUnmount - time.Minute)
		assert.Equal(t, []types.NodeName{"sick"}, w.nodesOf("b"), "it is not late yet")
		time.Sleep(2 * time.Minute)
		assert.Empty(t, w.nodesOf("b"))
		assert.Equal(t, map[ForceReason]uint64{ForcedByFence: 1, ForcedByTimeout: 1}, c.ForcedDetaches())
		assert.Len(t, w.messages(reasonForcedDetach), 2)
		time.Sleep(24 * time.Hour)
		assert.Equal(t, []types.NodeName{"well"}, w.nodesOf("a"), "it is late, and not sick")
	})
}

func TestANodeThatRecoversInTimeLosesNothing(t *testing.T) {
	inWorld(t, []string{"node-1"}, []string{"data"}, func(t *testing.T, w *world) {
		c, _ := w.start(w.store)
		pod := w.run("web", "node-1", "data")
		w.uses("node-1", "data")
		w.sicken("node-1")
		w.delete(pod)
		time.Sleep(defaultMaxWaitForUnmount / 2)
		w.change("node-1", func(n *v1.Node) { n.Status.Conditions[0].Status = v1.ConditionTrue })
		time.Sleep(time.Hour)
		assert.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("data"))
		assert.Empty(t, c.ForcedDetaches())
	})
}

// What was seen of a node last may be old. Before a volume is taken from it by force, its object is read.
func TestForceDoesNotBelieveAnOldWord(t *testing.T) {
	for name, sick := range map[string]func(n *v1.Node){
		"that it is sick":   func(n *v1.Node) { n.Status.Conditions[0].Status = v1.ConditionUnknown },
		"that it is fenced": func(n *v1.Node) { n.Spec.Taints = []v1.Taint{{Key: v1.TaintNodeOutOfService}} },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, []string{"node-1"}, []string{"data"}, func(t *testing.T, w *world) {
				pod := w.run("web", "node-1", "data")
				w.uses("node-1", "data")
				w.change("node-1", sick)
				c, _ := w.start(&lagging{Store: w.store, kind: store.Nodes, by: time.Hour})
				w.change("node-1", func(n *v1.Node) {
					n.Status.Conditions[0].Status, n.Spec.Taints = v1.ConditionTrue, nil
				})
				w.delete(pod)
				time.Sleep(defaultMaxWaitForUnmount + 10*time.Minute)
				idle()
				assert.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("data"))
				assert.Empty(t, w.calls(fake.MethodDetach))
				assert.Empty(t, c.ForcedDetaches(), "what was not done is not counted")
				assert.Equal(t, []string{"data"}, w.told("node-1"))
			})
		})
	}
}

// A volume that is being released, or given to another claim, is not attached for a pod of the old one, however old what is known is.
func TestAVolumeThatIsBeingReclaimedIsNotAttached(t *testing.T) {
	inWorld(t, []string{"node-1"}, []string{"data"}, func(t *testing.T, w *world) {
		w.start(&lagging{Store: w.store, kind: store.PersistentVolumes, by: time.Hour})
		pv, err := store.Get[*v1.PersistentVolume](t.Context(), w.store, "", "data")
		require.NoError(t, err)
		pv.Status.Phase = v1.VolumeReleased
		_, err = store.Update(t.Context(), w.store, pv)
		require.NoError(t, err)
		w.delete(w.run("web", "node-1", "data"))
		time.Sleep(time.Minute)
		idle()
		assert.Empty(t, w.calls(fake.MethodAttach))
		assert.Empty(t, w.records(), "the record that it may be attached does not stay")
	})
}

// A detach that failed by force must not go on by force when the node is well again.
func TestForceEndsWithItsReason(t *testing.T) {
	inWorld(t, []string{"node-1"}, []string{"data"}, func(t *testing.T, w *world) {
		w.start(w.store)
		pod := w.run("web", "node-1", "data")
		w.uses("node-1", "data")
		w.sicken("node-1")
		w.plugin.Inject(fake.MethodDetach, fake.FailN(1, fmt.Errorf("busy: %w", volume.ErrTransient)))
		w.delete(pod)
		time.Sleep(defaultMaxWaitForUnmount - time.Second)
		require.Empty(t, w.calls(fake.MethodDetach))
		time.Sleep(time.Second)
		idle()
		require.Len(t, w.calls(fake.MethodDetach), 1)
		w.change("node-1", func(n *v1.Node) { n.Status.Conditions[0].Status = v1.ConditionTrue })
		time.Sleep(time.Hour)
		assert.Len(t, w.calls(fake.MethodDetach), 1)
		assert.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("data"))
	})
}

// The time counts from the last moment at which no pod needed the volume any more.
func TestTimeCountsAnewWhenAVolumeWasWantedMeanwhile(t *testing.T) {
	inWorld(t, []string{"node-1"}, []string{"data"}, func(t *testing.T, w *world) {
		w.start(w.store)
		first := w.run("first", "node-1", "data")
		w.uses("node-1", "data")
		w.delete(first)
		time.Sleep(time.Hour)
		second := w.run("second", "node-1", "data")
		w.sicken("node-1")
		w.delete(second)
		time.Sleep(defaultMaxWaitForUnmount - time.Minute)
		assert.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("data"))
	})
}

func TestAPodOfTheSameNameIsAnotherPod(t *testing.T) {
	inWorld(t, []string{"node-1"}, []string{"data", "logs"}, func(t *testing.T, w *world) {
		w.start(w.store)
		old := w.run("web", "node-1", "data")
		key, err := store.KeyOf(old)
		require.NoError(t, err)
		require.NoError(t, w.store.Delete(t.Context(), key, store.Preconditions{}))
		again := newPod("web", "node-1", "logs")
		again.UID = "another"
		w.create(again)
		idle()
		assert.Empty(t, w.nodesOf("data"))
		assert.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("logs"))
	})
}

// What the controller has last seen of a node may be old. Before it detaches, it reads the node itself.
func TestADetachDoesNotBelieveAnOldWord(t *testing.T) {
	inWorld(t, []string{"node-1"}, []string{"data"}, func(t *testing.T, w *world) {
		w.start(&lagging{Store: w.store, kind: store.Nodes, by: time.Minute})
		time.Sleep(2 * time.Minute)
		pod := w.run("web", "node-1", "data")
		time.Sleep(2 * time.Minute)
		w.uses("node-1", "data")
		w.delete(pod)
		time.Sleep(10 * time.Minute)
		assert.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("data"))
		assert.Empty(t, w.calls(fake.MethodDetach))
		assert.Equal(t, []string{"data"}, w.told("node-1"), "what is not detached is listed again")
	})
}

// A node that took the name of another is not told what that one had.
func TestANodeIsNotToldWhatAnEarlierOneHad(t *testing.T) {
	inWorld(t, []string{"node-1"}, []string{"data"}, func(t *testing.T, w *world) {
		w.start(&lagging{Store: w.store, kind: store.Nodes, by: time.Minute})
		time.Sleep(2 * time.Minute)
		w.delete(newNode("node-1"))
		w.create(newNode("node-1"))
		w.run("web", "node-1", "data")
		time.Sleep(30 * time.Second)
		assert.Empty(t, w.told("node-1"), "the controller knows only the old one yet")
		time.Sleep(10 * time.Minute)
		assert.Equal(t, []string{"data"}, w.told("node-1"))
	})
}

func TestANodeOfTheSameNameIsAnotherNode(t *testing.T) {
	inWorld(t, []string{"node-1"}, []string{"data"}, func(t *testing.T, w *world) {
		w.start(w.store)
		w.run("web", "node-1", "data")
		w.delete(newNode("node-1"))
		w.create(newNode("node-1"))
		idle()
		assert.Equal(t, []string{"data node-1", "data node-1"}, w.calls(fake.MethodAttach), "what the old one had is confirmed anew")
		assert.Equal(t, []string{"data"}, w.told("node-1"))
	})
}

func TestNodesOfOthersAreLeftAlone(t *testing.T) {
	inWorld(t, []string{"node-1"}, []string{"data"}, func(t *testing.T, w *world) {
		w.options.ManagesNode = func(node *v1.Node) bool { return node.Labels["mine"] != "no" }
		w.change("node-1", func(n *v1.Node) {
			n.Labels = map[string]string{"mine": "no"}
			n.Status.VolumesAttached = []v1.AttachedVolume{{Name: nameOf("data"), DevicePath: "/dev/x"}}
		})
		w.start(w.store)
		pod := w.run("web", "node-1", "data")
		w.delete(pod)
		assert.Empty(t, w.plugin.Calls()[1:], "after Init nothing was called")
		assert.Equal(t, []string{"data"}, w.told("node-1"))
		w.change("node-1", func(n *v1.Node) { n.Labels = nil })
		assert.Empty(t, w.told("node-1"), "it is this controller's now, and no pod needs the volume")
	})
}

func TestANodeHoldsAsManyVolumesAsItCan(t *testing.T) {
	inWorld(t, []string{"node-1"}, []string{"a", "b", "c"}, func(t *testing.T, w *world) {
		limit := int32(2)
		driver := storagev1.CSINodeDriver{
			Name: volume.DriverOfPluginName(fake.DefaultPluginName), NodeID: "node-1", Allocatable: &storagev1.VolumeNodeResources{Count: &limit},
		}
		w.create(&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{driver}}})
		c, _ := w.start(w.store)
		first := w.run("one", "node-1", "a")
		w.run("two", "node-1", "b")
		w.run("three", "node-1", "c")
		assert.Empty(t, w.nodesOf("c"))
		require.ErrorIs(t, c.Status()[2].Err, cluster.ErrAttachLimit)
		assert.Len(t, w.messages(operationexecutor.ReasonFailedAttachVolume), 1)
		w.delete(first)
		assert.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("c"), "there is room now")
	})
}

func TestWhatIsNoLongerAttachedIsAttachedAgain(t *testing.T) {
	inWorld(t, []string{"node-1"}, []string{"data"}, func(t *testing.T, w *world) {
		w.options.VerifyPeriod = 0
		w.start(w.store)
		w.run("web", "node-1", "data")
		detacher, err := w.plugin.NewDetacher()
		require.NoError(t, err)
		require.NoError(t, detacher.Detach(t.Context(), "data", "node-1")) // The storage has lost it.
		require.Empty(t, w.nodesOf("data"))
		time.Sleep(2 * defaultVerifyPeriod)
		idle()
		assert.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("data"))
		assert.Equal(t, []string{"data"}, w.told("node-1"))
	})
}

func TestAnAttachThatFailsIsTriedAgainAndSaysWhy(t *testing.T) {
	inWorld(t, []string{"node-1"}, []string{"data"}, func(t *testing.T, w *world) {
		c, _ := w.start(w.store)
		cause := fmt.Errorf("no such disk")
		w.plugin.Inject(fake.MethodAttach, fake.FailN(3, cause))
		w.run("web", "node-1", "data")
		require.ErrorIs(t, c.Status()[0].Err, cause)
		assert.False(t, c.Status()[0].NextTry.IsZero())
		time.Sleep(time.Minute)
		assert.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("data"))
		require.NoError(t, c.Status()[0].Err)
	})
}

// An attachment with an unknown outcome counts: the volume goes to no other node before that is known.
func TestANodeThatMayHaveAVolumeKeepsOthersFromIt(t *testing.T) {
	inWorld(t, []string{"node-1", "node-2"}, []string{"data"}, func(t *testing.T, w *world) {
		w.start(w.store)
		w.plugin.Inject(fake.MethodAttach, fake.FailAfter(fmt.Errorf("no answer: %w", volume.ErrUncertain)))
		w.plugin.Inject(fake.MethodDetach, fake.FailN(5, fmt.Errorf("no answer: %w", volume.ErrUncertain)))
		pod := w.run("old", "node-1", "data")
		assert.Empty(t, w.told("node-1"), "no status lists what is uncertain")
		w.delete(pod)
		w.run("new", "node-2", "data")
		for range 10 {
			require.LessOrEqual(t, len(w.nodesOf("data")), 1)
			time.Sleep(10 * time.Second)
		}
		time.Sleep(10 * time.Minute)
		assert.Equal(t, []types.NodeName{"node-2"}, w.nodesOf("data"))
		assert.Equal(t, []string{"data node-1", "data node-2"}, w.calls(fake.MethodAttach))
	})
}

func TestNothingMovesWhileNothingChanges(t *testing.T) {
	inWorld(t, []string{"node-1"}, []string{"data"}, func(t *testing.T, w *world) {
		counting := crashstore.New(w.store, crashstore.Crash{After: math.MaxInt})
		c, _ := w.start(counting)
		w.run("web", "node-1", "data")
		w.uses("node-1", "data")
		before, calls := counting.Steps(), len(w.plugin.Calls())
		time.Sleep(24 * time.Hour)
		assert.Equal(t, before, counting.Steps(), "no write")
		assert.Len(t, w.plugin.Calls(), calls)
		assert.Empty(t, c.failures.known)
		assert.Empty(t, c.attempts)
		assert.Empty(t, c.actual.NodesToReport())
	})
}

func TestNothingIsKeptOfWhatIsGone(t *testing.T) {
	inWorld(t, []string{"node-1", "node-2"}, []string{"data", "logs"}, func(t *testing.T, w *world) {
		c, _ := w.start(w.store)
		w.plugin.Inject(fake.MethodAttach, fake.FailN(2, fmt.Errorf("busy")))
		a, b := w.run("a", "node-1", "data", "logs"), w.run("b", "node-2", "data")
		time.Sleep(time.Minute)
		w.delete(a)
		w.delete(b)
		time.Sleep(time.Hour)
		w.delete(newNode("node-1"))
		w.delete(newNode("node-2"))
		assert.Empty(t, c.Status())
		assert.Empty(t, c.pods.known)
		assert.Empty(t, c.pods.names)
		assert.Empty(t, c.failures.known)
		assert.Empty(t, c.attempts)
		assert.Empty(t, c.failures.noRoom)
		assert.Empty(t, c.actual.Nodes())
		assert.Empty(t, w.records())
	})
}

func TestRunIsCalledOnce(t *testing.T) {
	inWorld(t, nil, nil, func(t *testing.T, w *world) {
		c, _ := w.start(w.store)
		require.ErrorIs(t, c.Run(t.Context()), volume.ErrInvalid)
		require.ErrorIs(t, New(nil, w.store, Options{}).Run(t.Context()), volume.ErrInvalid)
	})
}
