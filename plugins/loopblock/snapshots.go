package loopblock

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/volumekit/volumekit/mount/freeze"
	"github.com/volumekit/volumekit/mount/image"
	"github.com/volumekit/volumekit/volume"
)

// The suffixes of the files of a snapshot N. No name of a snapshot or handle of a volume gives one the name of another.
const (
	recordSuffix        = ".snapshot"     // N.snapshot: the record; with it, the snapshots exist
	lockSuffix          = ".snapshotting" // N.snapshotting: the incomplete record, locked by the process that makes or deletes them
	snapshotImageSuffix = ".snap"         // N.0.id.snap: the image of the first, with the id of its record
)

// snapshotVersion is the version of the records' format.
const snapshotVersion = 1

// mostRecord is how many bytes of a record are read at most.
const mostRecord = 1 << 20

// snapshotRecord says which snapshots exist under a name: one, or those of a group.
type snapshotRecord struct {
	Version int              `json:"version"`
	Name    string           `json:"name"`
	ID      string           `json:"id"`
	Group   bool             `json:"group"`
	Created time.Time        `json:"created"`
	Members []snapshotMember `json:"members"`
}

// snapshotMember is one snapshot.
type snapshotMember struct {
	// Source is the handle of the volume.
	Source string `json:"source"`
	// Size is the size of the image, in bytes.
	Size int64 `json:"size"`
	// FSType is the type of the filesystem in the image; empty for a raw block volume.
	FSType string `json:"fsType"`
}

func (r snapshotRecord) handle(member int) string {
	if !r.Group {
		return r.Name
	}
	return r.Name + "/" + strconv.Itoa(member)
}

func (r snapshotRecord) snapshot(member int) volume.Snapshot {
	m := r.Members[member]
	s := volume.Snapshot{
		Handle: r.handle(member), SourceVolume: m.Source, CreationTime: r.Created, ReadyToUse: true, RestoreSize: m.Size,
	}
	if r.Group {
		s.GroupHandle = r.Name
	}
	return s
}

func (r snapshotRecord) groupSnapshot() volume.GroupSnapshot {
	group := volume.GroupSnapshot{Handle: r.Name, CreationTime: r.Created, ReadyToUse: true}
	for i := range r.Members {
		group.Snapshots = append(group.Snapshots, r.snapshot(i))
	}
	return group
}

func (r snapshotRecord) imageName(member int) string { return snapshotImageName(r.Name, member, r.ID) }

func (r snapshotRecord) sources() []string {
	var handles []string
	for _, m := range r.Members {
		handles = append(handles, m.Source)
	}
	return handles
}

func snapshotImageName(name string, member int, id string) string {
	return name + "." + strconv.Itoa(member) + "." + id + snapshotImageSuffix
}

// ownerOfImage returns the snapshot to which an image belongs, by the image's name.
func ownerOfImage(name string) (snapshot string, ok bool) {
	rest, ok := strings.CutSuffix(name, snapshotImageSuffix)
	for range 2 { // the id and the number
		at := strings.LastIndexByte(rest, '.')
		if !ok || at < 0 {
			return "", false
		}
		rest = rest[:at]
	}
	return rest, true
}

// checkSnapshotName refuses a name with which the longest file name of a snapshot would not be one path element.
func checkSnapshotName(name string) error {
	if err := volume.CheckPathElement(name); err != nil {
		return err
	}
	return volume.CheckPathElement(snapshotImageName(name, 9999, strings.Repeat("x", 26)))
}

// readRecord returns the record of a name. If there is none, the error matches fs.ErrNotExist.
func readRecord(dir *image.Dir, name string) (snapshotRecord, error) {
	file, err := dir.Open(name+recordSuffix, os.O_RDONLY)
	if err != nil {
		return snapshotRecord{}, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, mostRecord))
	var record snapshotRecord
	if err == nil {
		err = json.Unmarshal(data, &record)
	}
	if err == nil {
		err = record.check(name)
	}
	if err != nil {
		return snapshotRecord{}, fmt.Errorf("record %q of a snapshot: %w", file.Name(), err)
	}
	return record, nil
}

// check refuses a record of another name or of another version.
func (r snapshotRecord) check(name string) error {
	switch {
	case r.Version != snapshotVersion:
		return fmt.Errorf("version %d is not known: use the program that has made it: %w", r.Version, volume.ErrInvalid)
	case r.Name != name || r.ID == "" || len(r.Members) == 0 || !r.Group && len(r.Members) != 1:
		return fmt.Errorf("it does not describe snapshot %q: restore it from a backup: %w", name, volume.ErrInvalid)
	}
	for _, m := range r.Members {
		if checkHandle(m.Source) != nil || m.Size <= 0 || m.FSType != noFilesystem && !slices.Contains(fsTypes(), m.FSType) {
			return fmt.Errorf("it does not describe snapshot %q: restore it from a backup: %w", name, volume.ErrInvalid)
		}
	}
	return nil
}

// write writes the incomplete record. The images that it names exist already.
func (r snapshotRecord) write(dir *image.Dir, file *os.File) error {
	if err := dir.Sync(); err != nil {
		return err
	}
	data, err := json.Marshal(r)
	if err == nil {
		_, err = file.Write(data)
	}
	if err == nil {
		err = file.Sync()
	}
	return err
}

// deleteLocked deletes a record, if check agrees to it, and then the images of its name. The caller has locked the name, so
// no other call makes images of it.
func deleteLocked(dir *image.Dir, name string, check func(snapshotRecord) error) error {
	record, err := readRecord(dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		return deleteImages(dir, name)
	}
	if err == nil {
		err = check(record)
	}
	if err != nil {
		return err
	}
	if err := removeName(dir, name+recordSuffix); err != nil {
		return err
	}
	return deleteImages(dir, name)
}

// deleteImages deletes the images of a name that has no record: those of a snapshot that was deleted, and of killed calls. The
// caller has locked the name.
func deleteImages(dir *image.Dir, name string) error {
	names, err := dir.Names()
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range names {
		if owner, ok := ownerOfImage(n); ok && owner == name {
			errs = append(errs, removeName(dir, n))
		}
	}
	return errors.Join(errs...)
}

func removeName(dir *image.Dir, name string) error {
	file, err := dir.Open(name, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	return dir.Remove(name, file)
}

// classifySnapshot is classify, and also classifies the errors of a freeze.
func classifySnapshot(err error) error {
	err = classify(err)
	switch {
	case errors.Is(err, freeze.ErrThawed) && !errors.Is(err, volume.ErrTransient):
		return volume.Transient(err)
	case errors.Is(err, freeze.ErrFrozen) && !errors.Is(err, volume.ErrInUse):
		return fmt.Errorf("%w (%w)", err, volume.ErrInUse)
	case errors.Is(err, freeze.ErrNoGuard) && !errors.Is(err, volume.ErrUnsupported):
		return fmt.Errorf("%w (%w)", err, volume.ErrUnsupported)
	}
	return err
}
