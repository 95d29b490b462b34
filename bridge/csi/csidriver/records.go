package csidriver

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	disk "github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/volume"
)

// records are files with the driver's calls by path, because a teardown gets only the path. A record exists from before
// its call until the call that undoes it has succeeded. Records are not synced: the mounts that they are about end with
// the boot, and a killed program leaves complete files, because each is renamed into place. After a power cut a record
// may have lost its content, and a removed record may exist again.
type records struct {
	dir string
	// boot is the kernel's id of this boot; empty if it is unknown.
	boot string
}

// record is the request for one path. It holds no secret.
type record struct {
	// Path is the staging or target path; it is checked when the record is read.
	Path string `json:"path"`
	// VolumeID is the driver's id of the volume.
	VolumeID string `json:"volumeID"`
	// Kind is the kind of the path.
	Kind kind `json:"kind"`
	// Boot is the boot in which the record was written; empty in records of earlier versions.
	Boot string `json:"boot,omitempty"`
	// Staging is the staging path of a published volume.
	Staging string `json:"staging,omitempty"`
	// PublishContext is the publish context of the volume.
	PublishContext map[string]string `json:"publishContext,omitempty"`
}

// kind is the kind of a path.
type kind string

const (
	staged    kind = "staged"
	published kind = "published"
)

const (
	recordSuffix    = ".json"
	temporaryPrefix = ".new-"
)

// tidy removes incomplete files of a program that was killed during a write. If another plugin with the same directory
// writes a record at that moment, its write fails before it has called the driver, and is retried.
func (r records) tidy() error {
	entries, err := os.ReadDir(r.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), temporaryPrefix) {
			continue
		}
		if e := os.Remove(filepath.Join(r.dir, entry.Name())); !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}

func (r records) file(path string) string {
	sum := sha256.Sum256([]byte(path))
	return filepath.Join(r.dir, hex.EncodeToString(sum[:])+recordSuffix)
}

// outlived reports whether a record is of an earlier boot: its mount has ended with that boot. What the driver itself has
// stored for the call may still exist.
func (r records) outlived(rec record) bool {
	return r.boot != "" && rec.Boot != "" && rec.Boot != r.boot
}

// write replaces the record of its path, and reports whether there was one. If the path has the record of another
// volume, of this boot, write keeps it and returns an error. If the record cannot be written, the error is transient: the
// caller has begun nothing, and an earlier record stays.
func (r records) write(rec record) (existed bool, err error) {
	old, existed, err := r.read(rec.Path)
	if err != nil {
		return existed, err
	}
	if existed && old.VolumeID != rec.VolumeID && r.outlived(old) {
		existed = false
	}
	if existed && old.VolumeID != rec.VolumeID {
		return true, fmt.Errorf("volume %q is on record at %q: tear it down first", old.VolumeID, rec.Path)
	}
	rec.Boot = r.boot
	text, err := json.Marshal(rec)
	if err != nil {
		return existed, err
	}
	err = os.MkdirAll(r.dir, 0o700)
	if err == nil {
		err = replaceFile(r.file(rec.Path), text)
	}
	if err != nil {
		err = fmt.Errorf("volume %q at %q: its record in %q cannot be written, and the driver is not called: %w",
			rec.VolumeID, rec.Path, r.dir, disk.WithAdvice(err))
	}
	return existed, volume.Transient(err)
}

func replaceFile(path string, content []byte) error {
	temporary, err := os.CreateTemp(filepath.Dir(path), temporaryPrefix+"*")
	if err != nil {
		return err
	}
	_, err = temporary.Write(content)
	err = errors.Join(err, temporary.Close())
	if err == nil {
		err = os.Rename(temporary.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temporary.Name()))
	}
	return nil
}

// read returns the record of a path, and false if there is none. A record that is unreadable, or about another path, is
// a transient error: the state of the path is then unknown.
func (r records) read(path string) (record, bool, error) {
	rec, err := readRecord(r.file(path))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNoContent) {
		return record{}, false, nil
	}
	if err == nil && rec.Path != path {
		err = fmt.Errorf("it is about %q", rec.Path)
	}
	if err != nil {
		return record{}, false, volume.Transient(fmt.Errorf("record of %q: %w", path, disk.WithAdvice(err)))
	}
	return rec, true, nil
}

// errNoContent says that a record has lost its content. Each record has its content when it is renamed into place, so
// only a power cut can take it: nothing of the record is mounted in this boot.
var errNoContent = errors.New("the record has no content")

func readRecord(file string) (record, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return record{}, err
	}
	if len(bytes.Trim(text, "\x00")) == 0 {
		return record{}, errNoContent
	}
	var rec record
	if err := json.Unmarshal(text, &rec); err != nil {
		return record{}, fmt.Errorf("%q: %w", file, err)
	}
	return rec, nil
}

// remove removes the record of a path. If it cannot, the error is uncertain: the record stays, and the next teardown of the
// path calls the driver again.
func (r records) remove(path string) error {
	err := os.Remove(r.file(path))
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return volume.Uncertain(fmt.Errorf("the volume at %q is gone, and its record cannot be removed: %w", path, disk.WithAdvice(err)))
}

// all returns every record for which keep is true.
func (r records) all(keep func(record) bool) ([]record, error) {
	entries, err := os.ReadDir(r.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []record
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), recordSuffix) {
			continue
		}
		rec, err := readRecord(filepath.Join(r.dir, entry.Name()))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNoContent) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if keep(rec) {
			all = append(all, rec)
		}
	}
	return all, nil
}
