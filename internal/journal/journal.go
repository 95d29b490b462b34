package journal

import (
	"errors"
	"fmt"
	"hash/crc32"
)

// ErrChanged says that a file is not any more what was written to it.
var ErrChanged = errors.New("the file has changed")

// Journal is a file that is appended to.
type Journal struct {
	file File
	read func() ([]byte, error)
	step int64

	size int64  // of what was acknowledged
	sum  uint32 // its checksum
	// torn says that something may be beyond size, which has to be cut off before anything is written.
	torn bool
	// unsynced says that nothing proves that the file is on the disk: it was read, or a sync of it has failed. The kernel may
	// have dropped what it could not write, and reports that once. Everything is written again before more is acknowledged.
	unsynced bool
	// reserved is up to where the file has room, whatever else fills the disk.
	reserved int64
}

// Options are the options of [New].
type Options struct {
	// Read returns what is in the file.
	Read func() ([]byte, error)
	// Step is how much room is reserved at a time, so that few appends have to ask for it.
	Step int64
}

// New returns the journal of a file that is empty.
func New(f File, o Options) *Journal { return &Journal{file: f, read: o.Read, step: o.Step} }

// Continue returns the journal of a file with that many bytes, of which content counts. The rest is cut off before more is
// written.
func Continue(f File, content []byte, length int64, o Options) *Journal {
	j := New(f, o)
	j.size, j.sum, j.torn = int64(len(content)), Checksum(content), length > int64(len(content))
	return j
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli) // A constant, but for the language.

// Checksum returns the checksum of content, in one part or several, as [Journal.Sum] does.
func Checksum(content ...[]byte) (sum uint32) {
	for _, part := range content {
		sum = crc32.Update(sum, castagnoli, part)
	}
	return sum
}

// Size returns how many bytes were acknowledged.
func (j *Journal) Size() int64 { return j.size }

// Sum returns the checksum of what was acknowledged.
func (j *Journal) Sum() uint32 { return j.sum }

// Reserved returns up to where the file has room, whatever else fills the disk.
func (j *Journal) Reserved() int64 { return j.reserved }

// IsBroken reports whether a failure has left something that is not mended yet. Not even the absence of a write that has
// failed is certain then.
func (j *Journal) IsBroken() bool { return j.torn || j.unsynced }

// MakeRoom sees to it that an append of so many bytes, and as many more after it as are to be kept, have room on the disk. A
// disk that is full is found out here, before anything is written.
func (j *Journal) MakeRoom(bytes int, keep int64) error {
	want := j.size + int64(bytes) + keep
	if want <= j.reserved {
		return nil
	}
	from := max(j.reserved, j.size)
	for _, to := range []int64{want + j.step, want} {
		err := j.file.Reserve(from, to)
		if err == nil {
			j.reserved = to
			return nil
		}
		if !IsFull(err) || to == want {
			return err
		}
	}
	return nil
}

// Append makes data durable. After an error it is not there; while [Journal.IsBroken] not even that is certain, and the next
// append mends the journal first.
func (j *Journal) Append(data []byte) error {
	if err := j.Mend(); err != nil {
		return err
	}
	j.torn = true
	_, err := j.file.WriteAt(data, j.size)
	if err == nil {
		err = j.sync()
	}
	if err != nil {
		return errors.Join(err, j.Mend())
	}
	j.torn = false
	j.size += int64(len(data))
	j.sum = crc32.Update(j.sum, castagnoli, data)
	return nil
}

// sync notes a failure: a later sync that succeeds does not prove that what this one failed to write is on the disk.
func (j *Journal) sync() error {
	err := j.file.Sync()
	j.unsynced = j.unsynced || err != nil
	return err
}

// Mend cuts off what a failed append has left.
func (j *Journal) Mend() error {
	if !j.torn && !j.unsynced {
		return nil
	}
	if j.unsynced {
		return j.renew()
	}
	if err := j.Cut(); err != nil {
		return err
	}
	if err := j.sync(); err != nil {
		return fmt.Errorf("cutting off what was not written whole: %w", err)
	}
	j.torn = false
	return nil
}

// renew reads what was acknowledged and writes it again.
func (j *Journal) renew() error {
	content, err := j.read()
	if err != nil {
		return fmt.Errorf("reading the file, to write it again after a failed sync: %w", err)
	}
	if int64(len(content)) < j.size || Checksum(content[:j.size]) != j.sum {
		return fmt.Errorf("%w after a failed sync: what was written cannot be written again", ErrChanged)
	}
	return j.Rewrite(content[:j.size])
}

// Rewrite writes the journal's content over itself, and syncs it. That needs no room, and a crash between leaves of each block what
// was on the disk or what is written now.
func (j *Journal) Rewrite(content []byte) error {
	if err := j.Cut(); err != nil {
		return err
	}
	_, err := j.file.WriteAt(content, 0)
	if err == nil {
		err = j.file.Sync()
	}
	if err != nil {
		return fmt.Errorf("writing the file again: %w", err)
	}
	j.torn, j.unsynced = false, false
	return nil
}

// Cut cuts off what was not acknowledged, with the room that is reserved there.
func (j *Journal) Cut() error {
	if err := j.file.Truncate(j.size); err != nil {
		return fmt.Errorf("cutting off what was not written whole: %w", err)
	}
	j.reserved = j.size
	return nil
}

// Close closes the file.
func (j *Journal) Close() error { return j.file.Close() }
