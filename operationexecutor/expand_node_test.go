package operationexecutor_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// nodeCase is one line of the tables of what a node does.
type nodeCase struct {
	volume, has    string // of the PersistentVolume, and of the claim's status
	requested      string // empty: that of the volume
	status         v1.ClaimResourceStatus
	allocated      string // empty: the claim says nothing of expansions
	shared         bool
	notRequired    bool
	readOnly       bool
	failedBefore   bool
	here           string // the size on this node; empty: that of the claim
	fail           error
	wantClass      operationexecutor.Class
	wantErr        error
	wantCall       bool
	wantWritten    []string
	wantHere       string // the size on this node afterwards; empty: as before
	wantFinal      bool   // the failure is remembered
	wantEventsPart string
}

func (c nodeCase) world(t *testing.T) (*world, *claimStatus, *volume.Spec) {
	requested := c.requested
	if requested == "" {
		requested = c.volume
	}
	claims := newClaimStatus(claimOf("data", requested, c.has))
	if c.allocated != "" {
		claims.at(c.status, c.allocated)
	}
	if c.notRequired {
		claims.claim.Annotations = map[string]string{"volume.kubernetes.io/node-expansion-not-required": "true"}
	}
	s := claimedSpec("data", c.volume)
	if c.shared {
		s.PersistentVolume.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}
	}
	s.ReadOnly = c.readOnly
	w := expandWorld(t, claims)
	require.NoError(t, w.actual.MarkVolumeAsAttached(volumeName("data"), s, node, "/dev/data"))
	here := c.here
	if here == "" {
		here = c.has
	}
	w.actual.InitializeClaimSize(volumeName("data"), resource.MustParse(here))
	if c.failedBefore {
		w.actual.MarkVolumeExpansionFailedWithFinalError(volumeName("data"))
	}
	w.plugin.fail("NodeExpand", c.fail)
	return w, claims, s
}

func (c nodeCase) check(t *testing.T, w *world, claims *claimStatus, op *operationexecutor.Operation) {
	t.Helper()
	if c.wantErr == nil {
		require.NoError(t, op.Err())
	} else {
		require.ErrorIs(t, op.Err(), c.wantErr)
		assert.Equal(t, c.wantClass, op.Result().Class)
	}
	assert.Equal(t, c.wantCall, w.count("NodeExpand") == 1)
	assert.Equal(t, append([]string{}, c.wantWritten...), claims.written())
	want := c.wantHere
	if want == "" {
		want = c.has
	}
	here := w.actual.GetClaimSize(volumeName("data"))
	assert.Equal(t, want, here.String())
	assert.Equal(t, c.wantFinal, w.actual.CheckVolumeInFailedExpansionWithFinalErrors(volumeName("data")))
	events := fmt.Sprint(w.recorder.all())
	assert.Contains(t, events, c.wantEventsPart)
}

// inUse says that the volume is staged and that pod p has it.
func (w *world) inUse(s *volume.Spec) {
	require.NoError(w.t, w.actual.MarkDeviceAsMounted(volumeName("data"), "/dev/data", "/mounts/data", ""))
	require.NoError(w.t, w.actual.MarkVolumeAsMounted(operationexecutor.MountedVolume{
		VolumeName: volumeName("data"), PodName: "p", PodUID: "p", VolumeSpec: s, Mounter: &mounter{},
	}))
}

func (w *world) volumeToMount(s *volume.Spec, podName, desired string) operationexecutor.VolumeToMount {
	v := w.toMount("data", podName)
	v.VolumeSpec = s
	v.DesiredPersistentVolumeSize = resource.MustParse(desired)
	return v
}

var (
	errInUse       = fmt.Errorf("driver: %w: %w", errBroken, volume.ErrInUse)
	errInfeasible  = fmt.Errorf("driver: %w: %w", errBroken, volume.ErrInfeasible)
	errUnsupported = fmt.Errorf("driver: %w: %w", errBroken, volume.ErrUnsupported)
	errUncertain   = fmt.Errorf("driver: %w", volume.Uncertain(errBroken))
)

// TestANodeExpandsAVolumeInUse is the table of the node expander.
func TestANodeExpandsAVolumeInUse(t *testing.T) {
	const final, transient, uncertain = operationexecutor.Final, operationexecutor.Transient, operationexecutor.Uncertain
	grown := []string{"NodeResizeInProgress 20Gi", " 20Gi"}
	notAsked := operationexecutor.ErrExpansionNotRequested
	for name, test := range map[string]nodeCase{
		"pending": {
			volume: "20Gi", has: "10Gi", status: nodePending, allocated: "20Gi",
			wantCall: true, wantWritten: grown, wantHere: "20Gi", wantEventsPart: "Normal FileSystemResizeSuccessful p Normal FileSystemResizeSuccessful data-claim",
		},
		"in progress: a node that died goes on": {
			volume: "20Gi", has: "10Gi", status: nodeInProgress, allocated: "20Gi",
			wantCall: true, wantWritten: []string{" 20Gi"}, wantHere: "20Gi",
		},
		"pending, after an earlier failure": {
			volume: "20Gi", has: "10Gi", status: nodePending, allocated: "20Gi", failedBefore: true,
			wantCall: true, wantWritten: grown, wantHere: "20Gi",
		},
		"the claim says nothing of expansions": {
			volume: "20Gi", has: "10Gi",
			wantCall: true, wantWritten: []string{" 20Gi"}, wantHere: "20Gi",
		},
		"the claim says nothing of expansions, and another node was first": {
			volume: "20Gi", has: "20Gi", here: "10Gi",
			wantCall: true, wantHere: "20Gi",
		},
		"the control plane is at it": {
			volume: "20Gi", has: "10Gi", status: controlInProgress, allocated: "20Gi",
			wantErr: notAsked, wantClass: transient,
		},
		"the control plane has not asked": {
			volume: "20Gi", has: "10Gi", allocated: "20Gi",
			wantErr: notAsked, wantClass: transient,
		},
		"a node found that it can never be": {
			volume: "20Gi", has: "10Gi", status: nodeInfeasible, allocated: "20Gi",
			wantErr: volume.ErrInfeasible, wantClass: transient,
		},
		"the claim has the size: another node, or we before a crash": {
			volume: "20Gi", has: "20Gi", allocated: "20Gi", here: "10Gi",
			wantHere: "20Gi",
		},
		"the claim has the size, and every node expands": {
			volume: "20Gi", has: "20Gi", allocated: "20Gi", here: "10Gi", shared: true,
			wantCall: true, wantHere: "20Gi",
		},
		"every node would, but need not": {
			volume: "20Gi", has: "20Gi", allocated: "20Gi", here: "10Gi", shared: true, notRequired: true,
			wantHere: "20Gi",
		},
		"every node expands, and the plugin cannot": {
			volume: "20Gi", has: "20Gi", allocated: "20Gi", here: "10Gi", shared: true, fail: errUnsupported,
			wantCall: true, wantHere: "20Gi",
		},
		"every node expands, and this one fails: the claim is not touched": {
			volume: "20Gi", has: "20Gi", allocated: "20Gi", here: "10Gi", shared: true, fail: errInfeasible,
			wantCall: true, wantErr: errBroken, wantClass: final, wantHere: "10Gi", wantFinal: true,
			wantEventsPart: "Warning VolumeResizeFailed p",
		},
		"the plugin cannot, and the control plane asked": {
			volume: "20Gi", has: "10Gi", status: nodePending, allocated: "20Gi", fail: errUnsupported,
			wantCall: true, wantErr: volume.ErrUnsupported, wantClass: final, wantFinal: true,
			wantWritten: []string{"NodeResizeInProgress 20Gi", "NodeResizeInProgress 20Gi failed"},
		},
		"the plugin cannot, and nothing is on record": {
			volume: "20Gi", has: "10Gi", fail: errUnsupported,
			wantCall: true, wantHere: "20Gi",
		},
		"it fails for good": {
			volume: "20Gi", has: "10Gi", status: nodePending, allocated: "20Gi", fail: fmt.Errorf("driver: %w", errBroken),
			wantCall: true, wantErr: errBroken, wantClass: final, wantFinal: true,
			wantWritten: []string{"NodeResizeInProgress 20Gi", "NodeResizeInProgress 20Gi failed"}, wantEventsPart: "Warning VolumeResizeFailed data-claim",
		},
		"it fails for good, and nothing is on record": {
			volume: "20Gi", has: "10Gi", fail: errBroken,
			wantCall: true, wantErr: errBroken, wantClass: final, wantFinal: true,
		},
		"it can never be": {
			volume: "20Gi", has: "10Gi", status: nodePending, allocated: "20Gi", fail: errInfeasible,
			wantCall: true, wantErr: volume.ErrInfeasible, wantClass: final, wantFinal: true,
			wantWritten: []string{"NodeResizeInProgress 20Gi", "NodeResizeInfeasible 20Gi failed"},
		},
		"it fails again, and less is asked for by now: the control plane may choose": {
			volume: "20Gi", has: "10Gi", requested: "15Gi", status: nodePending, allocated: "20Gi", failedBefore: true, fail: errBroken,
			wantCall: true, wantErr: errBroken, wantClass: final, wantFinal: true,
			wantWritten: []string{"NodeResizeInProgress 20Gi", "NodeResizeInfeasible 20Gi failed"},
		},
		"it fails again, and as much is asked for as before": {
			volume: "20Gi", has: "10Gi", status: nodePending, allocated: "20Gi", failedBefore: true, fail: errBroken,
			wantCall: true, wantErr: errBroken, wantClass: final, wantFinal: true,
			wantWritten: []string{"NodeResizeInProgress 20Gi", "NodeResizeInProgress 20Gi failed"},
		},
		"it fails for the first time, and less is asked for by now": {
			volume: "20Gi", has: "10Gi", requested: "15Gi", status: nodePending, allocated: "20Gi", fail: errBroken,
			wantCall: true, wantErr: errBroken, wantClass: final, wantFinal: true,
			wantWritten: []string{"NodeResizeInProgress 20Gi", "NodeResizeInProgress 20Gi failed"},
		},
		"it cannot while it is used": {
			volume: "20Gi", has: "10Gi", status: nodePending, allocated: "20Gi", fail: errInUse,
			wantCall: true, wantFinal: true, wantEventsPart: "Warning VolumeResizeFailed p",
			wantWritten: []string{"NodeResizeInProgress 20Gi", "NodeResizePending 20Gi failed"},
		},
		"it cannot while it is used, and nothing is on record": {
			volume: "20Gi", has: "10Gi", fail: errInUse, wantCall: true, wantFinal: true,
		},
		"the outcome is unknown": {
			volume: "20Gi", has: "10Gi", status: nodePending, allocated: "20Gi", fail: errUncertain,
			wantCall: true, wantErr: errBroken, wantClass: uncertain, wantWritten: []string{"NodeResizeInProgress 20Gi"},
		},
		"it is unknown whether it cannot while it is used": {
			volume: "20Gi", has: "10Gi", status: nodePending, allocated: "20Gi", fail: volume.Uncertain(errInUse),
			wantCall: true, wantErr: errBroken, wantClass: uncertain, wantWritten: []string{"NodeResizeInProgress 20Gi"},
		},
		"not begun": {
			volume: "20Gi", has: "10Gi", status: nodePending, allocated: "20Gi", fail: volume.Transient(errBroken),
			wantCall: true, wantErr: errBroken, wantClass: transient, wantWritten: []string{"NodeResizeInProgress 20Gi"},
		},
		"read-only": {
			volume: "20Gi", has: "10Gi", status: nodePending, allocated: "20Gi", readOnly: true,
			wantEventsPart: "Warning FileSystemResizeFailed p Warning FileSystemResizeFailed data-claim",
		},
		"the node has the size": {
			volume: "20Gi", has: "20Gi", wantHere: "20Gi",
		},
		"the PersistentVolume is larger than what was allocated": {
			volume: "30Gi", has: "10Gi", status: nodePending, allocated: "20Gi",
			wantCall: true, wantWritten: grown, wantHere: "20Gi",
		},
		"what was allocated is there, and the next is not asked for yet": {
			volume: "30Gi", has: "20Gi", allocated: "20Gi", here: "20Gi",
			wantErr: notAsked, wantClass: transient, wantHere: "20Gi",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, claims, s := test.world(t)
			w.inUse(s)
			if test.wantHere == "" && test.here != "" {
				test.wantHere = test.here
			}
			current := w.actual.GetClaimSize(volumeName("data"))
			op := w.ended(w.executor.ExpandInUseVolume(t.Context(), w.volumeToMount(s, "p", test.volume), w.actual, current))
			test.check(t, w, claims, op)
			assert.Equal(t, operationexecutor.VolumeMounted, w.pod("data", "p"), "the pod keeps its volume")
			if test.wantCall {
				assert.Equal(t, "/dev/data", w.able.nodeGrown.DevicePath)
				assert.Equal(t, "/var/lib/agent/plugins/example.com/scripted/mounts/data", w.able.nodeGrown.DeviceStagePath)
				assert.Equal(t, "/var/lib/agent/pods/p/volumes/example.com~scripted/data", w.able.nodeGrown.DeviceMountPath)
				assert.Equal(t, current.String(), w.able.nodeGrown.OldSize.String(), "the size on this node")
			}
		})
	}
}

// TestExpansionDuringMount is acceptance line 14: the pod does not start on a volume that is too small, and the volume can
// be taken down; what cannot be expanded while it is used, or never, does not hold the pod up.
func TestExpansionDuringMount(t *testing.T) {
	const uncertain = operationexecutor.Uncertain
	for name, test := range map[string]nodeCase{
		"the claim has the size": {volume: "20Gi", has: "20Gi", wantHere: "20Gi"},
		"pending": {
			volume: "20Gi", has: "10Gi", status: nodePending, allocated: "20Gi",
			wantCall: true, wantWritten: []string{"NodeResizeInProgress 20Gi", " 20Gi"}, wantHere: "20Gi",
		},
		"nothing is on record":       {volume: "20Gi", has: "10Gi", wantCall: true, wantWritten: []string{" 20Gi"}, wantHere: "20Gi"},
		"the control plane is at it": {volume: "20Gi", has: "10Gi", status: controlInProgress, allocated: "20Gi"},
		"it can never be, as was found before": {
			volume: "20Gi", has: "10Gi", status: nodeInfeasible, allocated: "20Gi",
		},
		"read-only": {
			volume: "20Gi", has: "10Gi", status: nodePending, allocated: "20Gi", readOnly: true,
		},
		"the claim does not say what it has": {volume: "20Gi", has: "0"},
		"it cannot while it is used": {
			volume: "20Gi", has: "10Gi", status: nodePending, allocated: "20Gi", fail: errInUse, wantCall: true, wantFinal: true,
			wantWritten: []string{"NodeResizeInProgress 20Gi", "NodeResizePending 20Gi failed"},
		},
		"it fails for good": {
			volume: "20Gi", has: "10Gi", status: nodePending, allocated: "20Gi", fail: errBroken, wantCall: true, wantFinal: true,
			wantErr: errBroken, wantClass: uncertain,
			wantWritten: []string{"NodeResizeInProgress 20Gi", "NodeResizeInProgress 20Gi failed"},
		},
		"it can never be": {
			volume: "20Gi", has: "10Gi", status: nodePending, allocated: "20Gi", fail: errInfeasible, wantCall: true, wantFinal: true,
			wantWritten: []string{"NodeResizeInProgress 20Gi", "NodeResizeInfeasible 20Gi failed"}, wantEventsPart: "VolumeResizeFailed",
		},
		"it can never be, and the claim says nothing of expansions": {
			volume: "20Gi", has: "10Gi", fail: errInfeasible, wantCall: true, wantFinal: true,
		},
		"whether it can ever be is unknown": {
			volume: "20Gi", has: "10Gi", status: nodePending, allocated: "20Gi", fail: volume.Uncertain(errInfeasible), wantCall: true,
			wantErr: volume.ErrInfeasible, wantClass: uncertain, wantWritten: []string{"NodeResizeInProgress 20Gi"},
		},
		"the outcome is unknown": {
			volume: "20Gi", has: "10Gi", status: nodePending, allocated: "20Gi", fail: errUncertain, wantCall: true,
			wantErr: errBroken, wantClass: uncertain, wantWritten: []string{"NodeResizeInProgress 20Gi"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, claims, s := test.world(t)
			op := w.ended(w.executor.MountVolume(t.Context(), w.volumeToMount(s, "p", "0"), operationexecutor.MountOptions{}, w.actual))
			test.check(t, w, claims, op)
			assert.Equal(t, 1, w.count("SetUp"))
			if test.wantErr == nil {
				assert.Equal(t, operationexecutor.VolumeMounted, w.pod("data", "p"))
				assert.Equal(t, operationexecutor.IntentDone, w.journal.record("data", "p"))
				return
			}
			assert.Equal(t, operationexecutor.VolumeMountUncertain, w.pod("data", "p"))
			assert.Equal(t, operationexecutor.IntentUncertain, w.journal.record("data", "p"))
			w.succeeded(w.unmount("data", "p"))
			w.succeeded(w.unmountDevice("data"))
			assert.Equal(t, operationexecutor.VolumeNotMounted, w.pod("data", "p"))
			assert.Equal(t, 1, w.count("TearDown"))
		})
	}
}

// tellingState keeps in the history what it is told of volumes that cannot be expanded while they are used.
type tellingState struct {
	*cache.ActualStateOfWorld
	*history
}

func (s tellingState) MarkForInUseExpansionError(name v1.UniqueVolumeName) {
	s.add("cannot be expanded in use", string(name))
	s.ActualStateOfWorld.MarkForInUseExpansionError(name)
}

func (s tellingState) RemoveVolumeFromFailedWithFinalErrors(name v1.UniqueVolumeName) {
	s.add("did not fail", string(name))
	s.ActualStateOfWorld.RemoveVolumeFromFailedWithFinalErrors(name)
}

// TestTheStateLearnsWhatCannotBeExpandedInUse so that it is not tried again before the volume has left the node.
func TestTheStateLearnsWhatCannotBeExpandedInUse(t *testing.T) {
	for cause, want := range map[error]int{errInUse: 1, errBroken: 0, volume.Uncertain(errInUse): 0} {
		w, _, s := nodeCase{volume: "20Gi", has: "10Gi", status: nodePending, allocated: "20Gi", fail: cause}.world(t)
		_ = w.ended(w.executor.MountVolume(t.Context(), w.volumeToMount(s, "p", "20Gi"), operationexecutor.MountOptions{},
			tellingState{w.actual, w.history}))
		assert.Equal(t, want, w.count("cannot be expanded in use "+string(volumeName("data"))))
		assert.Zero(t, w.count("did not fail "+string(volumeName("data"))))
	}
}

func TestASuccessForgetsTheFailureOfAnExpansion(t *testing.T) {
	w, _, s := nodeCase{volume: "20Gi", has: "10Gi", status: nodePending, allocated: "20Gi", failedBefore: true}.world(t)
	w.succeeded(w.executor.MountVolume(t.Context(), w.volumeToMount(s, "p", "20Gi"), operationexecutor.MountOptions{},
		tellingState{w.actual, w.history}))
	assert.Equal(t, 1, w.count("did not fail "+string(volumeName("data"))))
}

// TestAPodThatOnlyReadsLeavesTheExpansionToOneThatWrites, on the same node.
func TestAPodThatOnlyReadsLeavesTheExpansionToOneThatWrites(t *testing.T) {
	w, claims, s := nodeCase{volume: "20Gi", has: "10Gi", status: nodePending, allocated: "20Gi"}.world(t)
	reads := *s
	reads.ReadOnly = true
	w.succeeded(w.executor.MountVolume(t.Context(), w.volumeToMount(&reads, "p", "0"), operationexecutor.MountOptions{}, w.actual))
	assert.Zero(t, w.count("NodeExpand"))
	w.succeeded(w.executor.MountVolume(t.Context(), w.volumeToMount(s, "q", "20Gi"), operationexecutor.MountOptions{}, w.actual))
	assert.Equal(t, 1, w.count("NodeExpand"))
	assert.Equal(t, []string{"NodeResizeInProgress 20Gi", " 20Gi"}, claims.written())
}

// TestALiveMountIsNotExpandedByARefresh, and so is never taken from its pod by an expansion that fails.
func TestALiveMountIsNotExpandedByARefresh(t *testing.T) {
	w, claims, s := nodeCase{volume: "20Gi", has: "10Gi", status: nodeInfeasible, allocated: "20Gi"}.world(t)
	v := w.volumeToMount(s, "p", "20Gi")
	w.succeeded(w.executor.MountVolume(t.Context(), v, operationexecutor.MountOptions{}, w.actual))
	claims.at(nodePending, "20Gi")
	w.plugin.fail("NodeExpand", errBroken)
	w.succeeded(w.executor.MountVolume(t.Context(), v, operationexecutor.MountOptions{IsRemount: true}, w.actual))
	assert.Zero(t, w.count("NodeExpand"))
	assert.Equal(t, operationexecutor.VolumeMounted, w.pod("data", "p"))
}

// TestASecondAttemptMountsAndExpands, after one with an unknown outcome.
func TestASecondAttemptMountsAndExpands(t *testing.T) {
	w, claims, s := nodeCase{volume: "20Gi", has: "10Gi", status: nodePending, allocated: "20Gi", fail: errUncertain}.world(t)
	v := w.volumeToMount(s, "p", "20Gi")
	_ = w.failed(w.executor.MountVolume(t.Context(), v, operationexecutor.MountOptions{}, w.actual))
	w.plugin.fail("NodeExpand", nil)
	w.succeeded(w.executor.MountVolume(t.Context(), v, operationexecutor.MountOptions{}, w.actual))
	assert.Equal(t, operationexecutor.VolumeMounted, w.pod("data", "p"))
	assert.Equal(t, 2, w.count("SetUp"))
	assert.Equal(t, []string{"NodeResizeInProgress 20Gi", " 20Gi"}, claims.written())
	assert.Empty(t, claims.claim.Status.AllocatedResourceStatuses)
}

// TestAClaimIsReadOnlyForAVolumeThatANodeExpands and that is not known to have its size.
func TestAClaimIsReadOnlyForAVolumeThatANodeExpands(t *testing.T) {
	w, claims, s := nodeCase{volume: "20Gi", has: "10Gi", here: "20Gi"}.world(t)
	claims.err = errBroken
	w.succeeded(w.executor.MountVolume(t.Context(), w.volumeToMount(s, "o", "20Gi"), operationexecutor.MountOptions{}, w.actual))
	w.succeeded(w.unmount("data", "o"))

	w, claims, s = nodeCase{volume: "20Gi", has: "10Gi"}.world(t)
	claims.err = errBroken
	w.able.noFS = true
	w.succeeded(w.executor.MountVolume(t.Context(), w.volumeToMount(s, "p", "20Gi"), operationexecutor.MountOptions{}, w.actual))
	w.able.noFS = false
	w.succeeded(w.executor.MountVolume(t.Context(), w.volumeToMount(spec("data"), "q", "20Gi"), operationexecutor.MountOptions{}, w.actual))
	require.ErrorIs(t, w.failed(w.executor.MountVolume(t.Context(), w.volumeToMount(s, "r", "20Gi"), operationexecutor.MountOptions{}, w.actual)), errBroken)
}

// TestAPluginThatHasDoneNothingIsAskedAgainAfterAWhile: Kubernetes asks again at once, for ever.
func TestAPluginThatHasDoneNothingIsAskedAgainAfterAWhile(t *testing.T) {
	w, claims, s := nodeCase{volume: "20Gi", has: "10Gi", status: nodePending, allocated: "20Gi"}.world(t)
	w.inUse(s)
	w.able.notYet = true
	expand := func() (*operationexecutor.Operation, error) {
		return w.executor.ExpandInUseVolume(t.Context(), w.volumeToMount(s, "p", "20Gi"), w.actual, resource.MustParse("10Gi"))
	}
	op, err := expand()
	require.NoError(t, err)
	awaitDone(t, op)
	assert.Equal(t, operationexecutor.Transient, op.Result().Class)
	_, err = expand()
	var backoff *volume.BackoffError
	require.ErrorAs(t, err, &backoff)
	assert.Equal(t, []string{"NodeResizeInProgress 20Gi"}, claims.written())
}

func TestAVolumeThatItsPodHasLostIsNotExpanded(t *testing.T) {
	w, _, s := nodeCase{volume: "20Gi", has: "10Gi"}.world(t)
	op := w.ended(w.executor.ExpandInUseVolume(t.Context(), w.volumeToMount(s, "p", "20Gi"), w.actual, resource.MustParse("10Gi")))
	assert.Equal(t, operationexecutor.Transient, op.Result().Class)
	assert.Empty(t, w.history.all())
}

func TestAVolumeThatOnlyItsStorageHasToGrowHasTheSizeAtOnce(t *testing.T) {
	w, claims, s := nodeCase{volume: "20Gi", has: "10Gi"}.world(t)
	w.inUse(s)
	w.able.noFS, claims.err = true, errBroken
	w.succeeded(w.executor.ExpandInUseVolume(t.Context(), w.volumeToMount(s, "p", "20Gi"), w.actual, resource.MustParse("10Gi")))
	size := w.actual.GetClaimSize(volumeName("data"))
	assert.Equal(t, "20Gi", size.String())
}

func TestABlockVolumeInUseIsExpandedByItsDevice(t *testing.T) {
	w, _, s := nodeCase{volume: "20Gi", has: "10Gi"}.world(t)
	w.inUse(block(s))
	w.succeeded(w.executor.ExpandInUseVolume(t.Context(), w.volumeToMount(s, "p", "20Gi"), w.actual, resource.MustParse("10Gi")))
	grown := w.able.nodeGrown
	assert.Equal(t, []string{"/dev/data", "/staged", ""}, []string{grown.DevicePath, grown.DeviceStagePath, grown.DeviceMountPath})
}

// TestABadCallDuringAnExpansionIsUncertain: nothing is written but that it was begun.
func TestABadCallDuringAnExpansionIsUncertain(t *testing.T) {
	for name, bad := range badCalls() {
		for _, method := range []string{"NodeExpand", "ExpandVolumeDevice"} {
			t.Run(name+"/"+method, func(t *testing.T) {
				w, claims, s := nodeCase{volume: "10Gi", has: "10Gi", requested: "20Gi"}.world(t)
				start := func() (*operationexecutor.Operation, error) { return w.expand(s) }
				want := []string{"ControllerResizeInProgress 20Gi"}
				if method == "NodeExpand" {
					w, claims, s = nodeCase{volume: "20Gi", has: "10Gi", status: nodePending, allocated: "20Gi"}.world(t)
					start = func() (*operationexecutor.Operation, error) {
						return w.executor.MountVolume(t.Context(), w.volumeToMount(s, "p", "20Gi"), operationexecutor.MountOptions{}, w.actual)
					}
					want = []string{"NodeResizeInProgress 20Gi"}
				}
				w.plugin.on(method, func(ctx context.Context) error { return bad(ctx) })
				op := w.ended(start())
				assert.Equal(t, operationexecutor.Uncertain, op.Result().Class)
				assert.Equal(t, want, claims.written())
			})
		}
	}
}
