package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/internal/journal/modeldisk"
)

// life is a store on a disk of the model, and what it has promised after how many steps.
type life struct {
	*testing.T
	disk     *modeldisk.Disk
	store    *Disk
	promises []promisedState
	now      string
}

// promisedState are the states that may be found after a number of steps.
type promisedState struct {
	steps   int
	allowed []string
}

func modelOptions() DiskOptions { return DiskOptions{CompactBytes: 1200} }

// dump tells all objects, and the version.
func dump(s *Disk) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%d:", s.memory.present())
	objects := s.objects()
	sortObjects(objects)
	for _, obj := range objects {
		fmt.Fprintf(&text, " %s=%s/%s", obj.GetName(), obj.GetResourceVersion(), obj.GetUID())
	}
	return text.String()
}

// do does what changes the state, and notes what is promised meanwhile and from then on.
func (l *life) do(change func(ctx context.Context) error) {
	l.Helper()
	from := len(l.disk.Steps)
	require.NoError(l, change(l.Context()))
	l.store.committers.Wait() // And what is compacted.
	after := dump(l.store)
	for i := from; i < len(l.disk.Steps); i++ {
		l.promises = append(l.promises, promisedState{i, []string{l.now, after}})
	}
	l.now = after
	l.promises = append(l.promises, promisedState{len(l.disk.Steps), []string{after}})
}

func (l *life) open() {
	l.do(func(context.Context) (err error) {
		l.store, err = openFiles(l.disk, modelOptions())
		return err
	})
}

func modelVolume(name string) *v1.PersistentVolume {
	return &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"a": strings.Repeat("b", 100)}}}
}

// touch updates a volume.
func (l *life) touch(name string) {
	l.do(func(ctx context.Context) error {
		pv, err := Get[*v1.PersistentVolume](ctx, l.store, "", name)
		if err != nil {
			return err
		}
		_, err = Update(ctx, l.store, pv)
		return err
	})
}

// during has changes done while a snapshot is being written: by the time they begin, its first bytes are.
func (l *life) during(changes func()) {
	begun, goOn := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() {
		close(begun)
		<-goOn
	})
	l.disk.Fails = func(s modeldisk.Step) error {
		if s.Call == "write" && s.File == l.disk.Named(unfinished) {
			once()
		}
		return nil
	}
	for done := false; !done; {
		from := len(l.disk.Steps)
		pv, err := l.store.Create(l.Context(), modelVolume(fmt.Sprintf("filler-%d", from)))
		require.NoError(l, err)
		require.Equal(l, fmt.Sprint(l.store.memory.present()), pv.(*v1.PersistentVolume).ResourceVersion)
		idle := make(chan struct{})
		go func() {
			defer close(idle)
			l.store.committers.Wait()
		}()
		select {
		case <-begun:
			done = true
		case <-idle:
		}
		after := dump(l.store)
		for i := from; i < l.disk.Made(); i++ {
			l.promises = append(l.promises, promisedState{i, []string{l.now, after}})
		}
		l.now = after
		if done {
			changes()
			from = l.disk.Made()
			close(goOn)
			<-idle
			for i := from; i <= l.disk.Made(); i++ {
				l.promises = append(l.promises, promisedState{i, []string{l.now}})
			}
		}
	}
	l.disk.Fails = nil
}

// written does what changes the state while other goroutines are at work that do not.
func (l *life) written(change func(ctx context.Context) error) {
	from := l.disk.Made()
	require.NoError(l, change(l.Context()))
	after := dump(l.store)
	for i := from; i < l.disk.Made(); i++ {
		l.promises = append(l.promises, promisedState{i, []string{l.now, after}})
	}
	l.now = after
}

func live(t *testing.T) *life {
	l := &life{T: t, disk: modeldisk.New(nil), now: "0:"}
	l.open()
	for _, name := range []string{"a", "b"} {
		l.do(func(ctx context.Context) error {
			_, err := Create(ctx, l.store, modelVolume(name))
			return err
		})
	}
	l.do(func(ctx context.Context) error {
		_, err := l.store.Commit(ctx, Transaction{Writes: []Write{
			ToCreate(modelVolume("c")), ToDelete(Key{Kind: PersistentVolumes, Name: "b"}, Preconditions{}),
		}})
		return err
	})
	for range 6 {
		l.touch("a")
	}
	require.NoError(t, l.store.Close())
	l.open()
	for range 8 {
		l.touch("c")
	}
	before := l.store.snapshotBase.Load()
	l.during(func() {
		for _, name := range []string{"d", "e"} {
			l.written(func(ctx context.Context) error {
				_, err := Create(ctx, l.store, modelVolume(name))
				return err
			})
		}
	})
	require.Greater(t, l.store.snapshotBase.Load(), before)
	require.Less(t, l.store.snapshotBase.Load(), l.store.memory.present(), "writes went on")
	return l
}

// TestDiskPowerCut cuts the power before and after each system call of a store's life, with a restart and snapshots in it, and has
// each state found that a filesystem may leave. What was promised is there, what was under way is there or not, nothing is damaged,
// and the store goes on.
func TestDiskPowerCut(t *testing.T) {
	l := live(t)
	states, seen := 0, map[string]bool{}
	for _, p := range l.promises {
		for contents := range modeldisk.CutPower(l.disk.Steps[:p.steps]) {
			states++
			id := modeldisk.Identity(p.allowed, contents)
			if seen[id] {
				continue
			}
			seen[id] = true
			s, err := openFiles(modeldisk.New(contents), modelOptions())
			require.NoError(t, err, "after step %d", p.steps)
			require.Contains(t, p.allowed, dump(s), "after step %d", p.steps)
			_, err = s.Create(t.Context(), modelVolume("new"))
			require.NoError(t, err, "after step %d", p.steps)
			require.NoError(t, s.Close())
		}
	}
	assert.Positive(t, l.store.snapshotSize.Load(), "there were snapshots")
	assert.Greater(t, len(seen), 200)
	t.Logf("%d states, %d of them different, after %d system calls", states, len(seen), len(l.disk.Steps))
}

// TestDiskKilledWhileItOpens: what a store has read, and tells, outlives a power cut, though it was written by a program that was
// killed before it could sync.
func TestDiskKilledWhileItOpens(t *testing.T) {
	l := live(t)
	for n := range l.disk.Steps {
		disk := modeldisk.New(nil)
		disk.Replay(l.disk.Steps[:n])
		s, err := openFiles(disk, modelOptions())
		require.NoError(t, err, "killed before step %d", n)
		told := dump(s)
		for contents := range modeldisk.CutPower(disk.Steps) {
			again, err := openFiles(modeldisk.New(contents), modelOptions())
			require.NoError(t, err, "killed before step %d", n)
			require.Equal(t, told, dump(again), "killed before step %d", n)
		}
	}
}

// TestDiskFull has each call fail in turn, once or for a time: the write says why and has not happened, what was there stays, and
// when there is room again the store writes on.
func TestDiskFull(t *testing.T) {
	seen := map[string]bool{}
	for n := range len(live(t).disk.Steps) {
		disk, made := modeldisk.New(nil), 0
		disk.Fails = func(modeldisk.Step) error {
			made++
			if made > n && made <= n+1+2*(n%2) {
				return syscall.ENOSPC
			}
			return nil
		}
		s, err := openFiles(disk, modelOptions())
		if err != nil {
			require.ErrorIs(t, err, syscall.ENOSPC)
			continue
		}
		fillUp(t, s)
		disk.Fails = nil
		_, err = s.Create(t.Context(), modelVolume("last"))
		require.NoError(t, err, "call %d: the store does not write any more", n)
		s.committers.Wait()
		told := dump(s)
		for contents := range modeldisk.CutPower(disk.Steps) {
			if id := modeldisk.Identity(nil, contents); !seen[id] {
				seen[id] = true
				again, err := openFiles(modeldisk.New(contents), modelOptions())
				require.NoError(t, err, "call %d", n)
				require.Equal(t, told, dump(again), "call %d", n)
			}
		}
	}
}

// fillUp writes while calls fail.
func fillUp(t *testing.T, s *Disk) {
	t.Helper()
	for i := range 12 {
		told := dump(s)
		_, err := s.Create(t.Context(), modelVolume(fmt.Sprintf("disk-%d", i)))
		s.committers.Wait()
		if err != nil {
			require.ErrorIs(t, err, ErrFull)
			require.Equal(t, told, dump(s))
		}
	}
}

// FuzzDiskFiles opens whatever a journal and a snapshot may hold: never a panic, and what is opened once is opened again and says
// the same.
func FuzzDiskFiles(f *testing.F) {
	disk := modeldisk.New(nil)
	s, err := openFiles(disk, modelOptions())
	require.NoError(f, err)
	for i := range 9 {
		_, err := s.Create(context.Background(), modelVolume(fmt.Sprintf("disk-%d", i)))
		require.NoError(f, err)
	}
	require.NoError(f, s.Close())
	var journal, snapshot []byte
	for name, file := range disk.Files {
		if strings.HasPrefix(name, snapshotPrefix) {
			snapshot = file.Content
		} else if len(file.Content) > 100 {
			journal = file.Content
		}
	}
	f.Add(journal, []byte(nil), false)
	f.Add(journal[:len(journal)-7], []byte(nil), false)
	f.Add(journal, snapshot, true)
	f.Fuzz(func(t *testing.T, journal, snapshot []byte, salvage bool) {
		contents := map[string][]byte{journalName(0): journal}
		if len(snapshot) > 0 {
			contents[snapshotName(8)] = snapshot
		}
		s, err := openFiles(modeldisk.New(contents), DiskOptions{Salvage: salvage})
		if err != nil {
			require.True(t, errors.Is(err, ErrDamaged) || errors.Is(err, ErrNewer), err)
			return
		}
		if _, err := s.Create(t.Context(), modelVolume("new")); err != nil {
			require.ErrorIs(t, err, ErrAlreadyExists)
		}
		again, err := openFiles(modeldisk.New(s.files.(*modeldisk.Disk).Contents()), DiskOptions{})
		require.NoError(t, err)
		require.Equal(t, dump(s), dump(again))
	})
}
