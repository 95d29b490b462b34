package store

import (
	"errors"
	"fmt"
	"hash/crc32"
)

// journal is the file that writes go to. It belongs to one goroutine.
type journal struct {
	files diskFiles
	name  string
	base  uint64 // it begins after this version
	file  diskFile
	size  int64  // of what was acknowledged
	sum   uint32 // its checksum
	// torn says that something may be beyond size, which has to be cut off before anything is written.
	torn bool
	// unsynced says that nothing proves that the file is on the disk: it was read, or a sync of it has failed. The kernel may
	// have dropped what it could not write, and reports that once. Everything is written again before more is acknowledged.
	unsynced bool
	// reserved is up to where the file has room, whatever else fills the disk.
	reserved int64
}

// roomStep is how much room is reserved at a time, so that few appends have to ask for it.
const roomStep = 1 << 20

// makeRoom sees to it that an append of so many bytes, and as many more after it as are to be kept, have room on the disk. A
// disk that is full is found out here, before anything is written.
func (j *journal) makeRoom(bytes int, keep int64) error {
	want := j.size + int64(bytes) + keep
	if want <= j.reserved {
		return nil
	}
	from := max(j.reserved, j.size)
	for _, to := range []int64{want + roomStep, want} {
		err := j.file.Reserve(from, to)
		if err == nil {
			j.reserved = to
			return nil
		}
		if !isFull(err) || to == want {
			return err
		}
	}
	return nil
}

// append makes a line durable. After an error it is not there; while [journal.torn] is set not even that is certain, and the next
// append mends the journal first.
func (j *journal) append(line []byte) error {
	if err := j.mend(); err != nil {
		return err
	}
	j.torn = true
	_, err := j.file.WriteAt(line, j.size)
	if err == nil {
		err = j.sync()
	}
	if err != nil {
		return errors.Join(err, j.mend())
	}
	j.torn = false
	j.size += int64(len(line))
	j.sum = crc32.Update(j.sum, castagnoli, line)
	return nil
}

// sync notes a failure: a later sync that succeeds does not prove that what this one failed to write is on the disk.
func (j *journal) sync() error {
	err := j.file.Sync()
	j.unsynced = j.unsynced || err != nil
	return err
}

// mend cuts off what a failed append has left.
func (j *journal) mend() error {
	if !j.torn && !j.unsynced {
		return nil
	}
	if j.unsynced {
		return j.renew()
	}
	if err := j.cut(); err != nil {
		return err
	}
	if err := j.sync(); err != nil {
		return fmt.Errorf("cutting off what was not written whole: %w", err)
	}
	j.torn = false
	return nil
}

// renew reads what was acknowledged and writes it again.
func (j *journal) renew() error {
	content, err := j.files.read(j.name)
	if err != nil {
		return fmt.Errorf("reading the journal, to write it again after a failed sync: %w", err)
	}
	if int64(len(content)) < j.size || crc32.Checksum(content[:j.size], castagnoli) != j.sum {
		return fmt.Errorf("%w: %s is not what was written to it any more, after a failed sync: open the store again", ErrDamaged, j.name)
	}
	return j.rewrite(content[:j.size])
}

// rewrite writes the journal's content over itself, and syncs it. That needs no room, and a crash between leaves of each block what
// was on the disk or what is written now.
func (j *journal) rewrite(content []byte) error {
	if err := j.cut(); err != nil {
		return err
	}
	_, err := j.file.WriteAt(content, 0)
	if err == nil {
		err = j.file.Sync()
	}
	if err != nil {
		return fmt.Errorf("writing the journal again: %w", err)
	}
	j.torn, j.unsynced = false, false
	return nil
}

// cut cuts off what is beyond size, with the room that is reserved there.
func (j *journal) cut() error {
	if err := j.file.Truncate(j.size); err != nil {
		return fmt.Errorf("cutting off what was not written whole: %w", err)
	}
	j.reserved = j.size
	return nil
}

// createJournal makes the journal that goes on after a version, with room to keep, and its name durable.
func createJournal(files diskFiles, base uint64, keep int64) (*journal, error) {
	j := &journal{files: files, name: journalName(base), base: base}
	var err error
	if j.file, err = files.create(j.name); err != nil {
		return nil, err
	}
	head := headFrame(base)
	if err = j.makeRoom(len(head), keep); err == nil {
		err = j.append(head)
	}
	if err == nil {
		err = files.sync()
	}
	if err != nil {
		// Should it stay, it is known by its having no writes.
		return nil, errors.Join(err, j.file.Close(), files.unlink(j.name))
	}
	return j, nil
}
