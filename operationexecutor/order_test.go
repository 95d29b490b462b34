package operationexecutor_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

type start func(w *world) (*operationexecutor.Operation, error)

func mountOf(name, pod string) start {
	return func(w *world) (*operationexecutor.Operation, error) { return w.mount(name, pod) }
}

func unmountOf(name, pod string) start {
	return func(w *world) (*operationexecutor.Operation, error) { return w.unmount(name, pod) }
}

func unmountDeviceOf(name string) start {
	return func(w *world) (*operationexecutor.Operation, error) { return w.unmountDevice(name) }
}

func attachOn(mode v1.PersistentVolumeAccessMode, node types.NodeName) start {
	return func(w *world) (*operationexecutor.Operation, error) {
		s := spec("data")
		s.PersistentVolume.Spec.AccessModes = []v1.PersistentVolumeAccessMode{mode}
		return w.executor.AttachVolume(w.t.Context(), operationexecutor.VolumeToAttach{
			VolumeName: volumeName("data"), VolumeSpec: s, NodeName: node,
		}, w.actual)
	}
}

func detachOn(mode v1.PersistentVolumeAccessMode, node types.NodeName) start {
	return func(w *world) (*operationexecutor.Operation, error) {
		s := spec("data")
		s.PersistentVolume.Spec.AccessModes = []v1.PersistentVolumeAccessMode{mode}
		return w.executor.DetachVolume(w.t.Context(), operationexecutor.AttachedVolume{
			VolumeName: volumeName("data"), VolumeSpec: s, NodeName: node, PluginName: pluginName,
		}, operationexecutor.DetachOptions{}, w.actual)
	}
}

// TestWhatRunsTogether is acceptance line 1: each pair is started while the first hangs in the plugin.
func TestWhatRunsTogether(t *testing.T) {
	shared, own := setup{attachable: true, stageable: true}, setup{}
	staged := setup{stageable: true}
	tests := []struct {
		name          string
		setup         setup
		first, second start
		together      bool
	}{
		{"mounts of a volume that is neither attached nor staged, two pods", own, mountOf("data", "p"), mountOf("data", "q"), true},
		{"mounts of such a volume, one pod", own, mountOf("data", "p"), mountOf("data", "p"), false},
		{"mounts of a volume that is attached, two pods", setup{attachable: true, stageable: true}, mountOf("data", "p"), mountOf("data", "q"), false},
		{"mounts of a volume that is staged, two pods", staged, mountOf("data", "p"), mountOf("data", "q"), false},
		{"mounts of two volumes", shared, mountOf("data", "p"), mountOf("other", "p"), true},
		{"unmounts, two pods", shared, unmountOf("data", "p"), unmountOf("data", "q"), true},
		{"unmounts, one pod", shared, unmountOf("data", "p"), unmountOf("data", "p"), false},
		{"mount and unmount of a shared volume, two pods", shared, mountOf("data", "p"), unmountOf("data", "q"), false},
		{"unmount and mount of a shared volume, two pods", shared, unmountOf("data", "p"), mountOf("data", "q"), false},
		{"unmount and unstage", shared, unmountOf("data", "p"), unmountDeviceOf("data"), false},
		{"mount and unstage", shared, mountOf("data", "p"), unmountDeviceOf("data"), false},
		{"unstage and mount", shared, unmountDeviceOf("data"), mountOf("data", "p"), false},
		{"unstage twice", shared, unmountDeviceOf("data"), unmountDeviceOf("data"), false},
		{"attach of an exclusive volume, two nodes", shared, attachOn(v1.ReadWriteOnce, node), attachOn(v1.ReadWriteOnce, "b"), false},
		{"attach of a shared volume, two nodes", shared, attachOn(v1.ReadWriteMany, node), attachOn(v1.ReadWriteMany, "b"), true},
		{"attach of a shared volume, one node", shared, attachOn(v1.ReadWriteMany, node), attachOn(v1.ReadWriteMany, node), false},
		{"detach of an exclusive volume, two nodes", shared, detachOn(v1.ReadWriteOnce, node), detachOn(v1.ReadWriteOnce, "b"), false},
		{"detach of a shared volume, two nodes", shared, detachOn(v1.ReadOnlyMany, node), detachOn(v1.ReadOnlyMany, "b"), true},
		{"detach and attach of an exclusive volume", shared, detachOn(v1.ReadWriteOncePod, node), attachOn(v1.ReadWriteOncePod, "b"), false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, test.setup)
				w.attached("data")
				w.attached("other")
				release := make(chan struct{})
				for _, method := range []string{"Attach", "Detach", "MountDevice", "SetUp", "TearDown", "UnmountDevice"} {
					w.plugin.on(method, func(context.Context) error { <-release; return nil })
				}
				_, err := test.first(w)
				require.NoError(t, err)
				_, err = test.second(w)
				synctest.Wait()
				if test.together {
					require.NoError(t, err)
				} else {
					var pending *volume.PendingError
					require.ErrorAs(t, err, &pending)
					assert.Equal(t, volumeName("data"), pending.Volume)
				}
				close(release)
				require.NoError(t, w.executor.Wait(t.Context()))
				op, err := test.second(w)
				if err == nil {
					awaitDone(t, op)
				}
			})
		})
	}
}

// TestFailuresWaitLongerEachTime with the real cause in the refusal; a plugin that is not found waits as well.
func TestFailuresWaitLongerEachTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		w.attached("data")
		for name, fail := range map[string]func() (*operationexecutor.Operation, error){
			"a call that fails": func() (*operationexecutor.Operation, error) {
				w.plugin.fail("SetUp", errBroken)
				return w.mount("data", "p")
			},
			"a plugin that is not there": func() (*operationexecutor.Operation, error) {
				v := w.mounted("data", "p")
				v.PluginName = "example.com/missing"
				return w.executor.UnmountVolume(t.Context(), v, w.actual)
			},
		} {
			for n, wait := range []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second} {
				op, err := fail()
				require.NoError(t, err, name)
				awaitDone(t, op)
				require.Error(t, op.Err())
				_, err = fail()
				var backoff *volume.BackoffError
				require.ErrorAs(t, err, &backoff, name)
				assert.Equal(t, n+1, backoff.Attempts)
				assert.Equal(t, wait, time.Until(backoff.Until))
				assert.Equal(t, op.Err(), backoff.Err)
				time.Sleep(wait)
			}
		}
	})
}

func TestSuccessForgetsTheFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		w.attached("data")
		mount := func(cause error) {
			w.plugin.fail("SetUp", cause)
			op, err := w.mount("data", "p")
			require.NoError(t, err)
			awaitDone(t, op)
			require.ErrorIs(t, op.Err(), cause)
		}
		for _, cause := range []error{errBroken, errBroken, nil, errBroken} {
			mount(cause)
			time.Sleep(time.Minute)
		}
		mount(errBroken)
		_, err := w.mount("data", "p")
		var backoff *volume.BackoffError
		require.ErrorAs(t, err, &backoff)
		assert.Equal(t, 2, backoff.Attempts, "those before the success do not count")
	})
}

func TestNewIntentDropsTheBackoff(t *testing.T) {
	w := stagedWorld(t)
	w.plugin.fail("MountDevice", errBroken)
	try := func(pod string) error {
		op, err := w.mount("data", pod)
		if err == nil {
			awaitDone(t, op)
		}
		return err
	}
	require.NoError(t, try("p"))
	require.NoError(t, try("q"), "a pod does not wait for the failure of another one")
	require.Error(t, try("p"))
	w.executor.ResetBackoff(operationexecutor.Key{Volume: volumeName("data"), Pod: "p"})
	require.NoError(t, try("p"))
	require.Error(t, try("q"))
	w.executor.Forget(volumeName("data"))
	require.NoError(t, try("p"))
	require.NoError(t, try("q"))
}

func TestJitterShortensTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{executor: operationexecutor.ExecutorOptions{
			Backoff: operationexecutor.Backoff{Initial: time.Minute, Max: time.Hour, Factor: 3, Jitter: 0.5},
		}})
		w.attached("data")
		w.plugin.fail("SetUp", errBroken)
		op, err := w.mount("data", "p")
		require.NoError(t, err)
		awaitDone(t, op)
		_, err = w.mount("data", "p")
		var backoff *volume.BackoffError
		require.ErrorAs(t, err, &backoff)
		assert.LessOrEqual(t, time.Until(backoff.Until), time.Minute)
		assert.GreaterOrEqual(t, time.Until(backoff.Until), 30*time.Second)
	})
}

// observer checks, at each call, what must hold then.
type observer struct {
	*history
	started, finished func(o operationexecutor.OperationInfo, r operationexecutor.Result)
}

func (o *observer) OperationStarted(info operationexecutor.OperationInfo) {
	o.add("started", string(info.Kind))
	o.started(info, operationexecutor.Result{})
}

func (o *observer) OperationStepped(_ operationexecutor.OperationInfo, s operationexecutor.Step) {
	o.add("stepped", s.Name, s.Duration.String())
}

func (o *observer) OperationFinished(info operationexecutor.OperationInfo, r operationexecutor.Result) {
	o.add("finished", r.Class.String())
	o.finished(info, r)
}

// TestTheOrderOfAnEnd: state, observer, key, Done, KeyFreed; the same after a panic.
func TestTheOrderOfAnEnd(t *testing.T) {
	for name, call := range map[string]func(context.Context) error{
		"done":      func(context.Context) error { time.Sleep(time.Second); return nil },
		"uncertain": func(context.Context) error { time.Sleep(time.Second); panic("boom") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var w *world
				var op *operationexecutor.Operation
				pending := func() bool { return w.executor.IsOperationPending(operationexecutor.Key{Volume: volumeName("data")}) }
				ended := func() bool {
					select {
					case <-op.Done():
						return true
					default:
						return false
					}
				}
				told := &observer{history: &history{}}
				told.started = func(info operationexecutor.OperationInfo, _ operationexecutor.Result) {
					assert.True(t, pending())
					assert.False(t, info.Started.IsZero())
				}
				told.finished = func(info operationexecutor.OperationInfo, r operationexecutor.Result) {
					assert.Equal(t, time.Second, time.Since(info.Started))
					assert.Equal(t, pluginName, info.PluginName)
					assert.NotEqual(t, operationexecutor.VolumeNotMounted, w.pod("data", "p"), "the state is told first")
					assert.True(t, pending(), "the key is still taken")
					assert.False(t, ended())
					assert.Zero(t, op.Result(), "before it has ended")
					assert.Equal(t, name == "done", r.Err == nil)
				}
				freed := make(chan struct{})
				w = newWorld(t, setup{executor: operationexecutor.ExecutorOptions{Observer: told, KeyFreed: func(operationexecutor.OperationInfo) {
					assert.False(t, pending())
					assert.True(t, ended())
					close(freed)
				}}})
				w.attached("data")
				w.plugin.on("SetUp", call)
				var err error
				op, err = w.mount("data", "p")
				require.NoError(t, err)
				awaitDone(t, op)
				assert.False(t, pending(), "who waited for Done may start the next operation")
				<-freed
				assert.Equal(t, []string{
					"started volume_mount", "stepped FindPlugin 0s", "stepped NewMounter 0s", "stepped GetPath 0s", "stepped CanMount 0s",
					"stepped Intend 0s", "stepped SetUp 1s", "stepped Conclude 0s", "finished " + name,
				}, told.all())
			})
		})
	}
}
