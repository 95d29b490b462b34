package operationexecutor_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// verifyWorld is a world whose plugin answers questions about attachments, some of which are known as attached.
func verifyWorld(t *testing.T, abilities volume.Capabilities, known ...attachment) (*world, *clusterState) {
	w := newWorld(t, setup{attachable: true, stageable: true, abilities: abilities})
	state := newClusterState(w.history)
	for _, a := range known {
		state.set(a.volume, a.node, "attached")
	}
	return w, state
}

func at(name string, n types.NodeName) attachment { return attachment{volumeName(name), n} }

// listed returns attachments as the state lists them.
func listed(known ...attachment) map[types.NodeName][]operationexecutor.AttachedVolume {
	byNode := map[types.NodeName][]operationexecutor.AttachedVolume{}
	for _, a := range known {
		_, name, _ := volume.SplitUniqueName(a.volume)
		byNode[a.node] = append(byNode[a.node], operationexecutor.AttachedVolume{
			VolumeName: a.volume, VolumeSpec: spec(name), PluginName: pluginName, PluginIsAttachable: true,
		})
	}
	return byNode
}

// verified waits for verifications that must all succeed, and returns how many there were.
func (w *world) verified(ops []*operationexecutor.Operation, err error) int {
	w.t.Helper()
	require.NoError(w.t, err)
	for _, op := range ops {
		awaitDone(w.t, op)
		require.NoError(w.t, op.Err())
	}
	return len(ops)
}

// TestAnAnswerMarksWhatIsGone and nothing else, for one node, for several, and in bulk.
func TestAnAnswerMarksWhatIsGone(t *testing.T) {
	known := []attachment{at("gone", "a"), at("there", "a"), at("unknown", "a"), at("gone", "b"), at("there", "b")}
	for name, test := range map[string]struct {
		abilities volume.Capabilities
		calls     map[string]int
	}{
		"node by node": {volume.CapExpand, map[string]int{"VolumesAreAttached": 2}},
		"in bulk":      {volume.CapBulkVerify, map[string]int{"BulkVerifyVolumes": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			w, state := verifyWorld(t, test.abilities, append(known, at("other", "a"))...)
			w.able.answers = map[attachment]bool{
				at("gone", "a"): false, at("there", "a"): true, at("gone", "b"): false, at("there", "b"): true,
				at("other", "a"): false, at("other", "c"): false, // These were not verified.
			}
			ops, err := w.executor.VerifyVolumesAreAttached(t.Context(), listed(known...), state)
			w.verified(ops, err)
			for _, a := range known {
				want := "attached"
				if a.volume == volumeName("gone") {
					want = ""
				}
				assert.Equal(t, want, state.get(a.volume, a.node), a)
			}
			assert.Equal(t, "attached", state.get(volumeName("other"), "a"))
			assert.Equal(t, 2, w.count("conclude attachment forgotten"), "otherwise the record stays for ever")
			assert.Len(t, w.able.questions(), len(known))
			for call, n := range test.calls {
				assert.Equal(t, n, w.count(call))
			}
			assert.Equal(t, []string{"Warning VolumeNotAttached gone", "Warning VolumeNotAttached gone"}, w.recorder.all())
		})
	}
}

func TestOneNodeIsAskedByItself(t *testing.T) {
	w, state := verifyWorld(t, volume.CapBulkVerify, at("gone", "a"))
	w.able.answers = map[attachment]bool{at("gone", "a"): false}
	ops, err := w.executor.VerifyVolumesAreAttachedPerNode(t.Context(), listed(at("gone", "a"))["a"], "a", state)
	assert.Equal(t, 1, w.verified(ops, err))
	assert.Equal(t, operationexecutor.OpVerifyAttached, ops[0].Info().Kind)
	assert.Equal(t, 1, w.count("VolumesAreAttached"))
	assert.Empty(t, state.get(volumeName("gone"), "a"))
}

// TestWhatCannotBeAskedIsNot: a volume whose spec is not known, and one that needs no attaching.
func TestWhatCannotBeAskedIsNot(t *testing.T) {
	w, state := verifyWorld(t, volume.CapBulkVerify)
	volumes := listed(at("data", "a"), at("own", "a"))["a"]
	volumes[0].VolumeSpec, volumes[1].PluginIsAttachable = nil, false
	ops, err := w.executor.VerifyVolumesAreAttachedPerNode(t.Context(), volumes, "a", state)
	require.NoError(t, err)
	assert.Empty(t, ops)
}

// TestAVerificationIsNeverHeldUp by another one, by an operation of the volume, or by its own failures.
func TestAVerificationIsNeverHeldUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, state := verifyWorld(t, volume.CapExpand, at("data", "a"), at("busy", "a"))
		release := make(chan struct{})
		for _, method := range []string{"VolumesAreAttached", "Attach"} {
			w.plugin.on(method, func(context.Context) error { <-release; return errBroken })
		}
		_, err := w.executor.AttachVolume(t.Context(), operationexecutor.VolumeToAttach{
			VolumeName: volumeName("busy"), VolumeSpec: spec("busy"), NodeName: "a",
		}, state)
		require.NoError(t, err)
		var ops []*operationexecutor.Operation
		for range 3 {
			begun, err := w.executor.VerifyVolumesAreAttached(t.Context(), listed(at("data", "a"), at("busy", "a")), state)
			require.NoError(t, err)
			ops = append(ops, begun...)
		}
		synctest.Wait()
		assert.Equal(t, 3, w.count("VolumesAreAttached"), "all three run")
		assert.Equal(t, map[attachment]bool{at("data", "a"): true}, w.able.questions(), "what is being attached is not asked about")
		close(release)
		require.NoError(t, w.executor.Wait(t.Context()))
		for _, op := range ops {
			require.ErrorIs(t, op.Err(), errBroken)
		}
		w.plugin.on("VolumesAreAttached", nil)
		ops, err = w.executor.VerifyVolumesAreAttached(t.Context(), listed(at("data", "a")), state)
		w.verified(ops, err)
	})
}

// TestVerificationsOfAPluginAreBounded as all its calls are.
func TestVerificationsOfAPluginAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{attachable: true, stageable: true, abilities: volume.CapExpand, executor: operationexecutor.ExecutorOptions{WorkersPerPlugin: 2}})
		state := newClusterState(w.history)
		release := make(chan struct{})
		w.plugin.on("VolumesAreAttached", func(context.Context) error { <-release; return nil })
		var known []attachment
		for i := range 5 {
			known = append(known, at("data", types.NodeName(fmt.Sprint("n", i))))
		}
		ops, err := w.executor.VerifyVolumesAreAttached(t.Context(), listed(known...), state)
		require.NoError(t, err)
		synctest.Wait()
		assert.Equal(t, 2, w.count("VolumesAreAttached"))
		close(release)
		assert.Equal(t, 5, w.verified(ops, err))
	})
}

// TestOnePluginsFailureDoesNotStopOthers and is told, as that of the plugin.
func TestOnePluginsFailureDoesNotStopOthers(t *testing.T) {
	w, state := verifyWorld(t, volume.CapExpand, at("gone", "a"))
	w.able.answers = map[attachment]bool{at("gone", "a"): false}
	bad := &ablePlugin{
		plugin: &plugin{history: &history{}, attachable: true, script: map[string]func(context.Context) error{}},
		name:   "example.com/bad", abilities: volume.CapExpand,
	}
	bad.on("VolumesAreAttached", func(context.Context) error { panic("boom") })
	require.NoError(t, w.generator.GetVolumePluginMgr().InitPlugins(t.Context(), bad))
	byNode := listed(at("gone", "a"))
	byNode["a"] = append(byNode["a"],
		operationexecutor.AttachedVolume{VolumeName: "example.com/bad/x", VolumeSpec: spec("x"), PluginIsAttachable: true},
		operationexecutor.AttachedVolume{VolumeName: "example.com/missing/y", VolumeSpec: spec("y"), PluginIsAttachable: true},
		operationexecutor.AttachedVolume{VolumeName: "nonsense", VolumeSpec: spec("z"), PluginIsAttachable: true},
	)
	state.set("example.com/bad/x", "a", "attached")
	ops, err := w.executor.VerifyVolumesAreAttached(t.Context(), byNode, state)
	require.NoError(t, err)
	require.Len(t, ops, 4)
	causes := map[string]error{}
	for _, op := range ops {
		awaitDone(t, op)
		causes[op.Info().PluginName] = op.Err()
		if op.Err() != nil {
			var typed *volume.Error
			require.ErrorAs(t, op.Err(), &typed)
			assert.Equal(t, op.Info().PluginName, typed.Plugin)
		}
	}
	require.NoError(t, causes[pluginName])
	var panicked *volume.PanicError
	require.ErrorAs(t, causes["example.com/bad"], &panicked)
	require.ErrorIs(t, causes["example.com/missing"], volume.ErrNoPlugin)
	require.ErrorIs(t, causes[""], volume.ErrNoPlugin)
	assert.Empty(t, state.get(volumeName("gone"), "a"))
	assert.Equal(t, "attached", state.get("example.com/bad/x", "a"))
}

// TestAnErrorMakesTheWholeAnswerUnknown, whatever came with it.
func TestAnErrorMakesTheWholeAnswerUnknown(t *testing.T) {
	for _, abilities := range []volume.Capabilities{volume.CapBulkVerify, volume.CapExpand} {
		w, state := verifyWorld(t, abilities, at("data", "a"), at("data", "b"))
		w.able.answers = map[attachment]bool{at("data", "a"): false, at("data", "b"): false}
		w.plugin.fail("BulkVerifyVolumes", errBroken)
		w.plugin.fail("VolumesAreAttached", errBroken)
		ops, err := w.executor.VerifyVolumesAreAttached(t.Context(), listed(at("data", "a"), at("data", "b")), state)
		require.NoError(t, err)
		for _, op := range ops {
			awaitDone(t, op)
			require.ErrorIs(t, op.Err(), errBroken)
		}
		assert.Equal(t, "attached", state.get(volumeName("data"), "a"))
		assert.Equal(t, "attached", state.get(volumeName("data"), "b"))
	}
}

// TestAStaleAnswerIsNotBelieved: the volume was attached, or is being attached, since the plugin was asked.
func TestAStaleAnswerIsNotBelieved(t *testing.T) {
	for name, ended := range map[string]bool{"an attach that has ended since": true, "an attach that is pending": false} {
		for _, node := range []types.NodeName{"a", "b"} {
			t.Run(fmt.Sprint(name, " on ", node), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w, state := verifyWorld(t, volume.CapExpand, at("data", "a"))
					w.able.answers = map[attachment]bool{at("data", "a"): false}
					answer, attach := make(chan struct{}), make(chan struct{})
					w.plugin.on("VolumesAreAttached", func(context.Context) error { <-answer; return nil })
					w.plugin.on("Attach", func(context.Context) error { <-attach; return nil })
					ops, err := w.executor.VerifyVolumesAreAttached(t.Context(), listed(at("data", "a")), state)
					require.NoError(t, err)
					synctest.Wait()

					_, err = w.attachTo(state, sharedSpec("data"), node)
					require.NoError(t, err)
					if ended {
						close(attach)
						synctest.Wait()
					}
					close(answer)
					w.verified(ops, err)
					if node == "a" {
						assert.Equal(t, "attached", state.get(volumeName("data"), "a"), "the attachment is newer than the answer")
					} else {
						assert.Empty(t, state.get(volumeName("data"), "a"), "an attachment to another node says nothing of this one")
					}
					if !ended {
						close(attach)
					}
					require.NoError(t, w.executor.Wait(t.Context()))

					w.plugin.on("VolumesAreAttached", nil)
					ops, err = w.executor.VerifyVolumesAreAttached(t.Context(), listed(at("data", "a")), state)
					w.verified(ops, err)
					assert.Empty(t, state.get(volumeName("data"), "a"), "what is asked anew is believed")
				})
			})
		}
	}
}

// TestADetachSinceMakesAnAnswerStaleToo: one that failed has left the attachment uncertain, and it stays so.
func TestADetachSinceMakesAnAnswerStaleToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, state := verifyWorld(t, volume.CapExpand, at("data", "a"))
		w.able.answers = map[attachment]bool{at("data", "a"): false}
		answer := make(chan struct{})
		w.plugin.on("VolumesAreAttached", func(context.Context) error { <-answer; return nil })
		w.plugin.fail("Detach", errBroken)
		ops, err := w.executor.VerifyVolumesAreAttached(t.Context(), listed(at("data", "a")), state)
		require.NoError(t, err)
		synctest.Wait()
		_ = w.failed(w.detachFrom(state, spec("data"), "a"))
		close(answer)
		w.verified(ops, err)
		assert.Equal(t, "uncertain", state.get(volumeName("data"), "a"))
	})
}

// TestAnAnswerDoesNotWaitForALockedKey: an attachment whose key is locked when the answer arrives keeps its state until the next verification.
func TestAnAnswerDoesNotWaitForALockedKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, state := verifyWorld(t, volume.CapExpand, at("data", "a"))
		w.able.answers = map[attachment]bool{at("data", "a"): false}
		answer, mount := make(chan struct{}), make(chan struct{})
		w.plugin.on("VolumesAreAttached", func(context.Context) error { <-answer; return nil })
		w.plugin.on("WaitForAttach", func(context.Context) error { <-mount; return errBroken })
		ops, err := w.executor.VerifyVolumesAreAttached(t.Context(), listed(at("data", "a")), state)
		require.NoError(t, err)
		synctest.Wait()
		_, err = w.mount("data", "p")
		require.NoError(t, err)
		close(answer)
		w.verified(ops, err)
		assert.Equal(t, "attached", state.get(volumeName("data"), "a"))
		close(mount)
		require.NoError(t, w.executor.Wait(t.Context()))
	})
}

// TestWhoIsRefusedByAVerificationIsTold when the key is free: the mark is made while the key is held.
func TestWhoIsRefusedByAVerificationIsTold(t *testing.T) {
	var freed atomic.Int32
	w := newWorld(t, setup{attachable: true, stageable: true, abilities: volume.CapExpand, executor: operationexecutor.ExecutorOptions{
		KeyFreed: func(o operationexecutor.OperationInfo) {
			if o.VolumeName == volumeName("data") && o.NodeName == "a" {
				freed.Add(1)
			}
		},
	}})
	state := &blockedState{clusterState: newClusterState(w.history)}
	state.onDetached = func() {
		_, err := w.attachTo(state.clusterState, spec("data"), "a")
		var pending *volume.PendingError
		assert.ErrorAs(t, err, &pending)
		assert.Zero(t, freed.Load())
	}
	w.able.answers = map[attachment]bool{at("data", "a"): false}
	ops, err := w.executor.VerifyVolumesAreAttached(t.Context(), listed(at("data", "a")), state)
	w.verified(ops, err)
	assert.Equal(t, int32(1), freed.Load())
	w.succeeded(w.attachTo(state.clusterState, spec("data"), "a"))
}

// blockedState calls onDetached while it is told that something is detached.
type blockedState struct {
	*clusterState
	onDetached func()
}

func (s *blockedState) MarkVolumeAsDetached(name v1.UniqueVolumeName, n types.NodeName) {
	s.onDetached()
	s.clusterState.MarkVolumeAsDetached(name, n)
}

// unsureState is a state that has attachments of which it is not certain.
type unsureState struct{ *clusterState }

func (s unsureState) IsAttachmentUncertain(name v1.UniqueVolumeName, n types.NodeName) bool {
	return s.get(name, n) == "uncertain"
}

// TestAnAnswerConfirmsWhatIsUncertain: what is there is attached for certain; what is not, or may have changed since the plugin was
// asked, stays uncertain.
func TestAnAnswerConfirmsWhatIsUncertain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, known := verifyWorld(t, volume.CapBulkVerify)
		state := unsureState{known}
		asked := []attachment{at("there", "a"), at("there", "b"), at("gone", "a"), at("unknown", "a"), at("data", "a")}
		for _, a := range asked {
			known.set(a.volume, a.node, "uncertain")
		}
		w.able.answers = map[attachment]bool{at("there", "a"): true, at("there", "b"): true, at("gone", "a"): false, at("data", "a"): true}
		answer := make(chan struct{})
		w.plugin.on("BulkVerifyVolumes", func(context.Context) error { <-answer; return nil })
		ops, err := w.executor.VerifyVolumesAreAttached(t.Context(), listed(asked...), state)
		require.NoError(t, err)
		synctest.Wait()
		w.plugin.fail("Detach", errBroken)
		_ = w.failed(w.detachFrom(known, spec("data"), "a"))
		close(answer)
		w.verified(ops, err)
		for _, a := range asked {
			want := "uncertain"
			if a.volume == volumeName("there") {
				want = "attached"
			}
			assert.Equal(t, want, state.get(a.volume, a.node), a)
		}
		assert.NotContains(t, w.recorder.all(), "Warning VolumeNotAttached gone")
	})
}
