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

// Options is what a [Book] needs.
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

// Book holds the conditions of all volumes. Make it with [New].
type Book struct {
	options Options

	mu   sync.Mutex
	rows map[podvolume.Key]*bySource
	lost []LostData
}

// New returns a book without conditions.
func New(o Options) *Book { return &Book{options: o, rows: make(map[podvolume.Key]*bySource)} }

// Report replaces all conditions that a source has found of a volume. It logs each new condition and records an event for
// it. It also records an event when the volume has no condition any more.
func (b *Book) Report(key podvolume.Key, from Source, now []Condition) {
	fresh, cleared := b.set(key, from, now)
	if len(fresh) == 0 && !cleared {
		return
	}
	for _, c := range fresh {
		b.options.Logger.Warn("the health of a volume has changed", "volume", key.Volume, "pod", key.Pod, "reason", c.Reason, "error", c.Message)
		b.Event(key, v1.EventTypeWarning, EventAbnormal, c.Message)
	}
	if cleared {
		b.Event(key, v1.EventTypeNormal, EventNormal, "nothing is wrong with it any more")
	}
	b.options.Changed(key)
}

// Event records an event on the pod, or on the PersistentVolume if the volume has no pod, or an unknown one.
func (b *Book) Event(key podvolume.Key, eventtype, reason, message string) {
	object, name := b.options.Target(key)
	if b.options.Recorder != nil && object != nil {
		b.options.Recorder.Eventf(object, eventtype, reason, "volume %q: %s", name, message)
	}
}

// set replaces the conditions of a source. It returns the new ones, and whether the volume's last condition has gone.
func (b *Book) set(key podvolume.Key, from Source, now []Condition) (fresh []Condition, cleared bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	row := b.rows[key]
	if row == nil {
		if len(now) == 0 {
			return nil, false
		}
		row = new(bySource)
		b.rows[key] = row
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
		delete(b.rows, key)
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
func (b *Book) Of(key podvolume.Key) []Condition {
	b.mu.Lock()
	defer b.mu.Unlock()
	row := b.rows[key]
	if row == nil {
		return nil
	}
	return slices.Concat(row[:]...)
}

// Forget drops the conditions of a volume as a pod has it.
func (b *Book) Forget(key podvolume.Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.rows, key)
}

// OfPod returns the conditions of a volume as a pod has it: of its set-up and of its staging.
func (b *Book) OfPod(key podvolume.Key) []Condition {
	found := b.Of(key)
	if key.Pod != "" {
		found = append(found, b.Of(podvolume.Key{Volume: key.Volume})...)
	}
	return found
}

// DataLost logs, reports and remembers that data of a volume may be lost.
func (b *Book) DataLost(key podvolume.Key, err error) {
	b.options.Logger.Error("data may be lost", "volume", key.Volume, "pod", key.Pod, "error", err)
	b.addLost(LostData{Key: key, At: time.Now(), Err: err})
	b.Report(key, Sync, []Condition{Abnormal(DataLost, err)})
}

func (b *Book) addLost(d LostData) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lost = append(b.lost, d)
	if len(b.lost) > maxLostData {
		b.lost = slices.Delete(b.lost, 0, 1)
	}
}

// LostData returns the losses that were found, the latest last.
func (b *Book) LostData() []LostData {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.lost)
}
