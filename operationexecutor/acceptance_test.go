package operationexecutor_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// This file holds what docs/acceptance.md asks for and no other test does on its own.

// TestALiveMountOutlivesEveryRemountThatFails, also one whose plugin panics or does not return.
func TestALiveMountOutlivesEveryRemountThatFails(t *testing.T) {
	failures := map[string]func(context.Context) error{
		"a panic":          func(context.Context) error { panic("boom") },
		"an ended routine": func(context.Context) error { runtime.Goexit(); return nil },
		"a time-out":       func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	}
	for name, cause := range classes() {
		failures[name] = func(context.Context) error { return cause }
	}
	for name, fail := range failures {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := stagedWorld(t)
				w.succeeded(w.mount("data", "p"))
				before, ok := w.actual.GetMountedVolume(volumeName("data"), "p")
				require.True(t, ok)
				w.plugin.on("SetUp", fail)
				_ = w.failed(w.remount("data", "p"))
				after, ok := w.actual.GetMountedVolume(volumeName("data"), "p")
				require.True(t, ok, "the pod still has it")
				assert.Equal(t, before.MountPath, after.MountPath)
				assert.Equal(t, operationexecutor.DeviceGloballyMounted, w.device("data"))
				assert.Equal(t, operationexecutor.IntentDone, w.journal.record("data", "p"))
				assert.Equal(t, 1, w.count("MountDevice"), "nor is what is staged staged again")
				w.plugin.on("SetUp", nil)
				w.succeeded(w.remount("data", "p"))
			})
		})
	}
}

// TestATimeoutIsNotTakenForAFailure: what a call past its deadline may have left is known, is made again before it is
// used, and is undone before it is forgotten; of the device and of the pod each for itself.
func TestATimeoutIsNotTakenForAFailure(t *testing.T) {
	timeOut := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	for method, test := range map[string]struct {
		device     operationexecutor.DeviceMountState
		pod        operationexecutor.VolumeMountState
		left, made []string // what is called to take it down, and to use it after all
	}{
		"MountDevice": {
			operationexecutor.DeviceMountUncertain, operationexecutor.VolumeNotMounted,
			[]string{"UnmountDevice"}, []string{"MountDevice", "SetUp"},
		},
		"SetUp": {
			operationexecutor.DeviceGloballyMounted, operationexecutor.VolumeMountUncertain,
			[]string{"TearDown", "UnmountDevice"}, []string{"SetUp"},
		},
	} {
		timedOut := func(t *testing.T) *world {
			w := stagedWorld(t)
			w.plugin.on(method, timeOut)
			require.ErrorIs(t, w.failed(w.mount("data", "p")), volume.ErrUncertain)
			require.Equal(t, test.device, w.device("data"))
			require.Equal(t, test.pod, w.pod("data", "p"))
			require.NotEmpty(t, w.journal.records)
			w.plugin.on(method, nil)
			w.clear()
			return w
		}
		t.Run(method+", not wanted any more", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := timedOut(t)
				require.ErrorIs(t, w.actual.DeleteVolume(volumeName("data")), volume.ErrInUse, "it cannot be forgotten")
				if w.pod("data", "p") != operationexecutor.VolumeNotMounted {
					require.ErrorIs(t, w.failed(w.unmountDevice("data")), volume.ErrInUse, "the pod may have it")
					w.succeeded(w.unmount("data", "p"))
				}
				w.succeeded(w.unmountDevice("data"))
				assert.Equal(t, test.left, w.pluginCalls())
				assert.Empty(t, w.journal.records)
			})
		})
		t.Run(method+", still wanted", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := timedOut(t)
				w.succeeded(w.mount("data", "p"))
				assert.Equal(t, test.made, w.pluginCalls())
			})
		})
	}
}

// pluginCalls are the calls by which the plugin makes or undoes something at the node, in order.
func (w *world) pluginCalls() []string {
	changes := []string{"MountDevice", "SetUp", "TearDown", "UnmountDevice"}
	return slices.DeleteFunc(w.all(), func(line string) bool { return !slices.Contains(changes, line) })
}

// TestAFinalErrorDoesNotProveThatWhatWasFoundIsGone: it was there before this program was, and only a success tells more.
func TestAFinalErrorDoesNotProveThatWhatWasFoundIsGone(t *testing.T) {
	w := newWorld(t, setup{attachable: true, stageable: true})
	w.believeDevice(operationexecutor.VolumeMountUncertain, true)
	w.believe(operationexecutor.VolumeMountUncertain, true)
	for _, method := range []string{"MountDevice", "SetUp"} {
		w.plugin.fail(method, errBroken)
		for range 2 {
			require.ErrorIs(t, w.failed(w.mount("data", "p")), volume.ErrUncertain)
			assert.NotEqual(t, operationexecutor.DeviceNotMounted, w.device("data"), method)
			assert.Equal(t, operationexecutor.VolumeMountUncertain, w.pod("data", "p"), method)
		}
		w.plugin.fail(method, nil)
	}
	w.succeeded(w.mount("data", "p"))

	w.plugin.fail("SetUp", volume.Uncertain(errBroken))
	w.succeeded(w.unmount("data", "p"))
	_ = w.failed(w.mount("data", "p"))
	require.Equal(t, operationexecutor.VolumeMountUncertain, w.pod("data", "p"))
	w.plugin.fail("SetUp", errBroken)
	require.NotErrorIs(t, w.failed(w.mount("data", "p")), volume.ErrUncertain)
	assert.Equal(t, operationexecutor.VolumeNotMounted, w.pod("data", "p"), "this one was not found: the error is believed")
}

// markedState keeps in the history what it is told.
type markedState struct {
	*cache.ActualStateOfWorld
	*history
}

func (s markedState) MarkVolumeAsMounted(o operationexecutor.MountedVolume) error {
	s.add("pod is marked")
	return s.ActualStateOfWorld.MarkVolumeAsMounted(o)
}

// TestTheDeviceIsMarkedBeforeThePod: who is killed or asked in between sees a device without a pod, never the reverse.
func TestTheDeviceIsMarkedBeforeThePod(t *testing.T) {
	staged := func(w *world) func(context.Context) error {
		return func(context.Context) error {
			assert.Equal(t, operationexecutor.DeviceGloballyMounted, w.device("data"))
			assert.Equal(t, operationexecutor.VolumeNotMounted, w.pod("data", "p"))
			return nil
		}
	}
	w := stagedWorld(t)
	w.plugin.on("MountDevice", func(context.Context) error {
		assert.Equal(t, operationexecutor.DeviceNotMounted, w.device("data"))
		return nil
	})
	w.plugin.on("SetUp", staged(w))
	w.succeeded(w.executor.MountVolume(t.Context(), w.toMount("data", "p"), operationexecutor.MountOptions{},
		markedState{w.actual, w.history}))
	assert.Equal(t, []string{"MountDevice", "SetUp", "pod is marked"}, only(w.all(), "MountDevice", "SetUp", "pod is marked"))

	w, _ = newBlockWorld(t)
	for _, method := range []string{"MapPodDevice", "ResolveDevice", "MapDevice"} {
		w.plugin.on(method, staged(w))
	}
	w.succeeded(w.mapBlock())
	assert.Equal(t, operationexecutor.VolumeMounted, w.pod("data", "p"))
}

func only(lines []string, of ...string) []string {
	return slices.DeleteFunc(lines, func(line string) bool { return !slices.Contains(of, line) })
}

// TestWhatWasMappedForAPodIsUndoneWhateverFailsLater holds for all that comes after MapPodDevice.
func TestWhatWasMappedForAPodIsUndoneWhateverFailsLater(t *testing.T) {
	for _, method := range []string{"ResolveDevice", "MapDevice"} {
		for name, cause := range classes() {
			t.Run(method+"/"+name, func(t *testing.T) {
				w, _ := newBlockWorld(t)
				w.plugin.fail(method, cause)
				require.ErrorIs(t, w.failed(w.mapBlock()), volume.ErrUncertain)
				require.Equal(t, operationexecutor.VolumeMountUncertain, w.pod("data", "p"))
				require.ErrorIs(t, w.failed(w.unmountDevice("data")), volume.ErrInUse)
				w.succeeded(w.unmapBlock())
				w.succeeded(w.unmountDevice("data"))
				undone := []string{"UnmapDevice", "UnmapPodDevice", "TearDownDevice", "RemoveMapPath"}
				assert.Equal(t, undone, only(w.all(), undone...))
				assert.Empty(t, w.journal.records)
			})
		}
	}
}

// askedUse is a DeviceUse that keeps in the history that it was asked.
type askedUse struct {
	*history
	opened bool
}

func (u *askedUse) DeviceOpened(_ context.Context, path string) (bool, error) {
	u.add("DeviceOpened", path)
	return u.opened, nil
}

// TestADeviceIsProbedForOpenersAfterItIsUnstaged and before it is believed free; one that is open is unstaged again.
func TestADeviceIsProbedForOpenersAfterItIsUnstaged(t *testing.T) {
	use := &askedUse{opened: true}
	w := newWorld(t, setup{attachable: true, stageable: true, generator: func(o *operationexecutor.GeneratorOptions) { o.DeviceUse = use }})
	use.history = w.history
	w.attached("data")
	w.succeeded(w.mount("data", "p"))
	w.succeeded(w.unmount("data", "p"))
	w.clear()
	require.ErrorIs(t, w.failed(w.unmountDevice("data")), volume.ErrInUse)
	assert.Equal(t, []string{"intend staging", "UnmountDevice", "DeviceOpened /dev/data", "conclude staging uncertain"}, w.all())
	assert.Equal(t, operationexecutor.DeviceMountUncertain, w.device("data"))
	require.ErrorIs(t, w.failed(w.detach("data")), volume.ErrInUse, "nor is it detached")

	use.opened = false
	w.clear()
	w.succeeded(w.unmountDevice("data"))
	assert.Equal(t, []string{"intend staging", "UnmountDevice", "DeviceOpened /dev/data", "conclude staging forgotten"}, w.all())
}

// TestAHungCallHoldsUpItsVolumeAlone: other volumes and other pods' operations on them go on, who waits ends with its own
// context, and the error that was met is told.
func TestAHungCallHoldsUpItsVolumeAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{attachable: true, stageable: true})
		for _, name := range []string{"data", "other"} {
			w.attached(name)
		}
		release := make(chan struct{})
		w.plugin.on("MountDevice", func(context.Context) error { <-release; return errBroken })
		hung, err := w.mount("data", "p")
		require.NoError(t, err)
		synctest.Wait()
		w.plugin.on("MountDevice", nil)
		w.succeeded(w.mount("other", "p"))
		w.succeeded(w.unmount("other", "p"))
		w.succeeded(w.unmountDevice("other"))
		w.succeeded(w.detach("other"))

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, w.executor.Wait(ctx), context.DeadlineExceeded, "who waits is not held up for longer than it said")
		_, err = w.mount("data", "q")
		var pending *volume.PendingError
		require.ErrorAs(t, err, &pending)

		close(release)
		awaitDone(t, hung)
		_, err = w.mount("data", "p")
		var backoff *volume.BackoffError
		require.ErrorAs(t, err, &backoff)
		require.ErrorIs(t, backoff, errBroken, "the last real error is told")
	})
}

// TestNothingGrowsWithVolumesThatAreGone: volumes that came, failed, worked and went leave no memory behind.
func TestNothingGrowsWithVolumesThatAreGone(t *testing.T) {
	w := newWorld(t, setup{stageable: true})
	live := func(first, n int) {
		for i := first; i < first+n; i++ {
			name, pod := fmt.Sprint("volume-", i), fmt.Sprint("pod-", i)
			w.attached(name)
			w.plugin.fail("SetUp", errBroken)
			_ = w.failed(w.mount(name, pod)) // It also calls Forget, as callers do when a volume is gone.
			w.plugin.fail("SetUp", nil)
			w.succeeded(w.mount(name, pod))
			w.succeeded(w.unmount(name, pod))
			w.succeeded(w.unmountDevice(name))
			require.NoError(t, w.actual.DeleteVolume(volumeName(name)))
			w.clear()
			w.recorder.clear()
		}
	}
	const n = 1000
	live(0, n) // What is kept for reuse is there from now on.
	before := heapObjects()
	live(n, 3*n)
	require.Empty(t, w.journal.records)
	assert.Less(t, heapObjects()-before, int64(n), "fewer than one object of every three volumes")
	runtime.KeepAlive(w)
}

func heapObjects() int64 {
	runtime.GC()
	runtime.GC() // What a finalizer or a pool kept.
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapObjects)
}

func (r *recorder) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = nil
}
