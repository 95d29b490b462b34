package dockerserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/volume"
)

// step is the step in the life of a volume.
type step string

const (
	making   step = "making" // it may be there, whole or not
	made     step = "made"
	deleting step = "deleting" // it may be there, whole or not
)

// volumeRecord is a volume of a Create call.
type volumeRecord struct {
	Step step
	Name string
	// Options is a digest of Create's options, whose values may be secret.
	Options string
	// PV is the created volume. A volume of a pod has Volume instead.
	PV     *v1.PersistentVolume `json:",omitempty"`
	Volume *v1.Volume           `json:",omitempty"`
	// Created is the time of its creation, in RFC 3339.
	Created string `json:",omitempty"`
}

func (v volumeRecord) spec() *volume.Spec {
	if v.PV != nil {
		return volume.NewSpecFromPersistentVolume(v.PV, false)
	}
	return volume.NewSpecFromVolume(v.Volume)
}

// useRecord holds the uses of a volume in this boot.
type useRecord struct {
	Boot string
	Name string
	IDs  []string
	// Path is Mount's last answer; empty before the first.
	Path string `json:",omitempty"`
	// Mounted is what was mounted at Path then (see mountLine); empty if nothing was.
	Mounted string `json:",omitempty"`
}

// table holds the records of one kind, in memory and on disk. Its methods may be called from several goroutines at
// once, but only one may write a key at a time.
type table[T any] struct {
	dir *record.Dir

	mu   sync.Mutex
	rows map[string]T
}

// openTable opens a directory and reads its records.
func openTable[T any](path string, options record.Options, logger *slog.Logger) (*table[T], error) {
	dir, err := record.Open(path, options)
	if err != nil {
		return nil, err
	}
	t := &table[T]{dir: dir, rows: map[string]T{}}
	if err := t.load(logger); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return t, nil
}

func (t *table[T]) load(logger *slog.Logger) error {
	records, damaged, err := t.dir.Load()
	if err != nil {
		return err
	}
	for _, d := range damaged {
		logger.Error("records are damaged: what they were of is left as it is", "path", d.Path, "error", d.Err)
	}
	for _, r := range records {
		var row T
		if err := json.Unmarshal(r.Payload, &row); err != nil {
			return fmt.Errorf("record %q in %s: %w", r.Key, t.dir.Path(), err)
		}
		t.rows[r.Key] = row
	}
	return nil
}

func (t *table[T]) get(name string) (T, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	row, ok := t.rows[name]
	return row, ok
}

// all returns the rows sorted by name.
func (t *table[T]) all() []T {
	t.mu.Lock()
	defer t.mu.Unlock()
	rows := make([]T, 0, len(t.rows))
	for _, name := range slices.Sorted(maps.Keys(t.rows)) {
		rows = append(rows, t.rows[name])
	}
	return rows
}

// put writes the row in memory and on disk.
func (t *table[T]) put(name string, row T) error {
	payload, err := json.Marshal(row)
	if err != nil {
		return err
	}
	if err := t.dir.Put(name, payload); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows[name] = row
	return nil
}

func (t *table[T]) remove(name string) error {
	if err := t.dir.Remove(name); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.rows, name)
	return nil
}

// records are the volumes, which survive a reboot, and their uses, which end with the boot.
type records struct {
	boot    string
	volumes *table[volumeRecord]
	uses    *table[useRecord]
}

// volumesDir and usesDir are below StateDir and RuntimeDir; nodeDir, below both, has the records of the volume manager.
const (
	volumesDir = "volumes"
	usesDir    = "uses"
	nodeDir    = "node"
)

// openRecords opens both kinds, and closes the first when the second cannot be opened.
func openRecords(o Options) (*records, error) {
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	volumes, err := openTable[volumeRecord](filepath.Join(o.StateDir, volumesDir), record.Options{Sync: true}, o.Logger)
	if err != nil {
		return nil, fmt.Errorf("StateDir: %w", err)
	}
	uses, err := openTable[useRecord](filepath.Join(o.RuntimeDir, usesDir), record.Options{}, o.Logger)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("RuntimeDir: %w", err), volumes.dir.Close())
	}
	r := &records{boot: boot, volumes: volumes, uses: uses}
	if err := r.forgetBoots(); err != nil {
		return nil, errors.Join(fmt.Errorf("RuntimeDir: %w", err), r.close())
	}
	return r, nil
}

// forgetBoots removes the uses of earlier boots, whose containers have ended.
func (r *records) forgetBoots() error {
	var errs []error
	for _, u := range r.uses.all() {
		if u.Boot != r.boot {
			errs = append(errs, r.uses.remove(u.Name))
		}
	}
	return errors.Join(errs...)
}

func (r *records) close() error { return errors.Join(r.volumes.dir.Close(), r.uses.dir.Close()) }

// addUse records an id.
func (r *records) addUse(name, id string) error {
	u, _ := r.uses.get(name)
	if slices.Contains(u.IDs, id) {
		return nil
	}
	u.Boot, u.Name, u.IDs = r.boot, name, append(slices.Clone(u.IDs), id)
	return r.uses.put(name, u)
}

// setPath records the path of a volume, and what is mounted there.
func (r *records) setPath(name, path, mounted string) error {
	u, _ := r.uses.get(name)
	if u.Path == path && u.Mounted == mounted {
		return nil
	}
	u.Path, u.Mounted = path, mounted
	return r.uses.put(name, u)
}

// dropUse removes an id from the record, and returns the number of the others.
func (r *records) dropUse(name, id string) (left int, err error) {
	u, ok := r.uses.get(name)
	if !ok {
		return 0, nil
	}
	if !slices.Contains(u.IDs, id) {
		return len(u.IDs), nil
	}
	u.IDs = slices.DeleteFunc(slices.Clone(u.IDs), func(one string) bool { return one == id })
	if len(u.IDs) == 0 {
		return 0, r.uses.remove(name)
	}
	return len(u.IDs), r.uses.put(name, u)
}

// bootID returns the kernel's id of this boot.
func bootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("boot id, without which uses cannot be told from those of an earlier boot: %w", err)
	}
	return strings.TrimSpace(string(id)), nil
}
