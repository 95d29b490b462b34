package journal

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/volume"
)

// Disk opens the directories of records, and identifies the boot.
type Disk struct {
	// OpenDir opens and locks a directory.
	OpenDir func(path string, o record.Options) (Dir, error)
	// BootID returns the kernel's id of this boot.
	BootID func() (string, error)
}

// Dir is a directory of records; a [*record.Dir] is one.
type Dir interface {
	// Load returns all intact records, and the damaged ones.
	Load() ([]record.Record, []record.Damaged, error)
	// Put writes a record; Remove removes it.
	Put(key string, payload []byte) error
	Remove(key string) error
	// Quarantine moves a record aside that cannot be used.
	Quarantine(key string, reason error) record.Damaged
	// Close unlocks the directory.
	Close() error
}

// Open locks the directories of records. If another manager has locked one of them, the error matches [volume.ErrInUse]. On a
// platform that cannot keep records it matches [volume.ErrUnsupported].
func (j *Journal) Open() (err error) {
	j.bootID, err = j.Disk.BootID()
	if errors.Is(err, record.ErrUnsupported) {
		err = fmt.Errorf("%w: %w", err, volume.ErrUnsupported)
	}
	if err != nil {
		return fmt.Errorf("records cannot be kept (set NoRecords): %w", err)
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

// quarantine is a directory of records that lists what was moved aside; a [*record.Dir] is one.
type quarantine interface {
	Aside() ([]record.Damaged, error)
}

// Aside returns the records that were moved aside: before [Journal.Load], those of earlier starts.
func (j *Journal) Aside() (all []record.Damaged, err error) {
	for _, dir := range slices.Compact([]Dir{j.runtime, j.state}) {
		q, ok := dir.(quarantine)
		if !ok {
			continue
		}
		aside, asideErr := q.Aside()
		all, err = append(all, aside...), errors.Join(err, asideErr)
	}
	return all, err
}

// Close retries the writes that have failed, and then unlocks the directories. The records stay.
func (j *Journal) Close(ctx context.Context) error {
	j.CatchUp(ctx)
	err := j.runtime.Close()
	if j.state != j.runtime {
		err = errors.Join(err, j.state.Close())
	}
	return err
}

// knownMark marks a directory of records as complete: it has a record of everything that is on the node. A new directory
// lacks the mark, for example after a loss of the records or, in a tmpfs, after a reboot. It gets the mark when everything
// on the node has been found.
const knownMark = "known"

// marker is a directory of records that can be marked; a [*record.Dir] is one.
type marker interface {
	Mark(name string) error
	IsMarked(name string) bool
}

// HasMarks reports whether the directory of mount records can be marked as complete.
func (j *Journal) HasMarks() bool {
	_, ok := j.runtime.(marker)
	return ok
}

// IsComplete reports whether the records are complete. A directory that cannot be marked counts as complete.
func (j *Journal) IsComplete() bool {
	marks, ok := j.runtime.(marker)
	return !ok || marks.IsMarked(knownMark)
}

// MarkComplete marks the records as complete.
func (j *Journal) MarkComplete() error {
	marks, ok := j.runtime.(marker)
	if !ok || marks.IsMarked(knownMark) {
		return nil
	}
	return marks.Mark(knownMark)
}
