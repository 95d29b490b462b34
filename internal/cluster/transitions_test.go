package cluster

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// TestEveryMoveOfAnAttachmentInACluster tries every event in every state under every condition. The test has its own copy of the
// table, so a change of a transition must be made twice.
func TestEveryMoveOfAnAttachmentInACluster(t *testing.T) {
	yes, no, same := listed, unlisted, unchanged
	tests := []struct {
		from  AttachmentState
		e     event
		to    AttachmentState // where it leads when all is well
		tells reporting
		// What refuses the move while others have the volume, while the node uses it, and always.
		others, inUse, never error
	}{
		{NotAttached, succeeded, Attached, yes, nil, nil, nil},
		{NotAttached, markedUncertain, AttachUncertain, no, nil, nil, nil},
		{NotAttached, markedDetached, NotAttached, no, nil, nil, nil},
		{NotAttached, found, AttachUncertain, same, nil, nil, nil},
		{NotAttached, begun, Attaching, no, volume.ErrInUse, nil, nil},
		{NotAttached, ended, NotAttached, no, nil, nil, nil},
		{NotAttached, withdrawn, NotAttached, no, nil, nil, ErrNotAttached},
		{NotAttached, restored, NotAttached, no, nil, nil, nil},

		{Attaching, succeeded, Attached, yes, nil, nil, nil},
		{Attaching, markedUncertain, AttachUncertain, no, nil, nil, nil},
		{Attaching, markedDetached, Attaching, no, nil, nil, nil},
		{Attaching, found, AttachUncertain, same, nil, nil, nil},
		{Attaching, begun, Attaching, no, nil, nil, ErrAttaching},
		{Attaching, ended, NotAttached, no, nil, nil, nil},
		{Attaching, withdrawn, Attaching, no, nil, nil, ErrAttaching},
		{Attaching, restored, Attaching, no, nil, nil, nil},

		{AttachUncertain, succeeded, Attached, yes, nil, nil, nil},
		{AttachUncertain, markedUncertain, AttachUncertain, no, nil, nil, nil},
		{AttachUncertain, markedDetached, NotAttached, no, nil, nil, nil},
		{AttachUncertain, found, AttachUncertain, same, nil, nil, nil},
		{AttachUncertain, begun, AttachUncertain, same, volume.ErrInUse, nil, nil},
		{AttachUncertain, ended, AttachUncertain, same, nil, nil, nil},
		{AttachUncertain, withdrawn, AttachUncertain, no, nil, volume.ErrInUse, nil},
		{AttachUncertain, restored, AttachUncertain, same, nil, nil, nil},

		{Attached, succeeded, Attached, yes, nil, nil, nil},
		{Attached, markedUncertain, AttachUncertain, no, nil, nil, nil},
		{Attached, markedDetached, NotAttached, no, nil, nil, nil},
		{Attached, found, Attached, same, nil, nil, nil},
		{Attached, begun, Attached, same, nil, nil, nil},
		{Attached, ended, Attached, same, nil, nil, nil},
		{Attached, withdrawn, Detaching, no, nil, volume.ErrInUse, nil},
		{Attached, restored, Attached, same, nil, nil, nil},

		{Detaching, succeeded, Attached, yes, nil, nil, nil},
		{Detaching, markedUncertain, AttachUncertain, no, nil, nil, nil},
		{Detaching, markedDetached, NotAttached, no, nil, nil, nil},
		{Detaching, found, Detaching, same, nil, nil, nil},
		{Detaching, begun, Detaching, no, nil, nil, ErrDetaching},
		{Detaching, ended, Detaching, same, nil, nil, nil},
		{Detaching, withdrawn, Detaching, no, nil, nil, nil},
		{Detaching, restored, Attached, yes, nil, nil, nil},
	}
	require.Len(t, tests, len(transitions)*len(transitions[0]))
	for _, test := range tests {
		t.Run(fmt.Sprintf("%v %v", test.from, test.e), func(t *testing.T) {
			for _, reported := range []bool{false, true} {
				at := movedFrom{from: test.from, e: test.e, reported: reported}
				want := at
				want.to, want.tells, want.why = test.to, test.tells, test.never
				want.check(t)
				want.use, want.why = ReportedInUse, firstOf(test.never, test.inUse)
				want.check(t)
				want.use = AssumedInUse
				want.check(t)
				want.forced, want.why = true, test.never
				want.check(t)
				want.others, want.why = true, firstOf(test.never, test.others)
				want.check(t)
			}
		})
	}
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// movedFrom is one attempt at a transition, with the expected result.
type movedFrom struct {
	from             AttachmentState
	e                event
	reported, forced bool
	others           bool
	use              UseState

	to    AttachmentState
	tells reporting
	why   error
}

// check attempts the transition in a new state.
func (m *movedFrom) check(t *testing.T) {
	t.Helper()
	a := NewActualStateOfWorld(nil, Options{})
	a.AddNode("n", "uid")
	a.AddNode("other", "uid")
	n := attachmentChange{key: attachmentKey{"n", "example.com/any/v"}, spec: exclusiveSpec("v"), pluginName: "example.com/any"}
	attempt := &AttachAttempt{}
	n.attempt = attempt
	if m.from != NotAttached {
		row := newRow(&n, a.table.nodes["n"])
		row.AttachState, row.Reported, row.InUse, row.ForcedDetachAllowed = m.from, m.reported, m.use, m.forced
		row.attempt = attempt
		if m.use == AssumedInUse && m.why == nil {
			row.InUse = NotInUse
		}
		a.table.put(a.table.nodes["n"], n.key, nil, row)
	}
	if m.others {
		require.NoError(t, a.MarkVolumeAsUncertain(n.key.volume, nil, "other"))
	}
	before, _ := a.Attachment(n.key.volume, "n")
	_, err := a.table.transition(m.e, &n)
	after, there := a.Attachment(n.key.volume, "n")
	if m.why != nil {
		require.ErrorIs(t, err, m.why)
		assert.Equal(t, before, after, "a move that is refused changes nothing")
		return
	}
	require.NoError(t, err)
	assert.Equal(t, m.to, after.AttachState)
	assert.Equal(t, m.to != NotAttached, there)
	if there {
		assert.Equal(t, m.tells == listed || m.tells == unchanged && before.Reported, after.Reported)
	}
}

func TestTheStatesAndEventsHaveWords(t *testing.T) {
	words := map[string]bool{}
	for s := range AttachmentState(len(transitions)) {
		words[s.String()] = true
	}
	for e := range event(len(transitions[0])) {
		words[e.String()] = true
	}
	assert.Len(t, words, len(transitions)+len(transitions[0]))
	assert.Equal(t, []string{"assumed to be in use", "in use", "not in use"},
		[]string{AssumedInUse.String(), ReportedInUse.String(), NotInUse.String()})
}

// The executor and the state agree on what the state can be asked.
var (
	_ operationexecutor.VolumeNodes = (*ActualStateOfWorld)(nil)
	_ operationexecutor.VolumeNodes = (*AttachAttempt)(nil)
)
