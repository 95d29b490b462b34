package cache

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// The tables are written here once more, in words, so that a change of a move is a change of two places.

const refused = 255

// TestEveryMoveOfAnAttachment holds for every state, every event and every condition.
func TestEveryMoveOfAnAttachment(t *testing.T) {
	tests := []struct {
		from                AttachState
		e                   event
		plain, staged, pods AttachState // where it leads, when nothing is staged, when it is staged, when pods have it
	}{
		{NotAttached, succeeded, Attached, Attached, Attached},
		{NotAttached, unproven, AttachUncertain, AttachUncertain, AttachUncertain},
		{NotAttached, undone, NotAttached, NotAttached, NotAttached},
		{NotAttached, found, AttachUncertain, AttachUncertain, AttachUncertain},
		{AttachUncertain, succeeded, Attached, Attached, Attached},
		{AttachUncertain, unproven, AttachUncertain, AttachUncertain, AttachUncertain},
		{AttachUncertain, undone, NotAttached, refused, refused},
		{AttachUncertain, found, AttachUncertain, AttachUncertain, AttachUncertain},
		{Attached, succeeded, Attached, Attached, Attached},
		{Attached, unproven, AttachUncertain, AttachUncertain, AttachUncertain},
		{Attached, undone, NotAttached, refused, refused},
		{Attached, found, Attached, Attached, Attached},
	}
	require.Len(t, tests, 3*4)
	for _, test := range tests {
		t.Run(fmt.Sprintf("%v %v", test.from, test.e), func(t *testing.T) {
			checkMove(t, &attachMoves, &knownVolume{}, test.from, test.e, test.plain, volume.ErrInUse)
			staged := &knownVolume{device: operationexecutor.DeviceMountUncertain}
			checkMove(t, &attachMoves, staged, test.from, test.e, test.staged, volume.ErrInUse)
			checkMove(t, &attachMoves, withPod(), test.from, test.e, test.pods, volume.ErrInUse)
		})
	}
}

func TestEveryMoveOfAStaging(t *testing.T) {
	const (
		absent, uncertain, staged = operationexecutor.DeviceNotMounted, operationexecutor.DeviceMountUncertain, operationexecutor.DeviceGloballyMounted
	)
	tests := []struct {
		from        operationexecutor.DeviceMountState
		e           event
		plain, pods operationexecutor.DeviceMountState
	}{
		{absent, succeeded, staged, staged},
		{absent, unproven, uncertain, uncertain},
		{absent, undone, absent, absent},
		{absent, found, uncertain, uncertain},
		{uncertain, succeeded, staged, staged},
		{uncertain, unproven, uncertain, uncertain},
		{uncertain, undone, absent, refused},
		{uncertain, found, uncertain, uncertain},
		{staged, succeeded, staged, staged},
		{staged, unproven, uncertain, uncertain},
		{staged, undone, absent, refused},
		{staged, found, staged, staged},
	}
	require.Len(t, tests, 3*4)
	for _, test := range tests {
		t.Run(fmt.Sprintf("%v %v", test.from, test.e), func(t *testing.T) {
			checkMove(t, &deviceMoves, &knownVolume{}, test.from, test.e, test.plain, volume.ErrInUse)
			checkMove(t, &deviceMoves, withPod(), test.from, test.e, test.pods, volume.ErrInUse)
		})
	}
}

func TestEveryMoveOfASetUp(t *testing.T) {
	const (
		absent, uncertain, mounted = operationexecutor.VolumeNotMounted, operationexecutor.VolumeMountUncertain, operationexecutor.VolumeMounted
	)
	tests := []struct {
		from            operationexecutor.VolumeMountState
		e               event
		plain, unstaged operationexecutor.VolumeMountState
	}{
		{absent, succeeded, mounted, refused},
		{absent, unproven, uncertain, uncertain},
		{absent, undone, absent, absent},
		{absent, found, uncertain, uncertain},
		{uncertain, succeeded, mounted, refused},
		{uncertain, unproven, uncertain, uncertain},
		{uncertain, undone, absent, absent},
		{uncertain, found, uncertain, uncertain},
		{mounted, succeeded, mounted, mounted}, // What is there stays there, whatever has become of its staging.
		{mounted, unproven, uncertain, uncertain},
		{mounted, undone, absent, absent},
		{mounted, found, mounted, mounted},
	}
	require.Len(t, tests, 3*4)
	for _, test := range tests {
		t.Run(fmt.Sprintf("%v %v", test.from, test.e), func(t *testing.T) {
			stageable := pluginFacts{deviceMountable: true}
			checkMove(t, &podMoves, &knownVolume{}, test.from, test.e, test.plain, ErrNotStaged)
			staged := &knownVolume{plugin: stageable, device: operationexecutor.DeviceGloballyMounted}
			checkMove(t, &podMoves, staged, test.from, test.e, test.plain, ErrNotStaged)
			for _, device := range []operationexecutor.DeviceMountState{operationexecutor.DeviceNotMounted, operationexecutor.DeviceMountUncertain} {
				unstaged := &knownVolume{plugin: stageable, device: device}
				checkMove(t, &podMoves, unstaged, test.from, test.e, test.unstaged, ErrNotStaged)
			}
		})
	}
}

func withPod() *knownVolume {
	return &knownVolume{mounts: []*podMount{{}}}
}

func checkMove[S ~uint8](t *testing.T, m *moves[S], v *knownVolume, from S, e event, want S, why error) {
	t.Helper()
	to, err := m.next(v, from, e)
	if want == refused {
		require.ErrorIs(t, err, why)
		assert.Equal(t, from, to, "a move that is refused changes nothing")
		return
	}
	require.NoError(t, err)
	assert.Equal(t, want, to)
}
