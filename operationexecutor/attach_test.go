package operationexecutor_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// sharedSpec returns a PersistentVolume that many nodes may have.
func sharedSpec(name string) *volume.Spec {
	s := spec(name)
	s.PersistentVolume.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}
	return s
}

func (w *world) attachTo(state *clusterState, s *volume.Spec, n types.NodeName) (*operationexecutor.Operation, error) {
	return w.executor.AttachVolume(w.t.Context(), operationexecutor.VolumeToAttach{
		VolumeName: volumeName("data"), VolumeSpec: s, NodeName: n, ScheduledPods: []*v1.Pod{pod("p")},
	}, state)
}

func (w *world) detachFrom(state *clusterState, s *volume.Spec, n types.NodeName) (*operationexecutor.Operation, error) {
	return w.executor.DetachVolume(w.t.Context(), operationexecutor.AttachedVolume{
		VolumeName: volumeName("data"), VolumeSpec: s, NodeName: n,
	}, operationexecutor.DetachOptions{VerifySafeToDetach: true}, state)
}

// TestADanglingAttachmentIsUncertainOnTheNodeThatHasIt is half of mistake 9 of section 8.1, with the error wrapped.
func TestADanglingAttachmentIsUncertainOnTheNodeThatHasIt(t *testing.T) {
	dangling := func(n types.NodeName) error {
		return fmt.Errorf("cloud: %w", &volume.DanglingAttachError{CurrentNode: n, DevicePath: "/dev/x", Err: errBroken})
	}
	for name, test := range map[string]struct {
		spec      *volume.Spec
		err       error
		uncertain types.NodeName
		record    string
	}{
		"another node":                            {spec("data"), dangling("b"), "b", "forgotten"},
		"the same node":                           {spec("data"), dangling("a"), "a", "uncertain"},
		"a node without a name":                   {spec("data"), dangling(""), "a", "uncertain"},
		"a volume that many nodes may have":       {sharedSpec("data"), dangling("b"), "a", "uncertain"},
		"any other error":                         {spec("data"), errBroken, "a", "uncertain"},
		"an error that says that nothing started": {spec("data"), volume.Transient(errBroken), "a", "uncertain"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, setup{attachable: true, stageable: true})
			state := newClusterState(w.history)
			w.plugin.fail("Attach", test.err)
			err := w.failed(w.attachTo(state, test.spec, "a"))
			require.ErrorIs(t, err, errBroken)
			require.ErrorIs(t, err, volume.ErrUncertain)
			assert.Equal(t, []string{
				"intend attachment", "Attach", "conclude attachment " + test.record, "uncertain " + string(test.uncertain),
			}, w.history.all())
			assert.Equal(t, []string{"Warning FailedAttachVolume p"}, w.recorder.all())
		})
	}
}

// TestANodeKnowsNothingOfAVolumeThatAnotherNodeHas: the state of one node has no row for another, and no trace is left.
func TestANodeKnowsNothingOfAVolumeThatAnotherNodeHas(t *testing.T) {
	w := newWorld(t, setup{attachable: true, stageable: true})
	w.plugin.fail("Attach", &volume.DanglingAttachError{CurrentNode: "b", Err: errBroken})
	err := w.failed(w.attach("data"))
	require.ErrorIs(t, err, errBroken)
	require.NotErrorIs(t, err, volume.ErrInvalid, "the state is not asked for what it cannot hold")
	assert.False(t, w.actual.VolumeExists(volumeName("data")))
	assert.Empty(t, w.journal.records)
}

// TestAFailureBeforeTheCallMarksNothing, for attach and for detach.
func TestAFailureBeforeTheCallMarksNothing(t *testing.T) {
	w := newWorld(t, setup{attachable: false})
	state := newClusterState(w.history)
	require.ErrorIs(t, w.failed(w.attachTo(state, spec("data"), "a")), volume.ErrUnsupported)
	require.Empty(t, w.history.all())

	w = newWorld(t, setup{attachable: true, stageable: true})
	state = newClusterState(w.history)
	w.journal.err = errBroken
	require.ErrorIs(t, w.failed(w.attachTo(state, spec("data"), "a")), errBroken)
	require.Empty(t, w.history.all())
	require.ErrorIs(t, w.failed(w.detachFrom(state, spec("data"), "a")), errBroken)
	assert.Equal(t, []string{"withdrawn a", "reported a"}, w.history.all())
}

// TestOneNodeAloneHasAnExclusiveVolume is acceptance line 10: uncertain attachments count, which Kubernetes forgets.
func TestOneNodeAloneHasAnExclusiveVolume(t *testing.T) {
	for _, other := range []string{"attached", "uncertain"} {
		t.Run(other, func(t *testing.T) {
			w := newWorld(t, setup{attachable: true, stageable: true})
			state := newClusterState(w.history)
			state.set(volumeName("data"), "b", other)
			state.set(volumeName("data"), "a", "uncertain")
			err := w.failed(w.attachTo(state, spec("data"), "a"))
			var multi *operationexecutor.MultiAttachError
			require.ErrorAs(t, err, &multi)
			require.ErrorIs(t, err, volume.ErrInUse)
			assert.Equal(t, []types.NodeName{"b"}, multi.Nodes)
			assert.Empty(t, w.history.all(), "nothing was begun and nothing is marked")

			w.succeeded(w.attachTo(state, sharedSpec("data"), "a"))
			state.set(volumeName("data"), "b", "")
			w.succeeded(w.attachTo(state, spec("data"), "a"))
		})
	}
}

func TestThatAnotherNodeHasTheVolumeIsToldOnce(t *testing.T) {
	w := newWorld(t, setup{attachable: true, stageable: true})
	state := newClusterState(w.history)
	state.set(volumeName("data"), "b", "attached")
	v := operationexecutor.VolumeToAttach{
		VolumeName: volumeName("data"), VolumeSpec: spec("data"), NodeName: "a", ScheduledPods: []*v1.Pod{pod("p"), pod("q")},
	}
	for _, reported := range []bool{false, true} {
		v.MultiAttachErrorReported = reported
		_ = w.failed(w.executor.AttachVolume(t.Context(), v, state))
		assert.Equal(t, []string{"Warning FailedAttachVolume p", "Warning FailedAttachVolume q"}, w.recorder.all())
	}
}

// TestTheNodeIsToldBeforeTheVolumeIsDetached is acceptance line 9.
func TestTheNodeIsToldBeforeTheVolumeIsDetached(t *testing.T) {
	w := newWorld(t, setup{attachable: true, stageable: true, withReporter: true})
	state := newClusterState(w.history)
	state.set(volumeName("data"), "a", "attached")
	w.nodes.history = w.history
	w.succeeded(w.detachFrom(state, spec("data"), "a"))
	assert.Equal(t, []string{
		"withdrawn a", "ReportAttached a", "VolumesInUse a", "intend attachment", "Detach", "detached a", "conclude attachment forgotten",
	}, w.history.all())
	assert.Equal(t, []string{"Normal SuccessfulDetachVolume data"}, w.recorder.all())
}

// TestADetachThatFails: the quirk of Kubernetes is that a failed safety check makes the attachment uncertain.
func TestADetachThatFails(t *testing.T) {
	withdrawn, told := "withdrawn a", "ReportAttached a"
	for name, test := range map[string]struct {
		fail  func(w *world)
		cause error
		after []string
	}{
		"the node cannot be told": {
			func(w *world) { w.reporter.err = errBroken }, errBroken,
			[]string{withdrawn, told, "reported a"},
		},
		"the node uses the volume": {
			func(w *world) { w.nodes.inUse = []v1.UniqueVolumeName{volumeName("data")} }, volume.ErrInUse,
			[]string{withdrawn, told, "reported a"},
		},
		"the node cannot be asked": {
			func(w *world) { w.nodes.err = errBroken }, errBroken,
			[]string{withdrawn, told, "reported a"},
		},
		"the plugin fails, and the outcome is unknown": {
			func(w *world) { w.plugin.fail("Detach", errBroken) }, errBroken,
			[]string{withdrawn, told, "intend attachment", "Detach", "conclude attachment uncertain", "uncertain a"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, setup{attachable: true, stageable: true, withReporter: true})
			state := newClusterState(w.history)
			state.set(volumeName("data"), "a", "attached")
			test.fail(w)
			require.ErrorIs(t, w.failed(w.detachFrom(state, spec("data"), "a")), test.cause)
			assert.Equal(t, test.after, w.history.all())
			assert.Equal(t, []string{"Warning FailedDetachVolume data"}, w.recorder.all())
		})
	}
}

// TestTheNameOfAVolumeTellsItsPlugin, and what Detach is given.
func TestTheNameOfAVolumeTellsItsPlugin(t *testing.T) {
	w := newWorld(t, setup{attachable: true, stageable: true})
	state := newClusterState(w.history)
	state.set(volumeName("data"), "a", "uncertain")
	var detached string
	w.plugin.onDetach = func(name string) { detached = name }
	w.succeeded(w.detachFrom(state, nil, "a"))
	assert.Equal(t, "data", detached)
	assert.Empty(t, state.get(volumeName("data"), "a"))
}

func TestADanglingAttachErrorSaysWhere(t *testing.T) {
	err := error(&volume.DanglingAttachError{CurrentNode: "b", DevicePath: "/dev/x", Err: context.Canceled})
	require.EqualError(t, err, `the volume is attached to node "b" as "/dev/x": context canceled`)
	require.ErrorIs(t, err, context.Canceled)
	require.EqualError(t, &volume.DanglingAttachError{CurrentNode: "b"}, `the volume is attached to node "b"`)
	require.NoError(t, errors.Unwrap(&volume.DanglingAttachError{CurrentNode: "b"}))
}
