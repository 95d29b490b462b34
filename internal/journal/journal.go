package journal

import (
	"errors"
	"fmt"
	"hash/crc32"
)

// ErrChanged says that the content of the file is not what the journal has written.
var ErrChanged = errors.New("the file has changed")

// Journal appends to a file.
type Journal struct {
	file File
	read func() ([]byte, error)
	step int64

	size int64  // the length of the acknowledged data
	sum  uint32 // the checksum of the acknowledged data
	// torn says that the file may have bytes beyond size. The journal cuts them off before it writes.
	torn bool
	// unsynced says that the acknowledged data may be missing on the disk, because a sync has failed. The kernel may have
	// dropped the data, and reports that only once. The journal writes all of it again before it acknowledges more.
	unsynced bool
	// reserved is the offset up to which the file has reserved space on the disk.
	reserved int64
}

// Options are the options of [New].
type Options struct {
	// Read returns the content of the file.
	Read func() ([]byte, error)
	// Step is the number of bytes that [Journal.MakeRoom] reserves beyond what it needs: most appends then reserve nothing.
	Step int64
}

// New returns the journal of an empty file.
func New(f File, o Options) *Journal { return &Journal{file: f, read: o.Read, step: o.Step} }

// Continue returns the journal of a file of the given length that begins with content. The journal cuts off the rest before it
// writes.
func Continue(f File, content []byte, length int64, o Options) *Journal {
	j := New(f, o)
	j.size, j.sum, j.torn = int64(len(content)), Checksum(content), length > int64(len(content))
	return j
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum returns the checksum of the parts of content, one after the other. [Journal.Sum] returns the same for the same data.
func Checksum(content ...[]byte) (sum uint32) {
	for _, part := range content {
		sum = crc32.Update(sum, castagnoli, part)
	}
	return sum
}

// Size returns the number of acknowledged bytes.
func (j *Journal) Size() int64 { return j.size }

// Sum returns the checksum of the acknowledged data.
func (j *Journal) Sum() uint32 { return j.sum }

// Reserved returns the offset up to which the file has reserved space on the disk.
func (j *Journal) Reserved() int64 { return j.reserved }

// IsBroken reports whether the journal has not yet repaired what a failure left. Until then, data of a failed append may be
// in the file.
func (j *Journal) IsBroken() bool { return j.torn || j.unsynced }

// MakeRoom reserves space on the disk for an append of that many bytes, and for keep bytes after it. If the disk is full, it
// returns the error before anything is written.
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

// Append writes data durably. After an error, data is not in the file, unless [Journal.IsBroken] returns true: then it may be
// there, until the next Append has repaired the file.
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

// sync syncs the file and records a failure: a later sync that succeeds does not prove that the data of this one is on the disk.
func (j *Journal) sync() error {
	err := j.file.Sync()
	j.unsynced = j.unsynced || err != nil
	return err
}

// Mend repairs the file after a failure: it cuts off what a failed append has left, and writes everything again after a failed sync.
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

// renew reads the acknowledged data and writes it again.
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

// Rewrite writes the acknowledged data again, in its place, and syncs the file. It needs no space on the disk. After a crash, each
// block has the old data or the new.
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

// Cut truncates the file after the acknowledged data. That releases the reserved space, too.
func (j *Journal) Cut() error {
	if err := j.file.Truncate(j.size); err != nil {
		return fmt.Errorf("cutting off what was not written whole: %w", err)
	}
	j.reserved = j.size
	return nil
}

// Close closes the file.
func (j *Journal) Close() error { return j.file.Close() }
