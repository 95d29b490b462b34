package operationexecutor_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

const (
	controlInProgress = v1.PersistentVolumeClaimControllerResizeInProgress
	controlInfeasible = v1.PersistentVolumeClaimControllerResizeInfeasible
	nodePending       = v1.PersistentVolumeClaimNodeResizePending
	nodeInProgress    = v1.PersistentVolumeClaimNodeResizeInProgress
	nodeInfeasible    = v1.PersistentVolumeClaimNodeResizeInfeasible
)

// expandWorld is a world whose plugin expands, with one claim.
func expandWorld(t *testing.T, claims *claimStatus) *world {
	return newWorld(t, setup{
		attachable: true, stageable: true, abilities: volume.CapExpand | volume.CapNodeExpand | volume.CapBlock,
		generator: func(o *operationexecutor.GeneratorOptions) { o.Claims, o.Capacity = claims, claims },
	})
}

func (w *world) expand(s *volume.Spec) (*operationexecutor.Operation, error) {
	return w.executor.ExpandVolume(w.t.Context(), operationexecutor.VolumeToExpand{VolumeName: volumeName("data"), VolumeSpec: s})
}

func block(s *volume.Spec) *volume.Spec {
	mode := v1.PersistentVolumeBlock
	s.PersistentVolume.Spec.VolumeMode = &mode
	return s
}

// TestTheControlPlaneExpandsAndRecovers is the table of what a claim asks for, how far its expansion came, and what is
// done: the size that the plugin is called with ("": it is not), and what is written.
func TestTheControlPlaneExpandsAndRecovers(t *testing.T) {
	for name, test := range map[string]struct {
		volume, requested, has string
		status                 v1.ClaimResourceStatus
		allocated              string
		call                   string
		written                []string
	}{
		"nothing is asked for": {
			volume: "10Gi", requested: "10Gi", has: "10Gi",
		},
		"the volume is larger than what is asked for": {
			volume: "30Gi", requested: "10Gi", has: "30Gi",
		},
		"more is asked for": {
			volume: "10Gi", requested: "20Gi", has: "10Gi",
			call: "20Gi", written: []string{"ControllerResizeInProgress 20Gi", "capacity 20Gi", "NodeResizePending 20Gi"},
		},
		"more is asked for than while it was expanded": {
			volume: "10Gi", requested: "30Gi", has: "10Gi", status: controlInProgress, allocated: "20Gi",
			call: "20Gi", written: []string{"ControllerResizeInProgress 20Gi", "capacity 20Gi", "NodeResizePending 20Gi"},
		},
		"less is asked for than while it was expanded: what may have been begun is finished": {
			volume: "10Gi", requested: "15Gi", has: "10Gi", status: controlInProgress, allocated: "20Gi",
			call: "20Gi", written: []string{"ControllerResizeInProgress 20Gi", "capacity 20Gi", "NodeResizePending 20Gi"},
		},
		"less is asked for than what can never be met": {
			volume: "10Gi", requested: "15Gi", has: "10Gi", status: controlInfeasible, allocated: "20Gi",
			call: "15Gi", written: []string{"ControllerResizeInProgress 15Gi", "capacity 15Gi", "NodeResizePending 15Gi"},
		},
		"the storage grew and the process died before it wrote so": {
			volume: "20Gi", requested: "20Gi", has: "10Gi", status: controlInProgress, allocated: "20Gi",
			call: "20Gi", written: []string{"ControllerResizeInProgress 20Gi", "NodeResizePending 20Gi"},
		},
		"the storage grew and nothing was written": {
			volume: "20Gi", requested: "20Gi", has: "10Gi",
			call: "20Gi", written: []string{"ControllerResizeInProgress 20Gi", "NodeResizePending 20Gi"},
		},
		"it is a node's turn": {
			volume: "20Gi", requested: "20Gi", has: "10Gi", status: nodePending, allocated: "20Gi",
		},
		"a node is at it": {
			volume: "20Gi", requested: "20Gi", has: "10Gi", status: nodeInProgress, allocated: "20Gi",
		},
		"a node failed for good: it may try again": {
			volume: "20Gi", requested: "20Gi", has: "10Gi", status: nodeInfeasible, allocated: "20Gi",
			written: []string{"NodeResizePending 20Gi"},
		},
		"more is asked for while it is a node's turn": {
			volume: "20Gi", requested: "30Gi", has: "10Gi", status: nodePending, allocated: "20Gi",
			call: "20Gi", written: []string{"ControllerResizeInProgress 20Gi", "NodeResizePending 20Gi"},
		},
		"more is asked for after a node failed for good": {
			volume: "20Gi", requested: "30Gi", has: "10Gi", status: nodeInfeasible, allocated: "20Gi",
			call: "20Gi", written: []string{"ControllerResizeInProgress 20Gi", "NodeResizePending 20Gi"},
		},
		"an older expansion was finished": {
			volume: "20Gi", requested: "30Gi", has: "20Gi", allocated: "20Gi",
			call: "30Gi", written: []string{"ControllerResizeInProgress 30Gi", "capacity 30Gi", "NodeResizePending 30Gi"},
		},
		// Kubernetes tries the size that can never be met for ever here.
		"what can never be met is given up when the volume has what is asked for now": {
			volume: "20Gi", requested: "15Gi", has: "10Gi", status: controlInfeasible, allocated: "100Gi",
			call: "20Gi", written: []string{"ControllerResizeInProgress 20Gi", "NodeResizePending 20Gi"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			claims := newClaimStatus(claimOf("data", test.requested, test.has))
			if test.allocated != "" {
				claims.at(test.status, test.allocated)
			}
			w := expandWorld(t, claims)
			w.succeeded(w.expand(claimedSpec("data", test.volume)))
			var calls []string
			if test.call != "" {
				calls = []string{"ExpandVolumeDevice " + test.call, "ExpandVolumeDevice"}
				assert.Equal(t, test.has, w.able.oldSize.String(), "the current size is the claim's")
			}
			assert.Equal(t, calls, w.history.all())
			assert.Equal(t, append([]string{}, test.written...), claims.written())
			written := claims.written()
			if resizeStatus := claims.claim.Status.AllocatedResourceStatuses[v1.ResourceStorage]; resizeStatus != "" {
				w.succeeded(w.expand(claimedSpec("data", "100Gi")))
				assert.Equal(t, written, claims.written(), "it is a node's turn")
			}
		})
	}
}

func TestABlockVolumeAndOneWithoutAFilesystemToGrowAreFinishedAtOnce(t *testing.T) {
	for name, test := range map[string]struct {
		spec *volume.Spec
		noFS bool
	}{
		"block":                    {block(claimedSpec("data", "10Gi")), false},
		"nothing to do for a node": {claimedSpec("data", "10Gi"), true},
	} {
		t.Run(name, func(t *testing.T) {
			claims := newClaimStatus(claimOf("data", "20Gi", "10Gi"))
			w := expandWorld(t, claims)
			w.able.noFS = test.noFS
			w.succeeded(w.expand(test.spec))
			assert.Equal(t, []string{"ControllerResizeInProgress 20Gi", "capacity 20Gi", " 20Gi"}, claims.written())
			assert.Equal(t, []string{"Normal VolumeResizeSuccessful data-claim"}, w.recorder.all())
		})
	}
}

// TestThePluginMayGiveMoreButNotLess than what it was asked for.
func TestThePluginMayGiveMoreButNotLess(t *testing.T) {
	claims := newClaimStatus(claimOf("data", "15Gi", "10Gi"))
	w := expandWorld(t, claims)
	w.able.expanded = func(resource.Quantity) resource.Quantity { return resource.MustParse("16Gi") }
	w.succeeded(w.expand(claimedSpec("data", "10Gi")))
	assert.Equal(t, []string{"ControllerResizeInProgress 15Gi", "capacity 16Gi", "NodeResizePending 16Gi"}, claims.written())
	assert.Equal(t, []string{"Normal FileSystemResizeRequired data-claim"}, w.recorder.all())

	claims = newClaimStatus(claimOf("data", "15Gi", "10Gi"))
	w = expandWorld(t, claims)
	w.able.expanded = func(resource.Quantity) resource.Quantity { return resource.MustParse("14Gi") }
	require.ErrorIs(t, w.failed(w.expand(claimedSpec("data", "10Gi"))), volume.ErrInvalid)
	assert.Equal(t, []string{"ControllerResizeInProgress 15Gi", "ControllerResizeInProgress 15Gi failed"}, claims.written())
}

// TestWhatAFailedExpansionLeaves, with errors wrapped: only what is over is written, and only what can never be met gives
// up the size.
func TestWhatAFailedExpansionLeaves(t *testing.T) {
	for name, test := range map[string]struct {
		err     error
		class   operationexecutor.Class
		written string
	}{
		"final":             {fmt.Errorf("cloud: %w", errBroken), operationexecutor.Final, "ControllerResizeInProgress 20Gi failed"},
		"infeasible":        {fmt.Errorf("%w: %w", errBroken, volume.ErrInfeasible), operationexecutor.Final, "ControllerResizeInfeasible 20Gi failed"},
		"uncertain":         {fmt.Errorf("a: %w", volume.Uncertain(errBroken)), operationexecutor.Uncertain, ""},
		"transient":         {fmt.Errorf("a: %w", volume.Transient(errBroken)), operationexecutor.Transient, ""},
		"a deadline":        {fmt.Errorf("%w: %w", errBroken, context.DeadlineExceeded), operationexecutor.Uncertain, ""},
		"both of two kinds": {volume.Uncertain(fmt.Errorf("%w: %w", errBroken, volume.ErrInfeasible)), operationexecutor.Uncertain, ""},
	} {
		t.Run(name, func(t *testing.T) {
			claims := newClaimStatus(claimOf("data", "20Gi", "10Gi"))
			w := expandWorld(t, claims)
			w.plugin.fail("ExpandVolumeDevice", test.err)
			op := w.ended(w.expand(claimedSpec("data", "10Gi")))
			require.ErrorIs(t, op.Err(), errBroken)
			assert.Equal(t, test.class, op.Result().Class)
			want := []string{"ControllerResizeInProgress 20Gi"}
			if test.written != "" {
				want = append(want, test.written)
			}
			assert.Equal(t, want, claims.written())
			assert.Equal(t, []string{"Warning VolumeResizeFailed data-claim"}, w.recorder.all())

			w.plugin.fail("ExpandVolumeDevice", nil)
			w.succeeded(w.expand(claimedSpec("data", "10Gi")))
			assert.Equal(t, nodePending, claims.claim.Status.AllocatedResourceStatuses[v1.ResourceStorage])
			for _, c := range claims.claim.Status.Conditions {
				assert.Equal(t, v1.PersistentVolumeClaimFileSystemResizePending, c.Type, "no error stays")
			}
		})
	}
}

// TestAnExpansionGoesOnAfterEveryWriteThatFails is a part of acceptance line 13.
func TestAnExpansionGoesOnAfterEveryWriteThatFails(t *testing.T) {
	for n := 1; n <= 3; n++ {
		t.Run(fmt.Sprint("write ", n), func(t *testing.T) {
			claims := newClaimStatus(claimOf("data", "20Gi", "10Gi"))
			claims.writeErr[n] = errBroken
			w := expandWorld(t, claims)
			op := w.ended(w.expand(claimedSpec("data", "10Gi")))
			require.ErrorIs(t, op.Err(), errBroken)
			assert.Equal(t, operationexecutor.Transient, op.Result().Class)
			assert.Equal(t, n > 1, w.count("ExpandVolumeDevice") == 1, "nothing is done that was not written down before")
			w.succeeded(w.expand(claimedSpec("data", "10Gi")))
			assert.Equal(t, nodePending, claims.claim.Status.AllocatedResourceStatuses[v1.ResourceStorage])
			size := claims.volume.Spec.Capacity[v1.ResourceStorage]
			assert.Equal(t, "20Gi", size.String())
		})
	}
	t.Run("that of a failure", func(t *testing.T) {
		claims := newClaimStatus(claimOf("data", "20Gi", "10Gi"))
		claims.writeErr[2] = volume.Transient(errBroken)
		w := expandWorld(t, claims)
		w.plugin.fail("ExpandVolumeDevice", volume.ErrInfeasible)
		op := w.ended(w.expand(claimedSpec("data", "10Gi")))
		require.ErrorIs(t, op.Err(), volume.ErrInfeasible)
		assert.Equal(t, operationexecutor.Final, op.Result().Class, "the class is that of the plugin's error")
		assert.Contains(t, op.Err().Error(), errBroken.Error())
	})
}

func TestWhatCannotBeExpandedIsRefused(t *testing.T) {
	claims := newClaimStatus(claimOf("data", "20Gi", "10Gi"))
	w := expandWorld(t, claims)
	require.ErrorIs(t, w.failed(w.expand(spec("data"))), volume.ErrUnsupported, "no claim")
	require.ErrorIs(t, w.failed(w.expand(nil)), volume.ErrUnsupported)
	claims.err = errBroken
	require.ErrorIs(t, w.failed(w.expand(claimedSpec("data", "10Gi"))), errBroken)

	w = newWorld(t, setup{generator: func(o *operationexecutor.GeneratorOptions) { o.Claims, o.Capacity = claims, claims }})
	require.ErrorIs(t, w.failed(w.expand(claimedSpec("data", "10Gi"))), volume.ErrUnsupported, "no such plugin")
	w = newWorld(t, setup{})
	require.ErrorContains(t, w.failed(w.expand(claimedSpec("data", "10Gi"))), "GeneratorOptions")
	assert.Empty(t, claims.written())
}
