package csiserver

import (
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/volume"
)

// volumeStep is how far the life of a volume has come.
type volumeStep string

const (
	making   volumeStep = "making" // it may be there, whole or not
	made     volumeStep = "made"
	deleting volumeStep = "deleting" // it may be there, whole or not
)

// volumeRecord is a volume that CreateVolume has made, by its name.
type volumeRecord struct {
	Step volumeStep
	Name string
	// ID and PV are known once the volume is made. PV has no mount options.
	ID string               `json:",omitempty"`
	PV *v1.PersistentVolume `json:",omitempty"`
	// Size is how large it is to be at least, in bytes: an attempt that is repeated asks for the same, also when the source is gone.
	Size int64 `json:",omitempty"`
	// Parameters is a digest of those of the request, Origin the id of the volume whose copy it is.
	Parameters string
	Origin     string `json:",omitempty"`
	// Source is the volume of Origin as it was when it was to be copied, until the copy is made.
	Source *v1.PersistentVolume `json:",omitempty"`
	// OriginSnapshot is the id of the snapshot from which it was restored.
	OriginSnapshot string `json:",omitempty"`
	// Mutable is a digest of the mutable parameters of the request, empty for none. Later ones are the storage's to keep.
	Mutable string `json:",omitempty"`
}

// snapshotRecord is a snapshot that CreateSnapshot has made, by its name.
type snapshotRecord struct {
	Step volumeStep
	Name string
	// Source is the id of the volume, PV the volume as it was: the call can be repeated when the volume is gone.
	Source string
	PV     *v1.PersistentVolume
	// Snapshot is what the plugin returned, once the snapshot is made. Its key on disk is older than its name.
	Snapshot volume.Snapshot `json:"Told"`
}

// groupRecord is a group of snapshots that CreateVolumeGroupSnapshot has made, by its name.
type groupRecord struct {
	Step volumeStep
	Name string
	// Sources are the volumes by id.
	Sources map[string]*v1.PersistentVolume
	// Parameters is a digest of those of the request.
	Parameters string
	// Group is what the plugin returned, once the group is made. Origins are the ids of the volumes by the ids of the snapshots.
	Group   volume.GroupSnapshot `json:"Told"`
	Origins map[string]string    `json:",omitempty"`
}

// attachment is a volume that is attached to a node, or may be, by id and node.
type attachment struct {
	ID   string
	Node types.NodeName
	// Origin is what the volume's context says.
	Origin     origin
	Capability capability
	ReadOnly   bool
	// Done says that Attach has succeeded, with Device.
	Done   bool
	Device string `json:",omitempty"`
}

// staging is a volume that is staged on this node, or may be, by id.
type staging struct {
	Boot string
	ID   string
	// Path is the staging path of the caller, MountPath that of the plugin; empty when nothing is mounted for staging.
	Path      string
	MountPath string `json:",omitempty"`
	// PV is the volume without mount options that may be secret.
	PV         *v1.PersistentVolume
	Capability capability
	ReadOnly   bool
	// Done says that staging has succeeded, with Device.
	Done   bool
	Device string `json:",omitempty"`
	// Unstaging says that unstaging has begun: what is at MountPath, and Device, may be another's since.
	Unstaging bool `json:",omitempty"`
}

// publication is a volume that is published at a path of this node, or may be, by id and UID.
type publication struct {
	binding

	Boot string
	ID   string
	// UID stands for the pod, of which CSI says nothing.
	UID        types.UID
	Name       string // the inner name of the volume
	Capability capability
}

// stateRecords survive a reboot.
type stateRecords struct {
	dir         *record.Dir
	volumes     *record.Table[volumeRecord]
	attachments *record.Table[attachment]
	snapshots   *record.Table[snapshotRecord]
	groups      *record.Table[groupRecord]
	deleted     deletedVolumes
}

// runtimeRecords do not: mounts end with the boot.
type runtimeRecords struct {
	dir          *record.Dir
	boot         string
	stagings     *record.Table[staging]
	publications *record.Table[publication]
}

func attachmentKey(id string, node types.NodeName) string { return id + "\x00" + string(node) }

func publicationKey(id string, uid types.UID) string { return id + "\x00" + string(uid) }

// byID returns the volume with the id.
func (s *stateRecords) byID(id string) (volumeRecord, bool) {
	found := s.volumes.Where(func(v volumeRecord) bool { return v.ID == id && v.Step != making })
	if len(found) == 0 {
		return volumeRecord{}, false
	}
	return found[0], true
}

// snapshotByID returns the snapshot with the id, unless it is one of a group.
func (s *stateRecords) snapshotByID(id string) (snapshotRecord, bool) {
	found := s.snapshots.Where(func(r snapshotRecord) bool { return r.Snapshot.Handle == id && r.Step != making })
	if len(found) == 0 {
		return snapshotRecord{}, false
	}
	return found[0], true
}

// groupByID returns the group with the id.
func (s *stateRecords) groupByID(id string) (groupRecord, bool) {
	found := s.groups.Where(func(r groupRecord) bool { return r.Group.Handle == id && r.Step != making })
	if len(found) == 0 {
		return groupRecord{}, false
	}
	return found[0], true
}

func (s *stateRecords) attachmentsOf(id string) []attachment {
	return s.attachments.Where(func(a attachment) bool { return a.ID == id })
}

func (r *runtimeRecords) publicationsOf(id string) []publication {
	return r.publications.Where(func(p publication) bool { return p.ID == id })
}

// records are both kinds. A server without the node service has no runtime.
type records struct {
	state   *stateRecords
	runtime *runtimeRecords
}

// openRecords opens and reads the records, and closes all of them when one cannot be opened.
func openRecords(options Options) (r *records, err error) {
	r = &records{}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	dir, err := record.Open(options.StateDir, record.Options{Sync: true})
	if err != nil {
		return r, fmt.Errorf("StateDir: %w", err)
	}
	r.state = &stateRecords{
		dir: dir, volumes: record.NewTable[volumeRecord](dir, "volume/"), attachments: record.NewTable[attachment](dir, "attachment/"),
		snapshots: record.NewTable[snapshotRecord](dir, "snapshot/"), groups: record.NewTable[groupRecord](dir, "group/"),
	}
	if err := record.LoadTables(dir, options.Logger, r.state.volumes, r.state.attachments, r.state.snapshots, r.state.groups); err != nil {
		return r, fmt.Errorf("StateDir: %w", err)
	}
	if !options.hasNode() {
		return r, nil
	}
	dir, err = record.Open(options.RuntimeDir, record.Options{})
	if err != nil {
		return r, fmt.Errorf("RuntimeDir: %w", err)
	}
	r.runtime = &runtimeRecords{
		dir: dir, stagings: record.NewTable[staging](dir, "staging/"), publications: record.NewTable[publication](dir, "publication/"),
	}
	if err := record.LoadTables(dir, options.Logger, r.runtime.stagings, r.runtime.publications); err != nil {
		return r, fmt.Errorf("RuntimeDir: %w", err)
	}
	if r.runtime.boot, err = record.BootID(); err != nil {
		return r, err
	}
	return r, r.runtime.forgetBoots()
}

// forgetBoots removes the records of earlier boots, whose mounts have ended.
func (r *runtimeRecords) forgetBoots() error {
	return errors.Join(
		r.stagings.RemoveWhere(func(s staging) bool { return s.Boot != r.boot }),
		r.publications.RemoveWhere(func(p publication) bool { return p.Boot != r.boot }),
	)
}

func (r *records) close() error {
	var errs []error
	if r.state != nil {
		errs = append(errs, r.state.dir.Close())
	}
	if r.runtime != nil {
		errs = append(errs, r.runtime.dir.Close())
	}
	return errors.Join(errs...)
}
