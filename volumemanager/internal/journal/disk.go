package journal

import (
	"context"
	"errors"
	"fmt"

	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/volume"
)

// Disk is what a journal finds when it is opened: directories of records, and the boot in which it runs.
type Disk struct {
	// OpenDir opens and locks a directory.
	OpenDir func(path string, o record.Options) (Dir, error)
	// BootID returns what the kernel calls this boot.
	BootID func() (string, error)
}

// Dir is a directory of records; a [*record.Dir] is one.
type Dir interface {
	// Load returns all records, and those that are damaged.
	Load() ([]record.Record, []record.Damaged, error)
	// Put writes a record, Remove removes it.
	Put(key string, payload []byte) error
	Remove(key string) error
	// Quarantine moves a record aside that cannot be used.
	Quarantine(key string, reason error) record.Damaged
	// Close unlocks the directory.
	Close() error
}

// Open locks the directories. One that another manager has locked is an error that matches [volume.ErrInUse].
func (j *Journal) Open() (err error) {
	if j.bootID, err = j.Disk.BootID(); err != nil {
		return err
	}
	if j.runtime, err = j.Disk.OpenDir(j.options.RuntimeDir, record.Options{}); err != nil {
		return err
	}
	j.state = j.runtime
	if j.options.StateDir != "" {
		if j.state, err = j.Disk.OpenDir(j.options.StateDir, record.Options{Sync: true}); err != nil {
			return errors.Join(err, j.runtime.Close())
		}
	}
	return nil
}

// OpenDir opens a directory of records on the disk.
func OpenDir(path string, o record.Options) (Dir, error) {
	dir, err := record.Open(path, o)
	switch {
	case errors.Is(err, record.ErrLocked):
		return nil, fmt.Errorf("%w: %w", err, volume.ErrInUse)
	case errors.Is(err, record.ErrUnsafe):
		return nil, fmt.Errorf("%w: %w", err, volume.ErrInvalid)
	case err != nil:
		return nil, err
	}
	return dir, nil
}

// Close unlocks the directories, once it has tried again to write what could not be written before. The records stay.
func (j *Journal) Close(ctx context.Context) error {
	j.CatchUp(ctx)
	err := j.runtime.Close()
	if j.state != j.runtime {
		err = errors.Join(err, j.state.Close())
	}
	return err
}

// knownMark marks a directory of records that says all there is. It is missing from a new one, as after the loss of the
// records or, in a tmpfs, after a reboot, until what is on the disk has been looked at.
const knownMark = "known"

// marker is what a directory of records can be marked with; a [*record.Dir] is one.
type marker interface {
	Mark(name string) error
	IsMarked(name string) bool
}

// HasMarks reports whether the directory of mounts can be marked as one that says all there is.
func (j *Journal) HasMarks() bool {
	_, ok := j.runtime.(marker)
	return ok
}

// IsComplete reports whether the records say all there is. A directory that cannot be marked does.
func (j *Journal) IsComplete() bool {
	marks, ok := j.runtime.(marker)
	return !ok || marks.IsMarked(knownMark)
}

// MarkComplete marks the records as saying all there is.
func (j *Journal) MarkComplete() error {
	marks, ok := j.runtime.(marker)
	if !ok || marks.IsMarked(knownMark) {
		return nil
	}
	return marks.Mark(knownMark)
}
