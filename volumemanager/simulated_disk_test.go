package volumemanager

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/journal"
	sim "github.com/volumekit/volumekit/volumemanager/internal/world"
)

// simulatedDisk holds the records of a node: those of its runtime directory, which are gone after a reboot, and the others.
// Only the driver and the one call that it let go on use it at a time.
type simulatedDisk struct {
	boot  int
	files map[string]map[string][]byte
	mu    sync.Mutex // guards owners
	// owners are the processes that have locked the directories. The lock of one that was killed is gone.
	owners map[string]*sim.Process
	bug    simulatedBug
}

func newSimulatedDisk(bug simulatedBug) *simulatedDisk {
	return &simulatedDisk{files: map[string]map[string][]byte{}, owners: map[string]*sim.Process{}, bug: bug}
}

// simulatedDir is one directory of records, as one process has it.
type simulatedDir struct {
	p    *sim.Process
	disk *simulatedDisk
	path string
}

// open locks a directory for a program of a process.
func (d *simulatedDisk) open(p *sim.Process, path string) (journal.Dir, error) {
	if !d.lock(p, path) && !d.bug.locksNothing {
		return nil, fmt.Errorf("%s: %w", path, volume.ErrInUse)
	}
	if d.boot != p.Boot() {
		d.boot = p.Boot()
		d.files["/simulated/run"] = nil
	}
	if d.files[path] == nil {
		d.files[path] = map[string][]byte{}
	}
	p.KeepRecords(d.all())
	dir := &simulatedDir{p: p, disk: d, path: path}
	if d.bug.dir != nil {
		return d.bug.dir(dir), nil
	}
	return dir, nil
}

// lock reports whether the process had not locked the directory before.
func (d *simulatedDisk) lock(p *sim.Process, path string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	locked := d.owners[path] == p
	d.owners[path] = p
	return !locked
}

// all returns what is on record.
func (d *simulatedDisk) all() map[v1.UniqueVolumeName]sim.Record {
	records := map[v1.UniqueVolumeName]sim.Record{}
	for _, files := range d.files {
		for key := range files {
			records[v1.UniqueVolumeName(key)] = d.of(key)
		}
	}
	return records
}

// of returns what is on record of a volume, in both directories.
func (d *simulatedDisk) of(key string) sim.Record {
	r := sim.Record{Pods: map[types.UID]bool{}}
	for _, files := range d.files {
		var file journal.Record
		if payload := files[key]; payload != nil {
			must(json.Unmarshal(payload, &file))
		}
		r.Attached = r.Attached || file.Attachment != nil
		if file.Staging != nil {
			r.Staged = file.Staging.Path
		}
		for uid := range file.Pods {
			r.Pods[uid] = true
		}
	}
	return r
}

// must is for what cannot fail.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// Load implements journal.Dir.
func (d *simulatedDir) Load() ([]record.Record, []record.Damaged, error) {
	var records []record.Record
	for _, key := range slices.Sorted(maps.Keys(d.disk.files[d.path])) {
		records = append(records, record.Record{Key: key, Payload: d.disk.files[d.path][key]})
	}
	return records, nil, nil
}

// Put implements journal.Dir.
func (d *simulatedDir) Put(key string, payload []byte) error {
	return d.p.WriteRecord(v1.UniqueVolumeName(key), func() sim.Record {
		d.disk.files[d.path][key] = payload
		return d.disk.of(key)
	})
}

// Remove implements journal.Dir.
func (d *simulatedDir) Remove(key string) error {
	return d.p.WriteRecord(v1.UniqueVolumeName(key), func() sim.Record {
		delete(d.disk.files[d.path], key)
		return d.disk.of(key)
	})
}

// Quarantine implements journal.Dir. A record of the simulation is never damaged.
func (d *simulatedDir) Quarantine(key string, reason error) record.Damaged {
	panic(key + ": " + reason.Error())
}

// Close implements journal.Dir. A process that was killed has no lock any more.
func (d *simulatedDir) Close() error {
	d.disk.mu.Lock()
	defer d.disk.mu.Unlock()
	if d.disk.owners[d.path] == d.p {
		delete(d.disk.owners, d.path)
	}
	return nil
}
