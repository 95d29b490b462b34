package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// TestNothingIsMountedBeforeItIsInUseAndAttached, and nothing is detached, or waited for by a clock.
func TestNothingIsMountedBeforeItIsInUseAndAttached(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, withRecords(t))
		c := newController(w)
		w.claim("data")
		m := w.start()
		m.PodsComplete()
		began := time.Now()
		pod := podOf("web", "data", "-own")
		require.NoError(t, m.AddPod(t.Context(), pod))
		synctest.Wait()
		assert.Equal(t, []string{"data"}, c.inUse(), "what needs no attaching is not listed")
		assert.Equal(t, []string{"SetUp uid-web"}, w.changes(), "the pod's own volume does not wait")
		status := m.PodStatus(pod.UID)[0]
		assert.Equal(t, PhaseWaiting, status.Phase)
		require.ErrorIs(t, status.Err, operationexecutor.ErrNotReportedAttached)
		assert.Zero(t, status.NextTry, "it waits for no time")

		c.attach("data")
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
		assert.Equal(t, []string{"SetUp uid-web", "MountDevice", "SetUp uid-web"}, w.changes())
		assert.Equal(t, deviceOf("data"), m.PodStatus(pod.UID)[0].DevicePath)
		assert.True(t, m.VolumeIsAttached(nameOfClaim("data")))

		w.remove(pod)
		synctest.Wait()
		assert.Empty(t, c.inUse())
		assert.NotContains(t, w.changes(), string(fake.MethodDetach), "that is the controller's")
		c.withdraw("data")
		c.detach("data")
		assert.Zero(t, time.Since(began), "nothing waited for a clock")
		w.isClean()
	})
}

// TestWhatTheStatusListsAlreadyIsStillReportedFirst: the controller may be about to take it away.
func TestWhatTheStatusListsAlreadyIsStillReportedFirst(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		c := newController(w)
		w.claim("data")
		c.attach("data")
		broken := &atomic.Bool{}
		broken.Store(true)
		m := w.startOn(&nodeStore{Store: w.store, update: func(*v1.Node) error {
			if broken.Load() {
				return errUpdate
			}
			return nil
		}})
		m.PodsComplete()
		pod := podOf("web", "data")
		require.NoError(t, m.AddPod(t.Context(), pod))
		pass(time.Minute)
		assert.Empty(t, w.changes())
		require.ErrorIs(t, m.PodStatus(pod.UID)[0].Err, operationexecutor.ErrNotReportedInUse)
		require.ErrorIs(t, m.PodStatus(pod.UID)[0].Err, errUpdate, "the last real cause")

		broken.Store(false)
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
		w.remove(pod)
	})
}

// TestAVolumeThatIsLetGoWhileItIsReportedLeavesTheList: found by the simulation, seed 1263.
func TestAVolumeThatIsLetGoWhileItIsReportedLeavesTheList(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		c := newController(w)
		w.claim("data")
		writing, goOn := make(chan struct{}), make(chan struct{})
		m := w.startOn(&nodeStore{Store: w.store, update: func(node *v1.Node) error {
			if len(node.Status.VolumesInUse) > 0 {
				close(writing)
				<-goOn
			}
			return nil
		}})
		m.PodsComplete()
		pod := podOf("web", "data")
		require.NoError(t, m.AddPod(t.Context(), pod))
		<-writing
		w.remove(pod)
		close(goOn)
		synctest.Wait()
		assert.Empty(t, c.inUse(), "otherwise the controller waits for ever for a volume that no pod uses")
	})
}

// startOn starts a manager whose store is another one.
func (w *world) startOn(s store.Store) *Manager {
	w.t.Helper()
	w.prepare()
	w.options.Store = s
	m, err := New(w.plugins, w.options)
	require.NoError(w.t, err)
	w.manager = m
	w.run()
	return m
}

// TestAConflictIsTriedAgainAtOnce: others write the node, too.
func TestAConflictIsTriedAgainAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		c := newController(w)
		w.claim("data")
		c.attach("data")
		var conflicts atomic.Int32
		m := w.startOn(&nodeStore{Store: w.store, update: func(*v1.Node) error {
			if n := conflicts.Add(1); n <= 5 {
				c.changeNode(func(s *v1.NodeStatus) { s.Phase = v1.NodePhase(fmt.Sprint(n)) })
			}
			return nil
		}})
		m.PodsComplete()
		began := time.Now()
		w.add(podOf("web", "data"))
		assert.Zero(t, time.Since(began))
		assert.EqualValues(t, 7, conflicts.Load(), "five conflicts, the empty list signed, the list")
		assert.Equal(t, v1.NodePhase("5"), c.node().Status.Phase, "nothing of theirs is lost")
		w.remove(podOf("web"))
	})
}

// TestNothingIsWithdrawnBeforeAllPodsAreKnown, neither what the records tell of nor what only the status does.
func TestNothingIsWithdrawnBeforeAllPodsAreKnown(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, withRecords(t))
		c := newController(w)
		w.claim("data")
		w.claim("other")
		c.attach("data", "other")
		m := w.start()
		m.PodsComplete()
		pod, other := podOf("web", "data"), podOf("db", "other")
		w.add(pod)
		w.add(other)
		require.NoError(t, w.stop())
		c.changeNode(func(s *v1.NodeStatus) { s.VolumesInUse = append(s.VolumesInUse, nameOfClaim("unknown")) })

		m = w.start()
		w.add(pod)
		pass(time.Hour)
		assert.Equal(t, []string{"data", "other", "unknown"}, c.inUse())
		m.PodsComplete()
		pass(0)
		assert.Equal(t, []string{"data"}, c.inUse())
		w.remove(pod)
		pass(0)
		assert.Empty(t, c.inUse())
	})
}

// TestWhatMayBeUnstagedStaysInUse until it is unstaged for certain, also when the manager is another one by then.
func TestWhatMayBeUnstagedStaysInUse(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, withRecords(t))
		c := newController(w)
		w.claim("data")
		c.attach("data")
		m := w.start()
		m.PodsComplete()
		pod := podOf("web", "data")
		w.add(pod)
		w.plugin.Inject(fake.MethodUnmountDevice, fake.FailN(-1, volume.Uncertain(errStore)))
		w.remove(pod)
		pass(time.Hour)
		assert.Equal(t, []string{"data"}, c.inUse())
		require.NoError(t, w.stop())

		m = w.start()
		w.plugin.Inject(fake.MethodUnmountDevice, fake.FailN(3, volume.Uncertain(errStore)))
		assert.Equal(t, []string{"data"}, c.inUse())
		m.PodsComplete()
		pass(0)
		assert.Equal(t, []string{"data"}, c.inUse(), "its staging may be there")
		pass(time.Minute)
		assert.Empty(t, c.inUse())
		assert.Empty(t, w.mounts())
	})
}

// TestAVolumeThatIsWithdrawnWhileItIsUsedIsShownAndLeftAlone: no other pod gets it.
func TestAVolumeThatIsWithdrawnWhileItIsUsedIsShownAndLeftAlone(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		recorder := &fake.Recorder{}
		w := newWorld(t, Options{Recorder: recorder})
		c := newController(w)
		w.claim("data")
		c.attach("data")
		m := w.start()
		m.PodsComplete()
		pod, second := podOf("web", "data"), podOf("db", "data")
		w.add(pod)
		mounts, calls := w.mounts(), w.changes()

		c.withdraw("data")
		synctest.Wait()
		require.NoError(t, m.AddPod(t.Context(), second))
		pass(time.Hour)
		assert.Equal(t, mounts, w.mounts())
		assert.Equal(t, calls, w.changes())
		assert.Equal(t, []string{"data"}, c.inUse())
		status := m.PodStatus(pod.UID)[0]
		assert.Equal(t, PhaseMounted, status.Phase)
		require.ErrorIs(t, status.Err, operationexecutor.ErrNotReportedAttached)
		require.ErrorIs(t, m.PodStatus(second.UID)[0].Err, operationexecutor.ErrNotReportedAttached)
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod), "it can be used")
		reasons := map[string]int{}
		for _, e := range recorder.Events() {
			reasons[e.Reason]++
		}
		assert.Equal(t, 1, reasons[operationexecutor.ReasonVolumeNotAttached])

		c.list("data")
		synctest.Wait()
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), second))
		require.NoError(t, m.PodStatus(pod.UID)[0].Err)
		w.remove(pod)
		w.remove(second)
		pass(0)
		assert.Empty(t, c.inUse())
	})
}

// TestADeviceThatChangedItsPathIsNotTakenForTheOldOne while nothing is staged on it.
func TestADeviceThatChangedItsPathIsNotTakenForTheOldOne(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		c := newController(w)
		w.claim("data")
		c.attach("data")
		m := w.start()
		m.PodsComplete()
		w.plugin.Inject(fake.MethodWaitForAttach, fake.FailN(5, volume.Transient(errStore)))
		pod := podOf("web", "data")
		require.NoError(t, m.AddPod(t.Context(), pod))
		require.NoError(t, w.plugin.AwaitCalls(t.Context(), fake.MethodWaitForAttach, 1))
		synctest.Wait()
		assert.Equal(t, deviceOf("data"), m.PodStatus(pod.UID)[0].DevicePath)
		c.changeNode(func(s *v1.NodeStatus) { s.VolumesAttached[0].DevicePath = "/dev/moved" })
		synctest.Wait()
		assert.Equal(t, "/dev/moved", m.PodStatus(pod.UID)[0].DevicePath)
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
		w.remove(pod)
	})
}

// TestANodeThatIsMissingIsWaitedFor, by no clock, and what was written over is written again.
func TestANodeThatIsMissingIsWaitedFor(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		c := newController(w)
		w.claim("data")
		require.NoError(t, store.Delete(t.Context(), w.store, c.node()))
		m := w.start()
		m.PodsComplete()
		pod := podOf("web", "data")
		require.NoError(t, m.AddPod(t.Context(), pod))
		synctest.Wait()
		require.ErrorIs(t, m.PodStatus(pod.UID)[0].Err, operationexecutor.ErrNotReportedAttached)

		w.create(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: string(testNode)}})
		began := time.Now()
		synctest.Wait()
		assert.Equal(t, []string{"data"}, c.inUse())
		c.attach("data")
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))

		c.changeNode(func(s *v1.NodeStatus) { s.VolumesInUse = nil })
		synctest.Wait()
		assert.Equal(t, []string{"data"}, c.inUse())

		require.NoError(t, store.Delete(t.Context(), w.store, c.node()))
		w.create(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: string(testNode)}})
		synctest.Wait()
		assert.Equal(t, []string{"data"}, c.inUse())
		assert.Equal(t, PhaseMounted, m.PodStatus(pod.UID)[0].Phase)
		assert.Zero(t, time.Since(began))
		w.remove(pod)
	})
}

// reporter is an orchestrator that keeps the status of its node.
type reporter struct {
	mu    sync.Mutex
	lists [][]v1.UniqueVolumeName
	err   error
}

func (r *reporter) ReportVolumesInUse(_ context.Context, volumes []v1.UniqueVolumeName) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lists = append(r.lists, volumes)
	return r.err
}

func (r *reporter) last() []v1.UniqueVolumeName {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lists[len(r.lists)-1]
}

// TestAnOrchestratorMayReportByItself, at once or later.
func TestAnOrchestratorMayReportByItself(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		r := &reporter{err: ErrReportedLater}
		w := newWorld(t, Options{VolumesInUse: r})
		c := newController(w)
		w.claim("data")
		c.attach("data")
		m := w.start()
		m.PodsComplete()
		pod := podOf("web", "data")
		require.NoError(t, m.AddPod(t.Context(), pod))
		pass(time.Hour)
		assert.Empty(t, w.changes())
		assert.Empty(t, c.inUse(), "the node's object is the orchestrator's")
		assert.Equal(t, []v1.UniqueVolumeName{nameOfClaim("data")}, r.last())
		calls := len(r.lists)
		m.MarkVolumesAsReportedInUse(r.last())
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
		assert.Len(t, r.lists, calls, "what was taken is not told again")

		r.mu.Lock()
		r.err = nil
		r.mu.Unlock()
		w.remove(pod)
		pass(0)
		assert.Empty(t, r.last())
		w.add(pod)
		w.remove(pod)
	})
}

// TestAPodThatComesBackBeforeItsVolumeHasLeftIsNotForgotten: the volume was in the list all the time.
func TestAPodThatComesBackBeforeItsVolumeHasLeftIsNotForgotten(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		c := newController(w)
		w.claim("data")
		c.attach("data")
		m := w.start()
		m.PodsComplete()
		pod := podOf("web", "data")
		w.add(pod)
		release := make(chan struct{})
		w.plugin.Inject(fake.MethodUnmountDevice, fake.HangUntil(release))
		w.remove(pod)
		require.NoError(t, w.plugin.AwaitCalls(t.Context(), fake.MethodUnmountDevice, 1))
		require.NoError(t, m.AddPod(t.Context(), pod))
		synctest.Wait()
		assert.Equal(t, []string{"data"}, c.inUse())
		close(release)
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
		w.remove(pod)
	})
}

// TestADeviceThatOnlyTheNodeKnowsIsUsedAgain: the status says nothing of its path, and the next pod comes while it is unstaged.
func TestADeviceThatOnlyTheNodeKnowsIsUsedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		c := newController(w)
		w.claim("data")
		c.attach("data")
		c.changeNode(func(s *v1.NodeStatus) { s.VolumesAttached[0].DevicePath = "" })
		m := w.start()
		m.PodsComplete()
		pod := podOf("web", "data")
		w.add(pod)
		release := make(chan struct{})
		w.plugin.Inject(fake.MethodUnmountDevice, fake.HangUntil(release))
		w.remove(pod)
		require.NoError(t, w.plugin.AwaitCalls(t.Context(), fake.MethodUnmountDevice, 1))
		require.NoError(t, m.AddPod(t.Context(), pod))
		synctest.Wait()
		close(release)
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
		w.remove(pod)
	})
}

// TestManyVolumesAreReportedInAFewWrites: what comes while one is written goes with the next.
func TestManyVolumesAreReportedInAFewWrites(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		const pods = 100
		w := newWorld(t, Options{})
		c := newController(w)
		for i := range pods {
			w.claim(fmt.Sprintf("c%d", i))
		}
		var writes atomic.Int32
		m := w.startOn(&nodeStore{Store: w.store, update: func(*v1.Node) error {
			writes.Add(1)
			time.Sleep(time.Millisecond) // of the bubble
			return nil
		}})
		c.run()
		m.PodsComplete()
		for i := range pods {
			require.NoError(t, m.AddPod(t.Context(), podOf(fmt.Sprint("p", i), fmt.Sprintf("c%d", i))))
		}
		for i := range pods {
			require.NoError(t, m.WaitForAttachAndMount(t.Context(), podOf(fmt.Sprint("p", i))))
		}
		assert.Less(t, writes.Load(), int32(20))
		for i := range pods {
			require.NoError(t, m.RemovePod(podOf(fmt.Sprint("p", i)).UID))
		}
		require.NoError(t, m.WaitForNodeEmpty(t.Context()))
		pass(time.Minute)
		assert.Empty(t, c.inUse())
		assert.Empty(t, c.node().Status.VolumesAttached)
	})
}

// TestWhatTheNodeHasAttachedItDetaches, also when it has a controller by now.
func TestWhatTheNodeHasAttachedItDetaches(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, withRecords(t))
		w.claim("data")
		m := w.start()
		m.PodsComplete()
		pod := podOf("web", "data")
		w.add(pod)
		require.NoError(t, w.stop())

		c := newController(w)
		m = w.start()
		w.add(pod)
		m.PodsComplete()
		pass(0)
		assert.Equal(t, []string{"data"}, c.inUse())
		w.remove(pod)
		require.NoError(t, m.WaitForNodeEmpty(t.Context()))
		assert.Contains(t, w.changes(), string(fake.MethodDetach))
		c.run()
		c.changeNode(func(s *v1.NodeStatus) { s.Phase = v1.NodeRunning })
		w.add(pod)
		assert.Contains(t, w.changes(), "MountDevice")
		w.remove(pod)
		require.NoError(t, m.WaitForNodeEmpty(t.Context()))
		pass(0)
		w.isClean()
	})
}

// TestAListThatAnotherProgramHasEmptiedIsWrittenAgain: meanwhile the empty list does not count as the list of this node.
func TestAListThatAnotherProgramHasEmptiedIsWrittenAgain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		c := newController(w)
		w.claim("data")
		c.attach("data")
		var emptied atomic.Bool
		m := w.startOn(&nodeStore{Store: w.store, update: func(*v1.Node) error {
			if emptied.Load() {
				assert.True(t, store.LostVolumesInUse(c.node()))
			}
			return nil
		}})
		m.PodsComplete()
		pod := podOf("web", "data")
		w.add(pod)
		assert.Len(t, c.node().Status.VolumesInUse, 1)
		emptied.Store(true)
		c.changeNode(func(s *v1.NodeStatus) { s.VolumesInUse = nil })
		synctest.Wait()
		assert.Len(t, c.node().Status.VolumesInUse, 1)
		emptied.Store(false)
		w.remove(pod)
		synctest.Wait()
		assert.Empty(t, c.node().Status.VolumesInUse)
		assert.True(t, store.SaysVolumesInUse(c.node()))
	})
}

// TestANodeThatMayNotSignReportsAllTheSame: it may write no more than its status.
func TestANodeThatMayNotSignReportsAllTheSame(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		c := newController(w)
		w.claim("data")
		c.attach("data")
		m := w.startOn(&nodeStore{Store: w.store, update: func(n *v1.Node) error {
			if _, signs := n.Annotations[store.AnnVolumesInUseOf]; signs {
				return store.ErrInvalid
			}
			return nil
		}})
		m.PodsComplete()
		w.add(podOf("web", "data"))
		assert.Len(t, c.node().Status.VolumesInUse, 1)
		w.remove(podOf("web"))
		synctest.Wait()
		assert.Empty(t, c.node().Status.VolumesInUse)
	})
}

// TestASignatureThatFailedIsWrittenAgain: without it the controller detaches nothing from the node.
func TestASignatureThatFailedIsWrittenAgain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		c := newController(w)
		w.claim("data")
		c.attach("data")
		var wasListed, failed atomic.Bool
		m := w.startOn(&nodeStore{Store: w.store, update: func(n *v1.Node) error {
			if wasListed.Load() && store.SaysVolumesInUse(n) &&
				len(n.Status.VolumesInUse) == 0 && !failed.Swap(true) {
				return errors.New("the store is away")
			}
			return nil
		}})
		m.PodsComplete()
		w.add(podOf("web", "data"))
		assert.Len(t, c.node().Status.VolumesInUse, 1)
		wasListed.Store(true)
		w.remove(podOf("web"))
		time.Sleep(time.Minute)
		synctest.Wait()
		require.True(t, failed.Load())
		assert.False(t, store.LostVolumesInUse(c.node()))
		assert.True(t, store.SaysVolumesInUse(c.node()))
	})
}

// TestAManagerStartsOnAListThatWasEmptied: that of its own node when it was killed before it signed the list, and that of another program.
func TestAManagerStartsOnAListThatWasEmptied(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		c := newController(w)
		w.claim("data")
		c.attach("data")
		node := c.node()
		node.Annotations = map[string]string{store.AnnVolumesInUseOf: ""}
		_, err := w.store.Update(t.Context(), node)
		require.NoError(t, err)
		m := w.startOn(w.store)
		m.PodsComplete()
		w.add(podOf("web", "data"))
		assert.Len(t, c.node().Status.VolumesInUse, 1)
		w.remove(podOf("web"))
	})
}

// TestAnIdleManagerWithAControllerDoesNotWakeUp: no clock of the exchange runs.
func TestAnIdleManagerWithAControllerDoesNotWakeUp(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		c := newController(w)
		w.claim("data")
		var writes atomic.Int32
		m := w.startOn(&nodeStore{Store: w.store, update: func(*v1.Node) error {
			writes.Add(1)
			return nil
		}})
		m.PodsComplete()
		require.NoError(t, m.AddPod(t.Context(), podOf("web", "data")))
		synctest.Wait()
		planned := m.Status().Planned
		pass(24 * time.Hour)
		assert.Equal(t, planned, m.Status().Planned, "it waits for the controller")
		assert.EqualValues(t, 2, writes.Load(), "the empty list signed, the list")
		c.attach("data")
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), podOf("web")))
		synctest.Wait()
		planned = m.Status().Planned
		c.changeNode(func(s *v1.NodeStatus) { s.Phase = v1.NodeRunning })
		pass(24 * time.Hour)
		assert.Equal(t, planned, m.Status().Planned, "what a heartbeat says is no news")
		w.remove(podOf("web"))
	})
}

func TestOptionsOfTheExchangeAreChecked(t *testing.T) {
	w := newWorld(t, Options{})
	w.prepare()
	for name, o := range map[string]Options{
		"no store":           {AttachedBy: AttachedByController},
		"no controller":      {VolumesInUse: &reporter{}},
		"no such AttachedBy": {AttachedBy: 7, Store: w.store},
	} {
		_, err := New(w.plugins, o)
		require.ErrorIs(t, err, volume.ErrInvalid, name)
	}
}

// TestWithTheResyncOffEverythingConverges is TestChurnEndsWithWhatIsWanted with changes from outside: a controller attaches and
// detaches at once, withdraws volumes in use, and moves volumes while the node's object is made again; another program
// overwrites the node's report; volumes expand; writes of the store fail; a plugin is removed and added again. It proves that
// no volume is mounted that the controller detaches.
func TestWithTheResyncOffEverythingConverges(t *testing.T) {
	seeds := uint64(10)
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *testing.T) {
				newElsewhere(t, seed).run()
			})
		})
	}
}

// elsewhere is a churn in which others act, too.
type elsewhere struct {
	*churn
	controller *controller
	broken     atomic.Bool
	size       int64 // of each volume, in MiB
	prober     *prober
	gone       *fake.Plugin // that was removed; a manager that is started has a new one
}

func newElsewhere(t *testing.T, seed uint64) *elsewhere {
	t.Helper()
	e := &elsewhere{size: 128, prober: newProber()}
	e.churn = newChurn(t, seed, func(w *world) {
		w.options.Prober = e.prober
		e.controller = newController(w)
		w.wrapStore = func(s store.Store) store.Store {
			return &nodeStore{Store: s, update: func(*v1.Node) error {
				if e.broken.Load() {
					return errUpdate
				}
				return nil
			}}
		}
	})
	for _, claim := range []string{"x", "z"} {
		e.resize(claim)
	}
	e.controller.run()
	e.more = e.act
	return e
}

// resize gives a volume its size, and has the claim ask the node to go on.
func (e *elsewhere) resize(claim string) {
	size := fmt.Sprintf("%dMi", e.size)
	e.changeClaim(claim, func(pvc *v1.PersistentVolumeClaim) {
		if pvc.Status.Capacity == nil {
			pvc.Status.Capacity = storage(size)
		}
	})
	e.grow(claim, size)
	e.askNode(claim, size)
}

func (e *elsewhere) act() {
	switch e.rand.IntN(7) {
	case 0:
		e.broken.Store(!e.broken.Load())
	case 1:
		e.controller.withdraw("x") // It is attached, and used: the controller lists it again when it is told so.
	case 2:
		e.controller.changeNode(func(s *v1.NodeStatus) { s.VolumesInUse = append(s.VolumesInUse, nameOfClaim("unknown")) })
	case 3:
		node := e.controller.node()
		assert.NoError(e.t, store.Delete(e.t.Context(), e.store, node))
		pass(time.Duration(e.rand.IntN(2)) * time.Second)
		e.create(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: string(testNode)}, Status: v1.NodeStatus{VolumesInUse: node.Status.VolumesInUse}})
	case 4:
		e.size *= 2
		e.resize("x")
		e.resize("z")
	case 5:
		e.movePlugin()
	default:
		e.plugin.Inject(fake.MethodNodeExpand, fake.Fail(volume.Uncertain(errStore)), fake.PanicWith("oops"))
	}
}

// movePlugin has the plugin go, or come back.
func (e *elsewhere) movePlugin() {
	if e.gone == e.plugin {
		e.gone = nil
		e.prober.events <- volume.ProbeEvent{Plugin: e.plugin}
		return
	}
	e.gone = e.plugin
	e.prober.events <- volume.ProbeEvent{Op: volume.ProbeRemove, PluginName: fake.DefaultPluginName}
}

func (e *elsewhere) run() {
	e.steps()
	if e.gone == e.plugin {
		e.movePlugin()
	}
	e.broken.Store(false)
	pass(20 * time.Minute)
	for _, pod := range e.wanted {
		require.NoError(e.t, e.manager.WaitForAttachAndMount(e.t.Context(), pod))
		for _, status := range e.manager.PodStatus(pod.UID) {
			require.NoError(e.t, status.Err)
		}
	}
	e.check()
	assert.Empty(e.t, e.controller.inUse())
}
