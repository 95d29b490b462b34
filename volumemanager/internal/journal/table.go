package journal

import (
	"maps"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/workqueue"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/paths"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
	"github.com/volumekit/volumekit/volumemanager/internal/retry"
)

// table holds in memory what is on record, and which records the disk may lack. It does no I/O. All methods may be called from
// several goroutines at once. A caller that enters a record holds the lock of its volume in Journal.locks.
type table struct {
	mu sync.Mutex
	// entries are the records as they are on disk: those of volumes, and those that pods have for themselves.
	entries map[podvolume.Key]*entry
	// replaced is what was on record, and is not now, or is another thing, until orphans are looked for; nil after that.
	replaced *Recorded
	// stale holds the records whose last change may not be on disk. late holds its one key when they have to be written.
	stale map[podvolume.Key]struct{}
	late  *workqueue.Queue[struct{}]
}

func (t *table) entryOf(h podvolume.Key) entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.entries[h]; e != nil {
		return *e
	}
	return entry{at: h}
}

// ofVolume returns the record of a volume, without the pods that have one of their own.
func (t *table) ofVolume(name v1.UniqueVolumeName) entry {
	return t.entryOf(podvolume.Key{Volume: name})
}

// enter keeps what the files say, or should say, until no trace is left of the volume.
func (t *table) enter(e entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if old := t.entries[e.at]; old != nil {
		t.replaced.add(old.record)
	}
	if e.stale {
		if len(t.stale) == 0 {
			t.late.AddAt(struct{}{}, retry.At(1))
		}
		t.stale[e.at] = struct{}{}
	} else if len(t.stale) > 0 {
		delete(t.stale, e.at)
	}
	if e.record.isEmpty() && !e.stale {
		delete(t.entries, e.at)
		return
	}
	t.entries[e.at] = &e
}

// behind returns the records that could not be written.
func (t *table) behind() []podvolume.Key {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.stale))
}

// IsBehind reports whether there are records that could not be written.
func (t *table) IsBehind() bool { return len(t.behind()) > 0 }

// expect makes room for records.
func (t *table) expect(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.entries) == 0 {
		t.entries = make(map[podvolume.Key]*entry, n)
	}
}

// home returns the record that an intent changes: the volume's, or the pod's own. The caller holds the volume's lock in
// locks.
func (t *table) home(intent operationexecutor.Intent) podvolume.Key {
	whole := podvolume.Key{Volume: intent.VolumeName}
	if partOf(intent) != partSetUp {
		return whole
	}
	own := podvolume.Key{Volume: intent.VolumeName, Pod: volume.UniquePodName(intent.PodUID)}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.entries[own] != nil {
		return own
	}
	e := t.entries[whole]
	switch {
	case e == nil || e.record.Pods[intent.PodUID] != nil:
		return whole
	case intent.Spec != nil && e.record.inner != "" && e.record.inner != intent.Spec.Name():
		return own
	case len(e.record.Pods) < podsInRecord:
		return whole
	}
	return own
}

// SetUpOf returns the recorded set-up of a volume for a pod; nil if there is none.
func (t *table) SetUpOf(name v1.UniqueVolumeName, uid types.UID) *SetUp {
	if own := t.entryOf(podvolume.Key{Volume: name, Pod: volume.UniquePodName(uid)}); own.record.Pods[uid] != nil {
		return own.record.Pods[uid]
	}
	return t.ofVolume(name).record.Pods[uid]
}

// withoutOwn removes from the record of a volume the pods that have a record of their own. Their own record is the later
// one: a pod gets it only when the record of the volume does not hold the pod. Only the caller uses the map of r's pods.
func (t *table) withoutOwn(r *Record) {
	for uid := range r.Pods {
		if len(t.entryOf(podvolume.Key{Volume: r.Volume, Pod: volume.UniquePodName(uid)}).record.Pods) > 0 {
			delete(r.Pods, uid)
		}
	}
}

// Recorded returns the paths and devices that are on record now.
func (t *table) Recorded() *Recorded {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.addAll(newRecorded(len(t.entries)))
}

// addAll enters all records. The caller holds table.mu.
func (t *table) addAll(r *Recorded) *Recorded {
	for _, e := range t.entries {
		r.add(e.record)
	}
	return r
}

// EndStart returns all paths and devices that were on record at any time since the start, and stops keeping the replaced
// ones. A volume that was torn down meanwhile is included, because its remains are no orphans.
func (t *table) EndStart() *Recorded {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := newRecorded(len(t.entries))
	if t.replaced != nil {
		maps.Copy(r.Paths, t.replaced.Paths)
		maps.Copy(r.devices, t.replaced.devices)
		maps.Copy(r.labels, t.replaced.labels)
	}
	t.replaced = nil
	return t.addAll(r)
}

// Paths returns every path on record.
func (t *table) Paths() map[string]struct{} { return t.Recorded().Paths }

// Accounts reports whether a device is on record, or may be; see [Recorded.Accounts].
func (t *table) Accounts(d loop.Device) bool { return t.Recorded().Accounts(d) }

// IsRecorded reports whether a path, or any path beneath it, is on record.
func (t *table) IsRecorded(path string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.entries {
		for recorded := range e.record.paths() {
			if paths.IsAtOrBeneath(recorded, path) {
				return true
			}
		}
	}
	return false
}

// Attached returns the volumes that have an attachment on record.
func (t *table) Attached() []Found {
	t.mu.Lock()
	defer t.mu.Unlock()
	var attached []Found
	for _, e := range t.entries {
		if e.record.Attachment == nil {
			continue
		}
		if spec, err := e.record.spec(); err == nil { // Load has checked the spec.
			attached = append(attached, Found{Record: e.record, Spec: spec})
		}
	}
	return attached
}
