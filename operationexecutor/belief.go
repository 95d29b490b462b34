package operationexecutor

import (
	"errors"

	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/volume"
)

// believed is what is believed of one effect, a staging or a set-up. Its values are those of [DeviceMountState] and of
// [VolumeMountState].
type believed uint8

const (
	absent    = believed(VolumeNotMounted)
	uncertain = believed(VolumeMountUncertain)
	present   = believed(VolumeMounted)
)

// end returns how the intent of an effect of which this is believed ends.
func (b believed) end() IntentEnd {
	return [...]IntentEnd{absent: IntentForgotten, uncertain: IntentUncertain, present: IntentDone}[b]
}

// afterFailure is what is believed after a call that should have made an effect failed, by the class of its error and by
// what was believed before, as in Kubernetes. What is present was not called for but to be refreshed, and stays.
var afterFailure = map[Class][3]believed{
	Transient: {absent: absent, uncertain: uncertain, present: present},
	Uncertain: {absent: uncertain, uncertain: uncertain, present: present},
	Final:     {absent: absent, uncertain: absent, present: present},
}

// failure is a call that failed to make an effect.
type failure struct {
	err error
	// reconstructed says that the effect was found after a restart, and that nothing has succeeded on it since. That it
	// could not be made again then does not prove that it is not there.
	reconstructed bool
}

// marks tells the actual state what is believed.
type marks struct {
	uncertain, absent func() error
}

// apply marks what the failure means when before was believed, and returns the error with its class made true.
func (f failure) apply(before believed, m marks) error {
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

// uncertainToo returns err marked as uncertain, joined with what marking the actual state failed with.
func uncertainToo(err, marking error) error {
	if marking != nil {
		err = errors.Join(err, marking)
	}
	return volume.Uncertain(err)
}
