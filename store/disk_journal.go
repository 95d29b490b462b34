package store

import (
	"errors"

	"github.com/volumekit/volumekit/internal/journal"
)

// diskJournal is the file that writes go to. It belongs to one goroutine.
type diskJournal struct {
	*journal.Journal

	name string
	base uint64 // it begins after this version
}

// roomStep is how much room is reserved at a time, so that few appends have to ask for it.
const roomStep = 1 << 20

func journalOptions(files journal.Files, name string) journal.Options {
	return journal.Options{Step: roomStep, Read: func() ([]byte, error) { return files.Read(name) }}
}

// createJournal makes the journal that goes on after a version, with room to keep, and its name durable.
func createJournal(files journal.Files, base uint64, keep int64) (*diskJournal, error) {
	name := journalName(base)
	f, err := files.Create(name)
	if err != nil {
		return nil, err
	}
	j := &diskJournal{Journal: journal.New(f, journalOptions(files, name)), name: name, base: base}
	head := headFrame(base)
	if err = j.MakeRoom(len(head), keep); err == nil {
		err = j.Append(head)
	}
	if err == nil {
		err = files.Sync()
	}
	if err != nil {
		// Should it stay, it is known by its having no writes.
		return nil, errors.Join(err, j.Close(), files.Unlink(name))
	}
	return j, nil
}
