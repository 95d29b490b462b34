// Package health keeps what is wrong with volumes, says so by events, and remembers data that may be lost.
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

// Condition is one thing that is wrong with a volume, or worth knowing. It has the fields of volumemanager.Condition.
type Condition struct {
	volume.HealthCondition

	// Since is when it was found out.
	Since time.Time
	// Err is the cause; nil when there is none but the message.
	Err error
}

// Abnormal is a condition of a volume that cannot be used, or not be trusted.
func Abnormal(reason string, err error) Condition {
	return Condition{
		HealthCondition: volume.HealthCondition{Status: volume.HealthAbnormal, Reason: reason, Message: err.Error()},
		Err:             err,
	}
}

// Degraded is a condition of a volume that can be used, but not as it should.
func Degraded(reason string, err error) Condition {
	c := Abnormal(reason, err)
	c.Status = volume.HealthDegraded
	return c
}

// Source is who has found a condition. It says each time all that it has found, which replaces what it said before.
type Source uint8

// The sources.
const (
	Mount      Source = iota // the mount table
	Use                      // a measurement
	Filesystem               // what its filesystem tells
	Sync                     // what could not be written
	Below                    // the directory on which it is staged
	TakingOff                // the attempt to take off what hangs
	Plugin
	sources
)

// bySource are the conditions of one volume of one pod.
type bySource [sources][]Condition

// LostData says that data may be lost. It has what volumemanager.LostData tells.
type LostData struct {
	// Key is the volume, and the pod for which it was set up.
	Key podvolume.Key
	// At is when that was found out.
	At time.Time
	// Err is what the filesystem has said.
	Err error
}

// maxLostData is how many of them are kept: the latest.
const maxLostData = 100

// Options is what a [Book] needs.
type Options struct {
	// Logger gets each new condition.
	Logger *slog.Logger
	// Recorder gets an event for each; nil: it is dropped.
	Recorder volume.EventRecorder
	// Target returns the object that gets the events about a volume, nil when nothing is known of it, and the volume's name.
	Target func(podvolume.Key) (object runtime.Object, name string)
	// Changed is called when the conditions of a volume have changed.
	Changed func(podvolume.Key)
}

// Book holds the conditions that were found. Make it with [New].
type Book struct {
	options Options

	mu   sync.Mutex
	rows map[podvolume.Key]*bySource
	lost []LostData
}

// New returns a book without conditions.
func New(o Options) *Book { return &Book{options: o, rows: make(map[podvolume.Key]*bySource)} }

// Report says all that a source has found of a volume. What is new is told by an event, and so is that nothing is wrong any
// more.
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

// Event records an event on the pod, or on the PersistentVolume where no pod is concerned or known.
func (b *Book) Event(key podvolume.Key, eventtype, reason, message string) {
	object, name := b.options.Target(key)
	if b.options.Recorder != nil && object != nil {
		b.options.Recorder.Eventf(object, eventtype, reason, "volume %q: %s", name, message)
	}
}

// set replaces what a source has found. It returns what is new, and whether that was the last that was wrong.
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

// Of returns what is known of a volume and a pod.
func (b *Book) Of(key podvolume.Key) []Condition {
	b.mu.Lock()
	defer b.mu.Unlock()
	row := b.rows[key]
	if row == nil {
		return nil
	}
	return slices.Concat(row[:]...)
}

// Forget drops all that was known of a volume and a pod.
func (b *Book) Forget(key podvolume.Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.rows, key)
}

// OfPod returns what is wrong with a volume as a pod has it: with its set-up and with its staging.
func (b *Book) OfPod(key podvolume.Key) []Condition {
	found := b.Of(key)
	if key.Pod != "" {
		found = append(found, b.Of(podvolume.Key{Volume: key.Volume})...)
	}
	return found
}

// DataLost tells of data that may be lost, and remembers that.
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

// LostData returns what was found out, the latest last.
func (b *Book) LostData() []LostData {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.lost)
}
