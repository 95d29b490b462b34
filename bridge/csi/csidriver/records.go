package csidriver

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// records are files that say what was asked of the driver at a path, since a teardown is given the path alone. One is there before
// the call that it is about, and until the call that undoes it has succeeded. They are not synced: what they are about does not
// outlive a boot, while a killed program leaves them whole, as they are put in place by a rename.
type records struct{ dir string }

// record is what was asked for at one path. It holds no secret.
type record struct {
	// Path is where the volume is staged or published; it is checked when the record is read.
	Path string `json:"path"`
	// VolumeID is the driver's id of the volume.
	VolumeID string `json:"volumeID"`
	// Kind is what is there.
	Kind kind `json:"kind"`
	// Staging is where the volume was staged from which a pod has it.
	Staging string `json:"staging,omitempty"`
	// PublishContext is what the driver returned when the volume was attached.
	PublishContext map[string]string `json:"publishContext,omitempty"`
}

// kind is what a path is.
type kind string

const (
	staged    kind = "staged"
	published kind = "published"
)

const (
	recordSuffix    = ".json"
	temporaryPrefix = ".new-"
)

// tidy removes what a program has left that was killed while it wrote a record. Another plugin of the directory whose record is being
// written fails then, before it has called the driver, and tries again.
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

// write puts a record in the place of the one for its path, and reports whether there was one. One of another volume stays and is
// an error.
func (r records) write(rec record) (existed bool, err error) {
	old, existed, err := r.read(rec.Path)
	if err != nil {
		return existed, err
	}
	if existed && old.VolumeID != rec.VolumeID {
		return true, fmt.Errorf("volume %q is on record at %q: take it away first", old.VolumeID, rec.Path)
	}
	text, err := json.Marshal(rec)
	if err != nil {
		return existed, err
	}
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return existed, err
	}
	return existed, replaceFile(r.file(rec.Path), text)
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

// read returns the record for a path, and false when there is none. One that cannot be read, or is about another path, is an error: it
// is not known then what is there.
func (r records) read(path string) (record, bool, error) {
	rec, err := readRecord(r.file(path))
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, false, nil
	}
	if err == nil && rec.Path != path {
		err = fmt.Errorf("it is about %q", rec.Path)
	}
	if err != nil {
		return record{}, false, fmt.Errorf("record of %q: %w", path, err)
	}
	return rec, true, nil
}

func readRecord(file string) (record, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return record{}, err
	}
	var rec record
	if err := json.Unmarshal(text, &rec); err != nil {
		return record{}, fmt.Errorf("%q: %w", file, err)
	}
	return rec, nil
}

// remove forgets a path.
func (r records) remove(path string) error {
	err := os.Remove(r.file(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
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
		if errors.Is(err, fs.ErrNotExist) {
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
