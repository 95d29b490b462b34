package store

import (
	"errors"
	"fmt"
)

// journal is the file that writes go to. It belongs to one goroutine.
type journal struct {
	name string
	base uint64 // it begins after this version
	file diskFile
	size int64 // of what is durable
	// torn says that something may be beyond size, which has to be cut off before anything is written.
	torn bool
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

// append makes a line durable. After an error it is not there; when not even that is certain, the next append sees to it.
func (j *journal) append(line []byte) error {
	if err := j.mend(); err != nil {
		return err
	}
	j.torn = true
	_, err := j.file.WriteAt(line, j.size)
	if err == nil {
		err = j.file.Sync()
	}
	if err != nil {
		return errors.Join(err, j.mend())
	}
	j.torn = false
	j.size += int64(len(line))
	return nil
}

// mend cuts off what an append has left that failed.
func (j *journal) mend() error {
	if !j.torn {
		return nil
	}
	if err := j.cut(); err != nil {
		return err
	}
	if err := j.file.Sync(); err != nil {
		return fmt.Errorf("cutting off what was not written whole: %w", err)
	}
	j.torn = false
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
	j := &journal{name: journalName(base), base: base}
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
