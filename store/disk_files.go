package store

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/volumekit/volumekit/internal/journal"
)

// The names of files.
const (
	journalPrefix  = "journal-"
	snapshotPrefix = "snapshot-"
	unfinished     = "unfinished"
	closedName     = "closed"
	damagedPrefix  = "damaged-"
)

func journalName(base uint64) string  { return fmt.Sprintf("%s%020d", journalPrefix, base) }
func snapshotName(base uint64) string { return fmt.Sprintf("%s%020d", snapshotPrefix, base) }

// writeSnapshot makes a snapshot of objects durable, by way of another name, and returns its size. It sorts them.
func writeSnapshot(files journal.Files, base uint64, objects []Object) (int64, error) {
	sortObjects(objects)
	f, err := files.Create(unfinished)
	if err != nil {
		return 0, err
	}
	size, err := writeObjects(f, base, objects)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = files.Rename(unfinished, snapshotName(base))
	}
	if err != nil {
		_ = files.Unlink(unfinished) // It may be what fills the disk. The next one empties it.
		return 0, fmt.Errorf("snapshot: %w", err)
	}
	return size, files.Sync()
}

// writeClosed makes the mark of a clean close durable, or leaves none that can be read.
func writeClosed(files journal.Files, mark closedFrame) error {
	line, err := mark.line()
	if err != nil {
		return err
	}
	f, err := files.Create(closedName)
	if err != nil {
		return err
	}
	if _, err = f.WriteAt(line, 0); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = files.Sync()
	}
	if err != nil {
		return errors.Join(err, files.Unlink(closedName))
	}
	return nil
}

// snapshotFrame is how many objects are in one frame of a snapshot, snapshotChunk how many bytes are written at a time.
const (
	snapshotFrame = 64
	snapshotChunk = 1 << 20
)

func writeObjects(f journal.File, base uint64, objects []Object) (int64, error) {
	at, buffer := int64(0), headFrame(base)
	flush := func() error {
		n, err := f.WriteAt(buffer, at)
		at, buffer = at+int64(n), buffer[:0]
		return err
	}
	var payload framePayload
	for i, obj := range objects {
		version, encoded, err := encodeObject(obj)
		if err != nil {
			return at, err
		}
		payload.add(version, Added, encoded)
		if i%snapshotFrame == snapshotFrame-1 {
			buffer = append(buffer, payload.line()...)
			payload = framePayload{}
		}
		if len(buffer) < snapshotChunk {
			continue
		}
		if err := flush(); err != nil {
			return at, err
		}
	}
	buffer = append(append(buffer, payload.line()...), endFrame(len(objects))...)
	return at, flush()
}

// absolute checks the path of a directory.
func absolute(path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("%q is no absolute path: %w", path, ErrInvalid)
	}
	return nil
}
