// Package health keeps the conditions of volumes, records events about them, and remembers data that may be lost.
package health

import (
	"log/slog"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
)

// The reasons of conditions; volumemanager says what each means.
const (
	Unmounted          = "Unmounted"
	MountedOver        = "MountedOver"
	Moved              = "Moved"
	FlagsChanged       = "FlagsChanged"
	FilesystemReadOnly = "FilesystemReadOnly"
	FilesystemShutDown = "FilesystemShutDown"
	FilesystemErrors   = "FilesystemErrors"
	Unreachable        = "Unreachable"
	Hung               = "Hung"
	NotTakenOff        = "NotTakenOff"
	StrayFiles         = "StrayFiles"
	DataLost           = "DataLost"
)

// The reasons of the events about conditions.
const (
	EventAbnormal = "VolumeConditionAbnormal"
	EventNormal   = "VolumeConditionNormal"
)

// Condition is a fault of a volume, or a fact worth knowing. It has the fields of volumemanager.Condition.
type Condition struct {
	volume.HealthCondition

	// Since is when the condition was found.
	Since time.Time
	// Err is the cause; nil if only the message is known.
	Err error
}

// Abnormal returns the condition of a volume that is unusable, or not to be trusted.
func Abnormal(reason string, err error) Condition {
	return Condition{
		HealthCondition: volume.HealthCondition{Status: volume.HealthAbnormal, Reason: reason, Message: err.Error()},
		Err:             err,
	}
}

// Degraded returns the condition of a volume that is usable, but impaired.
func Degraded(reason string, err error) Condition {
	c := Abnormal(reason, err)
	c.Status = volume.HealthDegraded
	return c
}

// Source is the origin of a condition. Each report of a source holds all conditions that it finds, and replaces the source's
// previous report.
type Source uint8

// The sources.
const (
	Mount      Source = iota // the mount table
	Use                      // a measurement
	Filesystem               // the volume's filesystem
	Sync                     // failed writes
	Below                    // the directory on which the volume is staged
	TakingOff                // the attempt to unmount a volume that hangs
	Plugin
	sources
)

// bySource holds the conditions of one volume of one pod by their source.
type bySource [sources][]Condition

// LostData says that data of a volume may be lost. It has the facts of volumemanager.LostData.
type LostData struct {
	// Key is the volume, and the pod for which it was set up.
	Key podvolume.Key
	// At is when the loss was found.
	At time.Time
	// Err is the error of the filesystem.
	Err error
}

// maxLostData is how many losses are kept: the latest.
const maxLostData = 100

// Options is what a [Table] needs.
type Options struct {
	// Logger logs each new condition.
	Logger *slog.Logger
	// Recorder records an event for each new condition. It may be nil.
	Recorder volume.EventRecorder
	// Target returns the volume's name and the object on which events about it are recorded. The object is nil for an
	// unknown volume.
	Target func(podvolume.Key) (object runtime.Object, name string)
	// Changed is called when the conditions of a volume have changed.
	Changed func(podvolume.Key)
}

// Table holds the conditions of all volumes. Make it with [New].
type Table struct {
	options Options

	mu   sync.Mutex
	rows map[podvolume.Key]*bySource
	lost []LostData
}

// New returns a table without conditions.
func New(o Options) *Table { return &Table{options: o, rows: make(map[podvolume.Key]*bySource)} }

// Report replaces all conditions that a source has found of a volume. It logs each new condition and records an event for
// it. It also records an event when the volume has no condition any more.
func (t *Table) Report(key podvolume.Key, from Source, now []Condition) {
	fresh, cleared := t.set(key, from, now)
	if len(fresh) == 0 && !cleared {
		return
	}
	for _, c := range fresh {
		t.options.Logger.Warn("the health of a volume has changed", "volume", key.Volume, "pod", key.Pod, "reason", c.Reason, "error", c.Message)
		t.Event(key, v1.EventTypeWarning, EventAbnormal, c.Message)
	}
	if cleared {
		t.Event(key, v1.EventTypeNormal, EventNormal, "nothing is wrong with it any more")
	}
	t.options.Changed(key)
}

// Event records an event on the pod, or on the PersistentVolume if the volume has no pod, or an unknown one.
func (t *Table) Event(key podvolume.Key, eventtype, reason, message string) {
	object, name := t.options.Target(key)
	if t.options.Recorder != nil && object != nil {
		t.options.Recorder.Eventf(object, eventtype, reason, "volume %q: %s", name, message)
	}
}

// set replaces the conditions of a source. It returns the new ones, and whether the volume's last condition has gone.
func (t *Table) set(key podvolume.Key, from Source, now []Condition) (fresh []Condition, cleared bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	row := t.rows[key]
	if row == nil {
		if len(now) == 0 {
			return nil, false
		}
		row = new(bySource)
		t.rows[key] = row
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
		delete(t.rows, key)
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

// Of returns the conditions of a volume as a pod has it.
func (t *Table) Of(key podvolume.Key) []Condition {
	t.mu.Lock()
	defer t.mu.Unlock()
	row := t.rows[key]
	if row == nil {
		return nil
	}
	return slices.Concat(row[:]...)
}

// Forget drops the conditions of a volume as a pod has it.
func (t *Table) Forget(key podvolume.Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.rows, key)
}

// OfPod returns the conditions of a volume as a pod has it: of its set-up and of its staging.
func (t *Table) OfPod(key podvolume.Key) []Condition {
	found := t.Of(key)
	if key.Pod != "" {
		found = append(found, t.Of(podvolume.Key{Volume: key.Volume})...)
	}
	return found
}

// DataLost logs, reports and remembers that data of a volume may be lost.
func (t *Table) DataLost(key podvolume.Key, err error) {
	t.options.Logger.Error("data may be lost", "volume", key.Volume, "pod", key.Pod, "error", err)
	t.addLost(LostData{Key: key, At: time.Now(), Err: err})
	t.Report(key, Sync, []Condition{Abnormal(DataLost, err)})
}

func (t *Table) addLost(d LostData) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lost = append(t.lost, d)
	if len(t.lost) > maxLostData {
		t.lost = slices.Delete(t.lost, 0, 1)
	}
}

// LostData returns the losses that were found, the latest last.
func (t *Table) LostData() []LostData {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.lost)
}
