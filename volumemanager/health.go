package volumemanager

import (
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/changes"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
)

// The reasons of conditions that the manager itself finds out. A plugin has its own.
const (
	ReasonUnmounted          = "Unmounted"          // somebody has unmounted it; it is set up again
	ReasonMountedOver        = "MountedOver"        // somebody has mounted on top of it or above it
	ReasonFlagsChanged       = "FlagsChanged"       // somebody has remounted it with other flags
	ReasonFilesystemReadOnly = "FilesystemReadOnly" // its filesystem has become read-only
	ReasonFilesystemShutDown = "FilesystemShutDown" // its filesystem has given up after an error
	ReasonFilesystemErrors   = "FilesystemErrors"   // its filesystem, or the device of a btrfs, has errors on record
	ReasonUnreachable        = "Unreachable"        // its server, its daemon or its device does not serve it any more
	ReasonHung               = "Hung"               // a call on it does not return: see HungError
	ReasonNotTakenOff        = "NotTakenOff"        // it hangs, and HungUnmount has failed
	ReasonStrayFiles         = "StrayFiles"         // files lie below it, in the directory on which it is staged
	ReasonDataLost           = "DataLost"           // data that was written may be lost
)

// The reasons of the events about conditions: Kubernetes' own, and its counterpart when all is well again.
const (
	EventVolumeConditionAbnormal = "VolumeConditionAbnormal"
	EventVolumeConditionNormal   = "VolumeConditionNormal"
)

// Condition is one thing that is wrong with a volume, or worth knowing.
type Condition struct {
	volume.HealthCondition

	// Since is when it was found out.
	Since time.Time
	// Err is the cause, for errors.Is; nil when there is none but the message.
	Err error
}

// abnormal is a condition of a volume that cannot be used, or not be trusted.
func abnormal(reason string, err error) Condition {
	return Condition{
		HealthCondition: volume.HealthCondition{Status: volume.HealthAbnormal, Reason: reason, Message: err.Error()},
		Err:             err,
	}
}

// degraded is a condition of a volume that can be used, but not as it should.
func degraded(reason string, err error) Condition {
	c := abnormal(reason, err)
	c.Status = volume.HealthDegraded
	return c
}

// source is who has found a condition. It says each time all that it has found, which replaces what it said before.
type source uint8

const (
	sourceMount      source = iota // the mount table
	sourceUse                      // a measurement
	sourceFilesystem               // what its filesystem tells
	sourceSync                     // what could not be written
	sourceBelow                    // the directory on which it is staged
	sourceHung                     // the attempt to take off what hangs
	sourcePlugin
	sources
)

// bySource are the conditions of one holder.
type bySource [sources][]Condition

// healthBook holds the conditions that were found. The zero value has none.
type healthBook struct {
	mu    sync.Mutex
	rows  map[podvolume.Key]*bySource
	tally []LostData
}

// set replaces what a source has found. It returns what is new, and whether that was the last that was wrong.
func (b *healthBook) set(h podvolume.Key, from source, now []Condition) (fresh []Condition, cleared bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	row := b.rows[h]
	if row == nil {
		if len(now) == 0 {
			return nil, false
		}
		row = new(bySource)
		if b.rows == nil {
			b.rows = make(map[podvolume.Key]*bySource)
		}
		b.rows[h] = row
	}
	before := row[from]
	next := make([]Condition, 0, len(now))
	for _, c := range now {
		at := slices.IndexFunc(before, func(old Condition) bool { return old.Reason == c.Reason && old.Status == c.Status })
		if at >= 0 {
			c.Since = before[at].Since
		} else {
			c.Since = time.Now()
			fresh = append(fresh, c)
		}
		next = append(next, c)
	}
	row[from] = next
	if row.isEmpty() {
		delete(b.rows, h)
		cleared = len(before) > 0
	}
	return fresh, cleared
}

func (r *bySource) isEmpty() bool {
	for _, found := range r {
		if len(found) > 0 {
			return false
		}
	}
	return true
}

// of returns what is known of a volume and a pod.
func (b *healthBook) of(h podvolume.Key) []Condition {
	b.mu.Lock()
	defer b.mu.Unlock()
	row := b.rows[h]
	if row == nil {
		return nil
	}
	return slices.Concat(row[:]...)
}

// forget drops all that was known of a volume and a pod.
func (b *healthBook) forget(h podvolume.Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.rows, h)
}

// report says all that a source has found of a volume. What is new is told by an event, and so is that nothing is wrong any
// more.
func (m *Manager) report(h podvolume.Key, from source, now []Condition) {
	fresh, cleared := m.health.set(h, from, now)
	if len(fresh) == 0 && !cleared {
		return
	}
	for _, c := range fresh {
		m.options.Logger.Warn("the health of a volume has changed", "volume", h.Volume, "pod", h.Pod, "reason", c.Reason, "error", c.Message)
		m.tell(h, v1.EventTypeWarning, EventVolumeConditionAbnormal, c.Message)
	}
	if cleared {
		m.tell(h, v1.EventTypeNormal, EventVolumeConditionNormal, "nothing is wrong with it any more")
	}
	m.changes.Tell(changes.Topic{Volume: h.Volume})
	m.changes.Notify(h.Pod)
}

// tell records an event on the pod, or on the PersistentVolume where no pod is concerned or known.
func (m *Manager) tell(h podvolume.Key, eventtype, reason, message string) {
	m.audienceOf(h).tell(eventtype, reason, message)
}

// audience is who is told of a volume.
type audience struct {
	recorder operationexecutor.EventRecorder
	object   runtime.Object
	name     string
}

func (a audience) tell(eventtype, reason, message string) {
	if a.recorder != nil && a.object != nil {
		a.recorder.Eventf(a.object, eventtype, reason, "volume %q: %s", a.name, message)
	}
}

// audienceOf returns who is told of a volume, as long as something is known of it.
func (m *Manager) audienceOf(h podvolume.Key) audience {
	object, name := m.objectOf(h)
	return audience{recorder: m.options.Recorder, object: object, name: name}
}

func (m *Manager) objectOf(h podvolume.Key) (object runtime.Object, name string) {
	name = string(h.Volume)
	var spec *volume.Spec
	if mounted, ok := m.actual.GetMountedVolume(h.Volume, h.Pod); ok && h.Pod != "" {
		spec = mounted.VolumeSpec
		object = podObject(mounted.Pod)
	}
	if entry := m.entryOf(types.UID(h.Pod)); entry != nil {
		object = entry.pod
	}
	if row, ok := m.actual.GetAttachedVolume(h.Volume); ok && spec == nil {
		spec = row.VolumeSpec
	}
	if spec != nil {
		name = spec.Name()
		if object == nil && spec.PersistentVolume != nil {
			object = spec.PersistentVolume
		}
	}
	return object, name
}

// podObject returns pod, or a plain nil.
func podObject(pod *v1.Pod) runtime.Object {
	if pod == nil {
		return nil
	}
	return pod
}

// conditionsOf returns what is wrong with a volume as a pod has it: with its set-up, with its staging, and what hangs.
func (m *Manager) conditionsOf(h podvolume.Key) []Condition {
	found := m.health.of(h)
	if h.Pod != "" {
		found = append(found, m.health.of(podvolume.Key{Volume: h.Volume})...)
	}
	return append(found, m.hungConditions(h)...)
}
