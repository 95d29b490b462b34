package record

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/volumekit/volumekit/internal/journal"
)

// files are the files of a directory: the log, files of earlier versions, and files that were moved aside. It keeps nothing in memory.
type files struct {
	path    string
	disk    disk
	durable bool // [Options].Sync
}

// makeFile makes a file with the content, and overwrites an existing one. The content is durable, the name is not yet.
func (f files) makeFile(name string, content []byte) error {
	file, err := f.disk.Create(name)
	if err != nil {
		return err
	}
	if len(content) > 0 {
		_, err = file.WriteAt(content, 0)
	}
	if err == nil && f.durable {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

func (f files) exists(name string) bool {
	_, err := f.disk.stat(name)
	return err == nil
}

// sync makes the names in the directory durable, if [Options].Sync is set.
func (f files) sync() error {
	if !f.durable {
		return nil
	}
	return f.disk.Sync()
}

// list returns the names of the files of earlier versions, and whether there is a log. It removes incomplete files that a crash left.
func (f files) list() (old []string, log bool, err error) {
	names, err := f.disk.Names()
	if err != nil {
		return nil, false, err
	}
	for _, name := range names {
		switch {
		case name == logName:
			log = true
		case strings.HasPrefix(name, tempPrefix):
			_ = f.discard(name) // If it cannot be removed, it does no harm.
		case strings.HasSuffix(name, suffix) && name != newerMark:
			old = append(old, name)
		}
	}
	slices.Sort(old)
	return old, log, nil
}

// readFile reads one file. It follows no link, and reads at most the largest size of a record.
func (f files) readFile(name string) (Record, error) {
	content, err := f.disk.readRecord(name)
	if err != nil {
		return Record{}, err
	}
	key, payload, err := decode(content)
	if err != nil {
		return Record{}, err
	}
	if fileName(key) != name {
		return Record{}, fmt.Errorf("%w: it is the record of %q under another name", errDamaged, key)
	}
	return Record{Key: key, Payload: payload}, nil
}

// discard removes a file that may be missing.
func (f files) discard(name string) error {
	if err := f.disk.Unlink(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// aside returns an unused name in the quarantine.
func (f files) aside(name string) (string, error) {
	if err := f.disk.mkdir(quarantineDir); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	target := filepath.Join(quarantineDir, name)
	for i := 1; f.exists(target); i++ {
		target = filepath.Join(quarantineDir, fmt.Sprintf("%s.%d", name, i))
	}
	return target, nil
}

// moveAside moves a file into the quarantine, and returns its path there.
func (f files) moveAside(name string) (string, error) {
	target, err := f.aside(name)
	if err == nil {
		err = errors.Join(f.disk.Rename(name, target), f.sync())
	}
	return filepath.Join(f.path, target), err
}

// linkAside gives a file a second name in the quarantine, and returns its path there.
func (f files) linkAside(name string) (string, error) {
	target, err := f.aside(name)
	if err == nil {
		err = errors.Join(f.disk.Link(name, target), f.sync())
	}
	return filepath.Join(f.path, target), err
}

func (f files) logOptions() journal.Options {
	return journal.Options{Step: roomStep, Read: func() ([]byte, error) { return f.disk.Read(logName) }}
}

// asSynced returns file, or a file that is never synced if [Options].Sync is not set.
func (f files) asSynced(file journal.File) journal.File {
	if f.durable {
		return file
	}
	return unsynced{file}
}

// unsynced is a file that is not synced.
type unsynced struct{ journal.File }

// Sync implements [journal.File].
func (unsynced) Sync() error { return nil }
