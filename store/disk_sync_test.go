package store

import (
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/internal/journal/modeldisk"
)

// noSync has every sync of a file fail, and every attempt to cut something off.
func noSync(step modeldisk.Step) error {
	if step.Call == "sync file" || step.Call == "truncate" {
		return syscall.EIO
	}
	return nil
}

// TestDiskWritesAgainWhatASyncLost has the kernel give up what a sync could not write. It can be read, by the next program too, and a
// later sync says nothing of it: what that program reads and acknowledges outlives a power cut all the same.
func TestDiskWritesAgainWhatASyncLost(t *testing.T) {
	disk := modeldisk.New(nil)
	first, err := openFiles(disk, modelOptions())
	require.NoError(t, err)
	_, err = first.Create(t.Context(), modelVolume("old"))
	require.NoError(t, err)
	disk.Fails = noSync
	_, err = first.Create(t.Context(), modelVolume("lost"))
	require.ErrorIs(t, err, syscall.EIO)
	require.ErrorIs(t, err, ErrUnsynced)
	disk.Fails = nil

	second, err := openFiles(disk, modelOptions()) // The first was killed.
	require.NoError(t, err)
	requireOutlivesPowerCut(t, disk, second)
	_, err = second.Create(t.Context(), modelVolume("new"))
	require.NoError(t, err)
	requireOutlivesPowerCut(t, disk, second)
}

// requireOutlivesPowerCut cuts the power and compares what is found with what the store tells.
func requireOutlivesPowerCut(t *testing.T, disk *modeldisk.Disk, s *Disk) {
	t.Helper()
	s.committers.Wait()
	for contents := range modeldisk.CutPower(disk.Steps) {
		again, err := openFiles(modeldisk.New(contents), modelOptions())
		require.NoError(t, err)
		require.Equal(t, dump(s), dump(again))
	}
}

// TestDiskAcknowledgesNothingOnAFailedSync: after a sync that failed nothing is acknowledged before the whole journal was written
// again, and synced.
func TestDiskAcknowledgesNothingOnAFailedSync(t *testing.T) {
	disk := modeldisk.New(nil)
	s, err := openFiles(disk, modelOptions())
	require.NoError(t, err)
	_, err = s.Create(t.Context(), modelVolume("old"))
	require.NoError(t, err)
	told := dump(s)
	disk.Fails = noSync
	for _, name := range []string{"first", "second"} {
		_, err = s.Create(t.Context(), modelVolume(name))
		require.ErrorIs(t, err, ErrUnsynced)
		require.Equal(t, told, dump(s))
	}
	disk.Fails = nil
	before := disk.Made()
	_, err = s.Create(t.Context(), modelVolume("third"))
	require.NoError(t, err)
	assert.True(t, rewrote(disk, disk.Steps[before:]), "the head of the journal was written again")
	requireOutlivesPowerCut(t, disk, s)
	require.NoError(t, s.Close())
}

// rewrote reports whether steps write the newest journal from its beginning.
func rewrote(disk *modeldisk.Disk, steps []modeldisk.Step) bool {
	for _, step := range steps {
		if step.Call == "write" && step.At == 0 && step.File == disk.Named(journalName(0)) && len(step.Data) > len(headFrame(0)) {
			return true
		}
	}
	return false
}

// TestDiskStaysUnsyncedWhenItsJournalChanged: what was acknowledged cannot be read back, so that nothing is written again.
func TestDiskStaysUnsyncedWhenItsJournalChanged(t *testing.T) {
	disk := modeldisk.New(nil)
	s, err := openFiles(disk, modelOptions())
	require.NoError(t, err)
	_, err = s.Create(t.Context(), modelVolume("old"))
	require.NoError(t, err)
	disk.Fails = noSync
	_, err = s.Create(t.Context(), modelVolume("lost"))
	require.ErrorIs(t, err, ErrUnsynced)
	disk.Fails = nil
	disk.Files[journalName(0)].Content[60] ^= 1 // The page was read from the disk again.
	_, err = s.Create(t.Context(), modelVolume("new"))
	require.ErrorIs(t, err, ErrUnsynced)
	require.ErrorIs(t, err, ErrDamaged)
	require.ErrorIs(t, s.Close(), ErrDamaged)
	assert.NotContains(t, disk.Files, closedName, "no file says that it was closed")
}

// TestDiskBelievesACleanClose: after a clean close nothing is written again, and after anything else all of the journal is.
func TestDiskBelievesACleanClose(t *testing.T) {
	disk := modeldisk.New(nil)
	s, err := openFiles(disk, modelOptions())
	require.NoError(t, err)
	_, err = s.Create(t.Context(), modelVolume("old"))
	require.NoError(t, err)
	require.NoError(t, s.Close())

	before := disk.Made()
	second, err := openFiles(disk, modelOptions())
	require.NoError(t, err)
	assert.False(t, rewrote(disk, disk.Steps[before:]), "it was closed")
	before = disk.Made()
	third, err := openFiles(disk, modelOptions()) // The second was killed.
	require.NoError(t, err)
	assert.True(t, rewrote(disk, disk.Steps[before:]), "it was not closed")
	assert.Equal(t, dump(second), dump(third))
}

// TestDiskTellsATornEndFromDamage changes the last frame of a journal: after a kill it may be a write that was broken off, after a
// close it is damage, and so is an end that is missing.
func TestDiskTellsATornEndFromDamage(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(content []byte) []byte
	}{
		{"a bit in the last frame", func(content []byte) []byte {
			content[len(content)-10] ^= 1
			return content
		}},
		{"half of the last frame", func(content []byte) []byte { return content[:len(content)-20] }},
		{"no last frame", func(content []byte) []byte {
			return content[:strings.LastIndexByte(string(content[:len(content)-1]), '\n')+1]
		}},
		{"nothing but the head", func([]byte) []byte { return headFrame(0) }},
		{"nothing", func([]byte) []byte { return nil }},
	} {
		t.Run(test.name, func(t *testing.T) {
			disk := modeldisk.New(nil)
			s, err := openFiles(disk, DiskOptions{})
			require.NoError(t, err)
			for _, name := range []string{"a", "b"} {
				_, err := s.Create(t.Context(), modelVolume(name))
				require.NoError(t, err)
			}
			require.NoError(t, s.Close())
			journal := disk.Files[journalName(0)]
			journal.Content = test.change(journal.Content)
			closed := disk.Contents()

			before := disk.Made()
			_, err = openFiles(disk, DiskOptions{})
			require.ErrorIs(t, err, ErrDamaged)
			var damaged *DamageError
			require.ErrorAs(t, err, &damaged)
			require.Equal(t, journalName(0), damaged.Damage[0].File)
			require.Equal(t, before, disk.Made(), "nothing was changed")

			delete(closed, closedName)
			_, err = openFiles(modeldisk.New(closed), DiskOptions{})
			require.NoError(t, err, "it was not closed")
		})
	}
}

// TestDiskWithoutTheJournalItWasClosedWith: the whole file is gone.
func TestDiskWithoutTheJournalItWasClosedWith(t *testing.T) {
	disk := modeldisk.New(nil)
	s, err := openFiles(disk, DiskOptions{})
	require.NoError(t, err)
	_, err = s.Create(t.Context(), modelVolume("a"))
	require.NoError(t, err)
	require.NoError(t, s.Close())
	delete(disk.Files, journalName(0))
	_, err = openFiles(disk, DiskOptions{})
	require.ErrorIs(t, err, ErrDamaged)
}

// TestDiskWithAHalfWrittenMarkOfItsClose: a mark that is not whole says nothing.
func TestDiskWithAHalfWrittenMarkOfItsClose(t *testing.T) {
	disk := modeldisk.New(nil)
	s, err := openFiles(disk, DiskOptions{})
	require.NoError(t, err)
	_, err = s.Create(t.Context(), modelVolume("a"))
	require.NoError(t, err)
	told := dump(s)
	require.NoError(t, s.Close())
	mark := disk.Files[closedName]
	mark.Content = mark.Content[:len(mark.Content)/2]
	again, err := openFiles(disk, DiskOptions{})
	require.NoError(t, err)
	assert.Equal(t, told, dump(again))
}

func (s *Disk) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// TestEveryCloseWaitsForTheFirst has a Close while another waits for a write.
func TestEveryCloseWaitsForTheFirst(t *testing.T) {
	disk := modeldisk.New(nil)
	s, err := openFiles(disk, DiskOptions{})
	require.NoError(t, err)
	hung, goOn := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() {
		close(hung)
		<-goOn
	})
	disk.Fails = func(step modeldisk.Step) error {
		if step.Call == "write" {
			once()
		}
		return noSync(step)
	}
	written := make(chan error, 1)
	go func() {
		_, err := s.Create(t.Context(), modelVolume("slow"))
		written <- err
	}()
	<-hung
	closes := make(chan error, 2)
	go func() { closes <- s.Close() }()
	require.Eventually(t, s.isClosed, patience, tick)
	go func() { closes <- s.Close() }()
	select {
	case err := <-closes:
		t.Fatalf("a Close returned (%v) while a write was on its way", err)
	default:
	}
	close(goOn)
	require.ErrorIs(t, <-written, syscall.EIO)
	first, second := <-closes, <-closes
	require.ErrorIs(t, first, syscall.EIO)
	assert.Equal(t, first, second)
	assert.Equal(t, first, s.Close())
}
