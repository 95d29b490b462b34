package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/volume"
)

// follower keeps what a subscription has told.
type follower struct {
	mu    sync.Mutex
	lines []string
	last  map[string][]VolumeStatus
	ended chan struct{}
}

func follow(ctx context.Context, m *Manager) *follower {
	f := &follower{last: make(map[string][]VolumeStatus), ended: make(chan struct{})}
	go func() {
		defer close(f.ended)
		for c := range m.Subscribe(ctx) {
			f.take(c)
		}
	}()
	return f
}

func (f *follower) take(c Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	line := string(c.PodUID) + string(c.Volume)
	if len(c.Volumes) == 0 {
		delete(f.last, line)
	} else {
		f.last[line] = c.Volumes
	}
	for _, v := range c.Volumes {
		line += fmt.Sprintf(" %s=%s", v.OuterName, v.Phase)
	}
	if len(f.lines) == 0 || f.lines[len(f.lines)-1] != line {
		f.lines = append(f.lines, line)
	}
}

// told returns the lines since the last call, once everything has settled.
func (f *follower) told() []string {
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	lines := f.lines
	f.lines = nil
	return lines
}

// isTrue: what was told last is what the status says.
func (f *follower) isTrue(t *testing.T, m *Manager) {
	t.Helper()
	f.told()
	want := make(map[string][]VolumeStatus)
	for _, v := range m.Status().Volumes {
		key := string(v.PodUID)
		if key == "" {
			key = string(v.Volume)
		}
		want[key] = append(want[key], v)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	assert.Equal(t, want, f.last)
}

func TestSubscribersAreToldOfEachStep(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		m := w.start()
		m.PodsComplete()
		f := follow(t.Context(), m)
		assert.Empty(t, f.told())
		pod := podOf("web", "data")
		steps := map[fake.Method]chan struct{}{}
		for _, method := range []fake.Method{fake.MethodAttach, fake.MethodMountDevice, fake.MethodTearDown, fake.MethodUnmountDevice, fake.MethodDetach} {
			steps[method] = make(chan struct{})
			w.plugin.Inject(method, fake.HangUntil(steps[method]))
		}
		last := func() string {
			lines := f.told()
			require.NotEmpty(t, lines)
			return lines[len(lines)-1]
		}
		disk := w.unique("data")
		require.NoError(t, m.AddPod(t.Context(), pod))
		assert.Equal(t, "uid-web data=unresolved", last())
		w.claim("data")
		assert.Equal(t, "uid-web data=attaching", last())
		close(steps[fake.MethodAttach])
		assert.Equal(t, "uid-web data=mounting", last())
		close(steps[fake.MethodMountDevice])
		assert.Equal(t, "uid-web data=mounted", last())
		require.NoError(t, m.RemovePod(pod.UID))
		assert.Equal(t, "uid-web data=unmounting", last())
		close(steps[fake.MethodTearDown])
		assert.Contains(t, f.told(), "uid-web", "nothing is left of the pod")
		f.isTrue(t, m)
		close(steps[fake.MethodUnmountDevice])
		assert.Equal(t, disk+" =detaching", last())
		close(steps[fake.MethodDetach])
		assert.Equal(t, disk, last(), "the volume is gone")
		f.isTrue(t, m)
		pass(24 * time.Hour)
		assert.Empty(t, f.told(), "nothing is told while nothing changes")
	})
}

// unique returns the unique name of a claim's volume.
func (w *world) unique(claim string) string { return testPluginName + "/disk-" + claim }

func TestASubscriptionBeginsWithWhatIsThereAndTellsOfFailures(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.claim("data")
		w.claim("left")
		m := w.start()
		m.PodsComplete()
		w.plugin.Inject(fake.MethodUnmountDevice, fake.FailN(-1, errors.New("busy")))
		left := podOf("left", "left")
		w.add(left)
		w.remove(left)
		w.add(podOf("web", "data"))
		w.plugin.Inject(fake.MethodSetUp, fake.FailN(2, errors.New("no")))
		require.NoError(t, m.AddPod(t.Context(), podOf("failing", "-scratch")))
		synctest.Wait()
		f := follow(t.Context(), m)
		f.isTrue(t, m)
		f.mu.Lock()
		assert.Equal(t, []string{w.unique("left"), "uid-failing", "uid-web"}, slices.Sorted(maps.Keys(f.last)))
		assert.Equal(t, 1, f.last["uid-failing"][0].Attempts)
		f.mu.Unlock()
		pass(10 * time.Minute)
		f.isTrue(t, m)
		assert.Greater(t, f.last[w.unique("left")][0].Attempts, 3)

		pod := podOf("again", "left")
		w.add(pod)
		f.isTrue(t, m)
		assert.NotContains(t, f.last, w.unique("left"), "a pod uses it again")
	})
}

// TestASlowReceiverDelaysNoOtherAndMissesNoLastState also proves that several changes of one volume are sent once.
func TestASlowReceiverDelaysNoOtherAndMissesNoLastState(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.claim("data")
		m := w.start()
		m.PodsComplete()
		w.add(podOf("first", "data"))
		synctest.Wait()
		var told int
		resume, ended := make(chan struct{}), make(chan struct{})
		last := make(map[string]Change)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			defer close(ended)
			for c := range m.Subscribe(ctx) {
				told++
				last[string(c.PodUID)] = c
				<-resume
			}
		}()
		synctest.Wait()
		for i := range 50 {
			pod := podOf("comes-and-goes", "data", "-scratch")
			w.add(pod)
			if i < 49 {
				w.remove(pod)
			}
		}
		synctest.Wait()
		close(resume)
		synctest.Wait()
		assert.Less(t, told, 10)
		assert.Equal(t, m.PodStatus("uid-comes-and-goes"), last["uid-comes-and-goes"].Volumes)
		cancel()
		<-ended
		assert.Zero(t, m.changes.Followers(), "no subscriber is left")
	})
}

func TestASubscriptionEndsWithRun(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		m := w.start()
		pod := podOf("web", "-scratch")
		w.add(pod)
		f := follow(t.Context(), m)
		f.told()
		require.NoError(t, w.stop())
		<-f.ended
		late := follow(t.Context(), m)
		<-late.ended
		assert.Contains(t, late.last, "uid-web", "the last state can still be had")
		for range m.Subscribe(t.Context()) {
			break // and a loop may end early
		}
		assert.Zero(t, m.changes.Followers())
	})
}

func TestStatusSaysWhichCallHangs(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.claim("dead")
		m := w.start()
		m.PodsComplete()
		release := make(chan struct{})
		w.plugin.Inject(fake.MethodMountDevice, fake.HangUninterruptible(release))
		hung, waits := podOf("hung", "dead"), podOf("waits", "dead", "-scratch")
		require.NoError(t, m.AddPod(t.Context(), hung))
		synctest.Wait()
		began := time.Now()
		require.NoError(t, m.AddPod(t.Context(), waits))
		synctest.Wait()
		var pending *volume.PendingError
		require.ErrorAs(t, m.PodStatus(waits.UID)[0].Err, &pending, "another pod's operation is in its way")
		assert.Contains(t, pending.Error(), "uid-hung")
		assert.Empty(t, m.PodStatus(hung.UID)[0].Conditions, "not yet")
		pass(time.Hour)
		for _, pod := range []string{"hung", "waits"} {
			s := m.PodStatus(podOf(pod).UID)[0]
			call, hangs := s.HungCall()
			assert.True(t, hangs, pod)
			assert.Equal(t, "MountDevice", call.Call, pod)
			assert.Equal(t, began, call.Since, pod)
			assert.Equal(t, []string{ReasonHung}, reasonsOf(s), "it is told once")
			assert.Equal(t, began, s.Conditions[0].Since)
			assert.ErrorContains(t, s.Conditions[0].Err, "MountDevice")
		}
		assert.Empty(t, m.PodStatus(waits.UID)[1].Conditions, "the other volume is ready")
		close(release)
		synctest.Wait()
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), waits))
		assert.Empty(t, m.PodStatus(hung.UID)[0].Conditions)
	})
}

func reasonsOf(s VolumeStatus) (reasons []string) {
	for _, c := range s.Conditions {
		reasons = append(reasons, c.Reason)
	}
	return reasons
}

// TestAnOperatorCanActOnTheErrorOfAWait holds the whole text.
func TestAnOperatorCanActOnTheErrorOfAWait(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		for _, name := range []string{"broken", "dead"} {
			w.claim(name)
		}
		m := w.start()
		m.PodsComplete()
		release := make(chan struct{})
		defer close(release)
		w.plugin.Inject(fake.MethodMountDevice, fake.HangUninterruptible(release), fake.FailN(-1, errors.New("wrong fs type")))
		require.NoError(t, m.AddPod(t.Context(), podOf("web", "dead")))
		synctest.Wait()
		pod := podOf("web", "broken", "dead", "missing", "-fine")
		require.NoError(t, m.UpdatePod(t.Context(), pod))
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
		defer cancel()
		got := m.WaitForAttachAndMount(ctx, pod).Error()
		numbers := regexp.MustCompile(`failed \d+ times, next try at 2000-01-01T00:2\d:\d\dZ`)
		assert.Equal(t, `volumes of pod "default/web" are not ready: `+
			`"broken" is waiting: volume_mount of volume "example.com/fake/disk-broken" by plugin "example.com/fake": wrong fs type, FAILED; `+
			`"dead" is waiting, MountDevice of plugin "example.com/fake" has not returned since 2000-01-01T00:00:00Z: `+
			`volume_mount of volume "example.com/fake/disk-dead" by plugin "example.com/fake": MountDevice has not returned and was abandoned: context deadline exceeded; `+
			`"missing" is unresolved: volume "missing" of pod "default/web": claim is not ready: create claim "default/missing": PersistentVolumeClaim "default/missing": not found `+
			`(context deadline exceeded)`, numbers.ReplaceAllString(got, "FAILED"))

		err := m.WaitForNodeEmpty(ctx)
		require.ErrorContains(t, err, `volumes of the node are not gone: "broken" of pod "default/web" is waiting`)
	})
}

func TestAWaitSaysSinceWhenAnOperationRuns(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		m := w.start()
		release := make(chan struct{})
		w.plugin.Inject(fake.MethodSetUp, fake.HangUntil(release))
		pod := podOf("web", "-scratch")
		require.NoError(t, m.AddPod(t.Context(), pod))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := m.WaitForAttachAndMount(ctx, pod)
		assert.EqualError(t, err, `volumes of pod "default/web" are not ready: "scratch" is mounting since 2000-01-01T00:00:00Z (context deadline exceeded)`)
		close(release)
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
	})
}

func TestAWaitSaysThatRunWasNotCalled(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newWorld(t, withRecords(t)).prepare()
		pod := podOf("web", "-scratch")
		require.NoError(t, m.AddPod(t.Context(), pod))
		for _, wait := range []func(context.Context, *v1.Pod) error{m.WaitForAttachAndMount, m.WaitForUnmount} {
			err := wait(t.Context(), pod)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorContains(t, err, "nothing is done before Run is called")
		}
	})
}

// TestWhatComesInTheMomentInWhichAWaitEndsIsNoError: an error would name no volume.
func TestWhatComesInTheMomentInWhichAWaitEndsIsNoError(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newWorld(t, Options{}).start()
		looks := 0
		what := awaited{state: "ready", missing: func() []VolumeStatus { return nil }, isReady: func() (bool, error) {
			looks++
			return looks > 2, nil // when the wait begins, when its time is over, afterwards
		}}
		require.NoError(t, m.wait(t.Context(), podOf("web"), what))
		what.isReady = func() (bool, error) { return false, nil }
		require.ErrorIs(t, m.wait(t.Context(), podOf("web"), what), context.DeadlineExceeded)
	})
}

func TestWaitForAllPodsUnmount(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.claim("data")
		m := w.start()
		m.PodsComplete()
		first, stuck, last := podOf("first", "data"), podOf("stuck", "-scratch"), podOf("last", "data")
		pods := []*v1.Pod{first, stuck, last}
		for _, p := range pods {
			w.add(p)
		}
		w.remove(first)
		w.plugin.Inject(fake.MethodTearDown, fake.FailN(-1, errors.New("busy")))
		require.NoError(t, m.RemovePod(stuck.UID))
		require.NoError(t, m.RemovePod(last.UID))
		began := time.Now()
		err := m.WaitForAllPodsUnmount(t.Context(), append(pods, podOf("never-here")))
		assert.Equal(t, defaultWaitTimeout, time.Since(began), "one time for all of them")
		var notReady *volume.NotReadyError
		require.ErrorAs(t, err, &notReady)
		assert.Equal(t, 2, strings.Count(err.Error(), "are not gone"), "each of them is named")
		assert.Equal(t, "stuck", notReady.PodName.Name)
		require.NoError(t, m.WaitForAllPodsUnmount(t.Context(), nil))
		require.ErrorIs(t, m.WaitForAllPodsUnmount(t.Context(), []*v1.Pod{nil}), volume.ErrInvalid)
	})
}
