package dockerserver

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

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
	// Mounted is what Path showed then (see filesystemDir); empty in records of older servers if nothing was mounted there.
	Mounted string `json:",omitempty"`
}

// records are the volumes, which survive a reboot, and their uses, which end with the boot.
type records struct {
	boot           string
	state, runtime *record.Dir
	volumes        *record.Table[volumeRecord]
	uses           *record.Table[useRecord]
}

// volumesDir and usesDir are below StateDir and RuntimeDir; nodeDir, below both, has the records of the volume manager.
const (
	volumesDir = "volumes"
	usesDir    = "uses"
	nodeDir    = "node"
)

// openRecords opens and reads the records, and closes both directories if one cannot be opened.
func openRecords(o Options) (r *records, err error) {
	r = &records{}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	if r.boot, err = record.BootID(); err != nil {
		return r, err
	}
	if r.state, r.volumes, err = openTable[volumeRecord](o, filepath.Join(o.StateDir, volumesDir), record.Options{Sync: true}); err != nil {
		return r, fmt.Errorf("StateDir: %w", err)
	}
	if r.runtime, r.uses, err = openTable[useRecord](o, filepath.Join(o.RuntimeDir, usesDir), record.Options{}); err != nil {
		return r, fmt.Errorf("RuntimeDir: %w", err)
	}
	// The containers of earlier boots have ended.
	if err := r.uses.RemoveWhere(func(u useRecord) bool { return u.Boot != r.boot }); err != nil {
		return r, fmt.Errorf("RuntimeDir: %w", err)
	}
	return r, nil
}

// openTable opens a directory, all of whose records are of one kind.
func openTable[T any](o Options, path string, sync record.Options) (*record.Dir, *record.Table[T], error) {
	dir, err := record.Open(path, sync)
	if err != nil {
		return nil, nil, err
	}
	table := record.NewTable[T](dir, "")
	return dir, table, record.LoadTables(dir, o.Logger, table)
}

func (r *records) close() error {
	var errs []error
	for _, dir := range []*record.Dir{r.state, r.runtime} {
		if dir != nil {
			errs = append(errs, dir.Close())
		}
	}
	return errors.Join(errs...)
}

// addUse records an id.
func (r *records) addUse(name, id string) error {
	u, _ := r.uses.Get(name)
	if slices.Contains(u.IDs, id) {
		return nil
	}
	u.Boot, u.Name, u.IDs = r.boot, name, append(slices.Clone(u.IDs), id)
	return r.uses.Put(name, u)
}

// setPath records the path of a volume, and what is mounted there.
func (r *records) setPath(name, path, mounted string) error {
	u, _ := r.uses.Get(name)
	if u.Path == path && u.Mounted == mounted {
		return nil
	}
	u.Path, u.Mounted = path, mounted
	return r.uses.Put(name, u)
}

// dropUse removes an id from the record, and returns the number of the others.
func (r *records) dropUse(name, id string) (left int, err error) {
	u, ok := r.uses.Get(name)
	if !ok {
		return 0, nil
	}
	if !slices.Contains(u.IDs, id) {
		return len(u.IDs), nil
	}
	u.IDs = slices.DeleteFunc(slices.Clone(u.IDs), func(one string) bool { return one == id })
	if len(u.IDs) == 0 {
		return 0, r.uses.Remove(name)
	}
	return len(u.IDs), r.uses.Put(name, u)
}
