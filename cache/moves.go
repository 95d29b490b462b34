package cache

import (
	"fmt"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// AttachState is what is known of a volume's attachment to a node. A volume that needs no attaching is attached to its
// node.
type AttachState uint8

// The states of attachment. Uncertain: it must be attached again before use and detached before it is forgotten.
const (
	NotAttached AttachState = iota
	AttachUncertain
	Attached
)

// String returns the state in lower case.
func (s AttachState) String() string {
	return [...]string{"not attached", "attachment uncertain", "attached"}[s]
}

// event is what an updater was told of an effect.
type event uint8

const (
	succeeded event = iota // the effect is there
	unproven               // it may be there
	undone                 // it is not there
	found                  // a restart found traces of it
)

// String returns the event in lower case.
func (e event) String() string {
	return [...]string{"succeeded", "unproven", "undone", "found"}[e]
}

// condition is what must hold of a volume for a move.
type condition uint8

const (
	always   condition = iota
	noPods             // it is, or may be, set up for no pod
	unused             // noPods, and it is not, and may not be, staged
	isStaged           // it is staged, if it is one that is staged
)

// move is where an event leads, and what must hold for it.
type move[S ~uint8] struct {
	to    S
	given condition
}

// moves is the table of legal moves of one kind of effect: by state, then by event.
type moves[S ~uint8] [3][4]move[S]

// What a restart finds never overwrites what is known.
var attachMoves = moves[AttachState]{
	NotAttached: {
		succeeded: {Attached, always}, unproven: {AttachUncertain, always},
		undone: {NotAttached, always}, found: {AttachUncertain, always},
	},
	AttachUncertain: {
		succeeded: {Attached, always}, unproven: {AttachUncertain, always},
		undone: {NotAttached, unused}, found: {AttachUncertain, always},
	},
	Attached: {
		succeeded: {Attached, always}, unproven: {AttachUncertain, always},
		undone: {NotAttached, unused}, found: {Attached, always},
	},
}

var deviceMoves = moves[operationexecutor.DeviceMountState]{
	operationexecutor.DeviceNotMounted: {
		succeeded: {operationexecutor.DeviceGloballyMounted, always},
		unproven:  {operationexecutor.DeviceMountUncertain, always},
		undone:    {operationexecutor.DeviceNotMounted, always},
		found:     {operationexecutor.DeviceMountUncertain, always},
	},
	operationexecutor.DeviceMountUncertain: {
		succeeded: {operationexecutor.DeviceGloballyMounted, always},
		unproven:  {operationexecutor.DeviceMountUncertain, always},
		undone:    {operationexecutor.DeviceNotMounted, noPods},
		found:     {operationexecutor.DeviceMountUncertain, always},
	},
	operationexecutor.DeviceGloballyMounted: {
		succeeded: {operationexecutor.DeviceGloballyMounted, always},
		unproven:  {operationexecutor.DeviceMountUncertain, always},
		undone:    {operationexecutor.DeviceNotMounted, noPods},
		found:     {operationexecutor.DeviceGloballyMounted, always},
	},
}

var podMoves = moves[operationexecutor.VolumeMountState]{
	operationexecutor.VolumeNotMounted: {
		succeeded: {operationexecutor.VolumeMounted, isStaged},
		unproven:  {operationexecutor.VolumeMountUncertain, always},
		undone:    {operationexecutor.VolumeNotMounted, always},
		found:     {operationexecutor.VolumeMountUncertain, always},
	},
	operationexecutor.VolumeMountUncertain: {
		succeeded: {operationexecutor.VolumeMounted, isStaged},
		unproven:  {operationexecutor.VolumeMountUncertain, always},
		undone:    {operationexecutor.VolumeNotMounted, always},
		found:     {operationexecutor.VolumeMountUncertain, always},
	},
	// A mount that is refreshed stays, whatever has become of its staging meanwhile: a pod uses it.
	operationexecutor.VolumeMounted: {
		succeeded: {operationexecutor.VolumeMounted, always},
		unproven:  {operationexecutor.VolumeMountUncertain, always},
		undone:    {operationexecutor.VolumeNotMounted, always},
		found:     {operationexecutor.VolumeMounted, always},
	},
}

// next returns where e leads from state, or an error when the table refuses it for the volume v.
func (m *moves[S]) next(v *knownVolume, state S, e event) (S, error) {
	move := m[state][e]
	if err := v.meets(move.given); err != nil {
		return state, fmt.Errorf("volume %q is %v and cannot become %v: %w", v.name, state, move.to, err)
	}
	return move.to, nil
}

// meets returns nil when c holds of the volume.
func (v *knownVolume) meets(c condition) error {
	staged := v.device != operationexecutor.DeviceNotMounted
	switch {
	case (c == noPods || c == unused) && len(v.mounts) > 0:
		return fmt.Errorf("%d pods have it: %w", len(v.mounts), volume.ErrInUse)
	case c == unused && staged:
		return fmt.Errorf("it is %v: %w", v.device, volume.ErrInUse)
	case c == isStaged && v.plugin.deviceMountable && v.device != operationexecutor.DeviceGloballyMounted:
		return ErrNotStaged
	}
	return nil
}
