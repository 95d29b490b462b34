package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/internal/journal/modeldisk"
)

// patience is how long something may take that is not waited for but by looking, tick how long from one look to the next.
const (
	patience = 30 * time.Second
	tick     = time.Millisecond
)

func (s *Disk) waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue)
}

func sized(name string, bytes int, finalizers ...string) *v1.ConfigMap {
	return &v1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Finalizers: finalizers},
		Data:       map[string]string{"a": strings.Repeat("a", bytes)},
	}
}

// TestDiskAtItsBoundsStillDeletes: an object that is as large as one may be, in a store that is as large as it may be, is deleted
// by way of its finalizers, though the time of its deletion makes it larger.
func TestDiskAtItsBoundsStillDeletes(t *testing.T) {
	const finalizer = "example.com/a"
	probe, err := openFiles(modeldisk.New(nil), DiskOptions{})
	require.NoError(t, err)
	_, err = Create(t.Context(), probe, sized("large", 1000, finalizer))
	require.NoError(t, err)

	s, err := openFiles(modeldisk.New(nil), DiskOptions{MaxObjectBytes: probe.total, MaxBytes: probe.total})
	require.NoError(t, err)
	large, err := Create(t.Context(), s, sized("large", 1000, finalizer))
	require.NoError(t, err)
	_, err = Create(t.Context(), s, sized("other", 1))
	require.ErrorIs(t, err, ErrFull)
	large.Data["b"] = "b"
	_, err = Update(t.Context(), s, large)
	require.ErrorIs(t, err, ErrFull)

	require.NoError(t, Delete(t.Context(), s, large))
	dying, err := Get[*v1.ConfigMap](t.Context(), s, "default", "large")
	require.NoError(t, err)
	grown := dying.DeepCopy()
	grown.Data["b"] = "b"
	_, err = Update(t.Context(), s, grown)
	require.ErrorIs(t, err, ErrFull, "what grows is no deletion")
	dying.Finalizers = nil
	_, err = Update(t.Context(), s, dying)
	require.NoError(t, err)
	_, err = Create(t.Context(), s, sized("other", 1))
	require.NoError(t, err)
}

// TestDiskWithRoomForNoOtherFile: where the journal can be written to and no other file can be made, it goes on, and so does
// another program after it.
func TestDiskWithRoomForNoOtherFile(t *testing.T) {
	for _, call := range []string{"create", "write", "sync file", "sync"} {
		t.Run(call, func(t *testing.T) {
			disk := modeldisk.New(nil)
			s, err := openFiles(disk, modelOptions())
			require.NoError(t, err)
			disk.Fails = func(step modeldisk.Step) error {
				if step.Call == call && step.File != disk.Files[journalName(0)] {
					return syscall.ENOSPC
				}
				return nil
			}
			for i := range 15 {
				_, err := s.Create(t.Context(), modelVolume(fmt.Sprintf("disk-%d", i)))
				require.NoError(t, err)
				s.committers.Wait()
				told := dump(s)
				found := func(yield func(map[string][]byte) bool) { yield(disk.Contents()) }
				if i < 5 { // The names that are not synced become more each time, and what may be found doubles with each.
					found = modeldisk.CutPower(disk.Steps)
				}
				for contents := range found {
					again, err := openFiles(modeldisk.New(contents), modelOptions())
					require.NoError(t, err, "write %d", i)
					require.Equal(t, told, dump(again), "write %d", i)
				}
			}
			disk.Fails = nil
			for i := range 30 {
				_, err := s.Create(t.Context(), modelVolume(fmt.Sprintf("more-%d", i)))
				require.NoError(t, err)
			}
			require.NoError(t, s.Close())
			assert.LessOrEqual(t, len(disk.Files), 4, "a snapshot, the journal after it, that before, and the mark of the close")
		})
	}
}

// TestDiskKeepsNoWriteOfACallerThatIsGone: while the disk hangs, only writes with a caller wait for it.
func TestDiskKeepsNoWriteOfACallerThatIsGone(t *testing.T) {
	disk := modeldisk.New(nil)
	s, err := openFiles(disk, modelOptions())
	require.NoError(t, err)
	hung, goOn := make(chan struct{}), make(chan struct{})
	disk.Fails = func(step modeldisk.Step) error {
		if step.Call == "write" && strings.Contains(string(step.Data), "slow") {
			close(hung)
			<-goOn
		}
		return nil
	}
	slow := make(chan error, 1)
	go func() {
		_, err := s.Create(t.Context(), modelVolume("slow"))
		slow <- err
	}()
	<-hung
	for i := range 20 {
		ctx, cancel := context.WithCancelCause(t.Context())
		late := make(chan error, 1)
		go func() {
			_, err := s.Create(ctx, modelVolume(fmt.Sprintf("late-%d", i)))
			late <- err
		}()
		require.Eventually(t, func() bool { return s.waiting() == 1 }, patience, tick)
		gone := errors.New("gone")
		cancel(gone)
		require.ErrorIs(t, <-late, gone)
		require.Zero(t, s.waiting())
	}
	close(goOn)
	require.NoError(t, <-slow)
	disk.Fails = nil
	_, err = s.Create(t.Context(), modelVolume("last"))
	require.NoError(t, err)
	assert.Equal(t, uint64(2), s.memory.present(), "no write of a caller that is gone was written")
}

// TestDiskClosesWithoutWhatItRefused: a write that failed has not happened for the next program either.
func TestDiskClosesWithoutWhatItRefused(t *testing.T) {
	disk := modeldisk.New(nil)
	s, err := openFiles(disk, modelOptions())
	require.NoError(t, err)
	told := dump(s)
	disk.Fails = func(step modeldisk.Step) error {
		if step.Call == "sync file" || step.Call == "truncate" {
			return syscall.EIO
		}
		return nil
	}
	_, err = s.Create(t.Context(), modelVolume("refused"))
	require.ErrorIs(t, err, syscall.EIO)
	disk.Fails = nil
	require.NoError(t, s.Close())
	again, err := openFiles(modeldisk.New(disk.Contents()), modelOptions())
	require.NoError(t, err)
	assert.Equal(t, told, dump(again))
}

// TestFullDiskStillDeletes fills a disk up to the last byte. Deletions go on, also by way of finalizers and in the company of writes
// that find no room, until there is room again, and for the next program as well.
func TestFullDiskStillDeletes(t *testing.T) {
	options := DiskOptions{MaxObjectBytes: 10_000, CompactBytes: 100_000}
	disk := modeldisk.New(nil)
	disk.Capacity = 35_000
	s, err := openFiles(disk, options)
	require.NoError(t, err)
	made := 0
	for ; ; made++ {
		_, err = s.Create(t.Context(), sized(fmt.Sprintf("disk-%d", made), 500, "example.com/a"))
		s.committers.Wait()
		if err != nil {
			break
		}
	}
	require.ErrorIs(t, err, ErrFull)
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.Greater(t, made, 10)
	s, err = reopened(t, s, disk, options)
	require.NoError(t, err)
	for i := range made {
		name := fmt.Sprintf("disk-%d", i)
		_, err := s.Create(t.Context(), sized("larger", 9000))
		if err == nil {
			require.NoError(t, s.Delete(t.Context(), Key{Kind: ConfigMaps, Namespace: "default", Name: "larger"}, Preconditions{}))
		}
		require.NoError(t, s.Delete(t.Context(), Key{Kind: ConfigMaps, Namespace: "default", Name: name}, Preconditions{}), name)
		dying, err := Get[*v1.ConfigMap](t.Context(), s, "default", name)
		require.NoError(t, err)
		dying.Finalizers = nil
		_, err = Update(t.Context(), s, dying)
		require.NoError(t, err, name)
		s.committers.Wait()
	}
	for i := range made / 2 {
		_, err := s.Create(t.Context(), sized(fmt.Sprintf("again-%d", i), 500))
		require.NoError(t, err, "there is room again")
		s.committers.Wait()
	}
	told := dump(s)
	s, err = reopened(t, s, disk, options)
	require.NoError(t, err)
	assert.Equal(t, told, dump(s))
}

func reopened(t *testing.T, s *Disk, disk *modeldisk.Disk, options DiskOptions) (*Disk, error) {
	t.Helper()
	require.NoError(t, s.Close())
	return openFiles(disk, options)
}

// TestFullDiskTellsWritesApart has a deletion and a creation come together where there is room for the deletion alone.
func TestFullDiskTellsWritesApart(t *testing.T) {
	disk := modeldisk.New(nil)
	s, err := openFiles(disk, DiskOptions{})
	require.NoError(t, err)
	pv, err := Create(t.Context(), s, modelVolume("old"))
	require.NoError(t, err)
	updated, err := Update(t.Context(), s, pv)
	require.NoError(t, err)
	s.committers.Wait()
	disk.Fails = func(step modeldisk.Step) error {
		if step.Call == "reserve" {
			return syscall.ENOSPC
		}
		return nil
	}
	require.NoError(t, s.journal.Cut())
	write := func(w Write) *diskWrite {
		plan, err := NewTransactionPlan(Transaction{Writes: []Write{w}})
		require.NoError(t, err)
		return &diskWrite{plan: plan, keys: plan.Keys(), done: make(chan struct{})}
	}
	update, stale := write(ToUpdate(updated)), write(ToUpdate(pv))
	creation, deletion := write(ToCreate(modelVolume("new"))), write(ToDelete(Key{Kind: PersistentVolumes, Name: "old"}, Preconditions{}))
	s.commit([]*diskWrite{update, stale, creation, deletion})
	require.ErrorIs(t, update.err, ErrFull)
	require.ErrorIs(t, stale.err, ErrConflict)
	require.ErrorIs(t, creation.err, ErrFull)
	require.NoError(t, deletion.err)
	assert.Equal(t, "3:", dump(s))
	assert.Len(t, disk.Files, 1)
}
