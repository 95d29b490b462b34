package csiserver

import (
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/volume"
)

// volumeStep is the stage in the life of a volume, a snapshot or a group.
type volumeStep string

const (
	making   volumeStep = "making" // it may exist, complete or in part
	made     volumeStep = "made"
	deleting volumeStep = "deleting" // it may still exist, complete or in part
)

// volumeRecord is a volume of CreateVolume. Its key is its name.
type volumeRecord struct {
	Step volumeStep
	Name string
	// ID and PV are empty until the volume is made. PV has no mount options.
	ID string               `json:",omitempty"`
	PV *v1.PersistentVolume `json:",omitempty"`
	// Size is the smallest allowed size, in bytes. A repeated attempt requests the same size, also if the source is gone.
	Size int64 `json:",omitempty"`
	// Parameters is a digest of the parameters of the request.
	Parameters string
	// Origin is the id of the volume of which this one is a copy; empty for none.
	Origin string `json:",omitempty"`
	// Source is the volume of Origin at the last request that found it. It is nil once the copy is made.
	Source *v1.PersistentVolume `json:",omitempty"`
	// OriginSnapshot is the id of the snapshot from which the volume was restored; empty for none.
	OriginSnapshot string `json:",omitempty"`
	// Mutable is a digest of the mutable parameters of CreateVolume; empty for none. ControllerModifyVolume does not change it.
	Mutable string `json:",omitempty"`
}

// snapshotRecord is a snapshot of CreateSnapshot. Its key is its name.
type snapshotRecord struct {
	Step volumeStep
	Name string
	// Source is the id of the volume. PV is the volume at the time of the first request: the call can be repeated when the
	// volume is gone.
	Source string
	PV     *v1.PersistentVolume
	// Snapshot is the plugin's answer; empty until the snapshot is made. Its key on disk is an earlier name of the field.
	Snapshot volume.Snapshot `json:"Told"`
}

// groupRecord is a group of snapshots of CreateVolumeGroupSnapshot. Its key is its name.
type groupRecord struct {
	Step volumeStep
	Name string
	// Sources are the volumes of the group, by id.
	Sources map[string]*v1.PersistentVolume
	// Parameters is a digest of the parameters of the request.
	Parameters string
	// Group is the plugin's answer; empty until the group is made. Its key on disk is an earlier name of the field.
	Group volume.GroupSnapshot `json:"Told"`
	// Origins maps the id of each snapshot to the id of its volume.
	Origins map[string]string `json:",omitempty"`
}

// attachment is a volume that is, or may be, attached to a node. Its key is [attachmentKey].
type attachment struct {
	ID   string
	Node types.NodeName
	// Origin is read from the volume's context.
	Origin     origin
	Capability capability
	ReadOnly   bool
	// Done is set when Attach has succeeded; Device is its result.
	Done   bool
	Device string `json:",omitempty"`
}

// staging is a volume that is, or may be, staged on this node. Its key is its id.
type staging struct {
	Boot string
	ID   string
	// Path is the staging path of the call. MountPath is the plugin's; empty if staging mounts nothing.
	Path      string
	MountPath string `json:",omitempty"`
	// PV is the volume without mount options that may be secret.
	PV         *v1.PersistentVolume
	Capability capability
	ReadOnly   bool
	// Done is set when staging has succeeded; Device is its result.
	Done   bool
	Device string `json:",omitempty"`
	// Unstaging is set when unstaging has begun. From then on, MountPath and Device may belong to another volume.
	Unstaging bool `json:",omitempty"`
}

// publication is a volume that is, or may be, published at a path of this node. Its key is [publicationKey].
type publication struct {
	binding

	Boot string
	ID   string
	// UID is derived from the volume's id and the target path. It takes the place of the pod's UID: a CSI call need not name a pod.
	UID        types.UID
	Name       string // the inner name of the volume
	Capability capability
}

// stateRecords are the records that survive a reboot.
type stateRecords struct {
	dir         *record.Dir
	volumes     *record.Table[volumeRecord]
	attachments *record.Table[attachment]
	snapshots   *record.Table[snapshotRecord]
	groups      *record.Table[groupRecord]
	deleted     deletedVolumes
}

// runtimeRecords are the records of this boot only: mounts do not survive a reboot.
type runtimeRecords struct {
	dir          *record.Dir
	boot         string
	stagings     *record.Table[staging]
	publications *record.Table[publication]
}

func attachmentKey(id string, node types.NodeName) string { return id + "\x00" + string(node) }

func publicationKey(id string, uid types.UID) string { return id + "\x00" + string(uid) }

// byID returns the volume with the id, if it is made or its deletion has begun.
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

// records are the records of a server. runtime is nil in a server without the node service.
type records struct {
	state   *stateRecords
	runtime *runtimeRecords
}

// openRecords opens and reads all records. On an error it closes those that it opened.
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
