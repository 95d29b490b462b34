package operationexecutor

import (
	"errors"

	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/volume"
)

// effectState is the known state of one effect, a staging or a set-up. Its values are those of [DeviceMountState] and of
// [VolumeMountState].
type effectState uint8

const (
	absent    = effectState(VolumeNotMounted)
	uncertain = effectState(VolumeMountUncertain)
	present   = effectState(VolumeMounted)
)

// end returns how the intent of an effect in this state ends.
func (s effectState) end() IntentEnd {
	return [...]IntentEnd{absent: IntentForgotten, uncertain: IntentUncertain, present: IntentDone}[s]
}

// afterFailure is the state of an effect after the call that makes it has failed, by the class of the error and by the state
// before, as in Kubernetes. An effect that was present stays: the call only refreshes it.
var afterFailure = map[Class][3]effectState{
	Transient: {absent: absent, uncertain: uncertain, present: present},
	Uncertain: {absent: uncertain, uncertain: uncertain, present: present},
	Final:     {absent: absent, uncertain: absent, present: present},
}

// failure is a call that failed to make an effect.
type failure struct {
	err error
	// reconstructed says that the effect was found after a restart, and that no call for it has succeeded since. A failure to
	// make it again then does not prove that it is missing.
	reconstructed bool
}

// marks are the calls that enter a state of the effect into the actual state.
type marks struct {
	uncertain, absent func() error
}

// apply enters the state after the failure into the actual state. It returns the error with the class that fits that state.
func (f failure) apply(before effectState, m marks) error {
	after := afterFailure[outcome.ClassOf(f.err)][before]
	switch {
	case after == before:
		return f.err
	case after == uncertain:
		return uncertainToo(f.err, m.uncertain())
	case f.reconstructed:
		return volume.Uncertain(f.err)
	}
	if err := m.absent(); err != nil {
		return uncertainToo(f.err, err)
	}
	return f.err
}

// uncertainToo returns err marked as uncertain, joined with marking, the error of the actual state.
func uncertainToo(err, marking error) error {
	if marking != nil {
		err = errors.Join(err, marking)
	}
	return volume.Uncertain(err)
}
