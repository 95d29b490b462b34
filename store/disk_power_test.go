package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// modelDisk is a directory in memory that notes each system call.
type modelDisk struct {
	steps []modelStep
	files map[string]*modelFile
	// fails, if not nil, says whether a call fails, before it does anything.
	fails func(modelStep) error
	// capacity is how many bytes the files may take; 0 for any.
	capacity int64
	mu       sync.Mutex // guards all, but for fails, which may wait
}

// modelFile is a file.
type modelFile struct {
	disk    *modelDisk
	content []byte
	// reserved is up to where it takes room, whether that is used or not.
	reserved int64
}

// modelStep is one system call.
type modelStep struct {
	call, from, to string
	file           *modelFile
	at             int64
	data           []byte
}

func newModelDisk(contents map[string][]byte) *modelDisk {
	d := &modelDisk{files: map[string]*modelFile{}}
	for name, content := range contents {
		d.files[name] = &modelFile{disk: d, content: bytes.Clone(content)}
	}
	return d
}

func (d *modelDisk) note(s modelStep) error {
	if d.fails != nil {
		d.mu.Unlock()
		err := d.fails(s)
		d.mu.Lock()
		if err != nil {
			return err
		}
	}
	s.data = bytes.Clone(s.data)
	d.steps = append(d.steps, s)
	return nil
}

func (d *modelDisk) create(name string) (diskFile, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := &modelFile{disk: d}
	if old, ok := d.files[name]; ok {
		f = old
		return f, f.truncate(0)
	}
	err := d.note(modelStep{call: "create", to: name, file: f})
	if err == nil {
		d.files[name] = f
	}
	return f, err
}

func (d *modelDisk) reopen(name string) (diskFile, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f, ok := d.files[name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return f, nil
}

func (d *modelDisk) read(name string) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f, ok := d.files[name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return bytes.Clone(f.content), nil
}

func (d *modelDisk) rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.note(modelStep{call: "rename", from: from, to: to, file: d.files[from]})
	if err == nil {
		d.files[to] = d.files[from]
		delete(d.files, from)
	}
	return err
}

func (d *modelDisk) link(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.files[from] == nil {
		return fs.ErrNotExist
	}
	d.files[to] = d.files[from]
	return d.note(modelStep{call: "link", to: to, file: d.files[from]})
}

func (d *modelDisk) unlink(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.note(modelStep{call: "unlink", from: name})
	if err == nil {
		delete(d.files, name)
	}
	return err
}

func (d *modelDisk) sync() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.note(modelStep{call: "sync"})
}

// roomFor says whether a file may take so many bytes. What has two names counts once.
func (d *modelDisk) roomFor(f *modelFile, size int64) error {
	if d.capacity == 0 || size <= f.takes() {
		return nil
	}
	files := map[*modelFile]bool{f: true}
	for _, other := range d.files {
		files[other] = true
	}
	used := size - f.takes()
	for other := range files {
		used += other.takes()
	}
	if used > d.capacity {
		return syscall.ENOSPC
	}
	return nil
}

func (f *modelFile) takes() int64 { return max(f.reserved, int64(len(f.content))) }

func (d *modelDisk) names() ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Keys(d.files)), nil
}

func (f *modelFile) WriteAt(data []byte, at int64) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if err := f.disk.roomFor(f, at+int64(len(data))); err != nil {
		return 0, err
	}
	if err := f.disk.note(modelStep{call: "write", file: f, at: at, data: data}); err != nil {
		half := len(data) / 2 // As a disk that becomes full does.
		f.content = writeAt(f.content, data[:half], at)
		f.disk.steps = append(f.disk.steps, modelStep{call: "write", file: f, at: at, data: bytes.Clone(data[:half])})
		return half, err
	}
	f.content = writeAt(f.content, data, at)
	return len(data), nil
}

func (f *modelFile) Truncate(size int64) error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	return f.truncate(size)
}

// Reserve implements diskFile. What is reserved is no part of what a power cut leaves.
func (f *modelFile) Reserve(_, to int64) error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	err := f.disk.roomFor(f, to)
	if err == nil {
		err = f.disk.note(modelStep{call: "reserve", file: f, at: to})
	}
	if err == nil {
		f.reserved = max(f.reserved, to)
	}
	return err
}

func (f *modelFile) truncate(size int64) error {
	err := f.disk.note(modelStep{call: "truncate", file: f, at: size})
	if err == nil {
		f.content = f.content[:min(size, int64(len(f.content)))]
		f.reserved = min(size, f.reserved)
	}
	return err
}

// Sync fails as the kernel's does: what it could not write is read back, counts as written, and is on the disk or is not.
func (f *modelFile) Sync() error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	err := f.disk.note(modelStep{call: "sync file", file: f})
	if err != nil {
		f.disk.steps = append(f.disk.steps, modelStep{call: "failed sync", file: f})
	}
	return err
}

func (f *modelFile) Close() error { return nil }

func writeAt(content, data []byte, at int64) []byte {
	content = append(bytes.Clone(content), make([]byte, max(0, int(at)+len(data)-len(content)))...)
	copy(content[at:], data)
	return content
}

// cutPower yields what may be found after steps: of the changes of names that were not synced each is there or not, by itself;
// of what was written to files and not synced nothing is there, half of the last write, zeros, or all. What a failed sync gave up is
// there or is not, whatever is synced after it.
func cutPower(steps []modelStep) func(yield func(map[string][]byte) bool) {
	return func(yield func(map[string][]byte) bool) {
		for contents := range cutPowerWhere(steps, "sync file") {
			if !yield(contents) {
				return
			}
		}
		if !slices.ContainsFunc(steps, func(s modelStep) bool { return s.call == "failed sync" }) {
			return
		}
		for contents := range cutPowerWhere(steps, "lost") {
			if !yield(contents) {
				return
			}
		}
	}
}

// cutPowerWhere is cutPower where a failed sync did what failed says: a sync in spite of its error, or nothing.
func cutPowerWhere(steps []modelStep, failed string) func(yield func(map[string][]byte) bool) {
	durable, pending := map[string]*modelFile{}, []modelStep(nil)
	synced, written := map[*modelFile][]byte{}, map[*modelFile][]modelStep{}
	for _, s := range steps {
		call := s.call
		if call == "failed sync" {
			call = failed
		}
		switch call {
		case "reserve":
		case "lost":
			written[s.file] = nil
		case "sync":
			for _, p := range pending {
				p.name(durable)
			}
			pending = nil
		case "sync file":
			synced[s.file] = apply(synced[s.file], written[s.file], 3)
			written[s.file] = nil
		case "write", "truncate":
			written[s.file] = append(written[s.file], s)
		default:
			pending = append(pending, s)
		}
	}
	return func(yield func(map[string][]byte) bool) {
		for subset := range 1 << len(pending) {
			names := maps.Clone(durable)
			for i, s := range pending {
				if subset&(1<<i) != 0 {
					s.name(names)
				}
			}
			for found := range 4 {
				contents := map[string][]byte{}
				for name, f := range names {
					contents[name] = apply(synced[f], written[f], found)
				}
				if !yield(contents) {
					return
				}
			}
		}
	}
}

// name changes names as a step does.
func (s modelStep) name(names map[string]*modelFile) {
	delete(names, s.from)
	if s.to != "" {
		names[s.to] = s.file
	}
}

// apply does steps to content as far as found says.
func apply(content []byte, steps []modelStep, found int) []byte {
	for i, s := range steps {
		switch {
		case found == 0:
		case s.call == "truncate":
			content = content[:min(s.at, int64(len(content)))]
		case found == 1 && i == len(steps)-1:
			content = writeAt(content, s.data[:len(s.data)/2], s.at)
		case found == 2: // Zeros are where nothing was.
			content = writeAt(content, make([]byte, max(0, s.at+int64(len(s.data))-int64(len(content)))), max(s.at, int64(len(content))))
		default:
			content = writeAt(content, s.data, s.at)
		}
	}
	return content
}

// life is a store on a modelDisk, and what it has promised after how many steps.
type life struct {
	*testing.T
	disk     *modelDisk
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
	from := len(l.disk.steps)
	require.NoError(l, change(l.Context()))
	l.store.committers.Wait() // And what is compacted.
	after := dump(l.store)
	for i := from; i < len(l.disk.steps); i++ {
		l.promises = append(l.promises, promisedState{i, []string{l.now, after}})
	}
	l.now = after
	l.promises = append(l.promises, promisedState{len(l.disk.steps), []string{after}})
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
	l.disk.fails = func(s modelStep) error {
		if s.call == "write" && s.file == l.disk.named(unfinished) {
			once()
		}
		return nil
	}
	for done := false; !done; {
		from := len(l.disk.steps)
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
		for i := from; i < l.disk.made(); i++ {
			l.promises = append(l.promises, promisedState{i, []string{l.now, after}})
		}
		l.now = after
		if done {
			changes()
			from = l.disk.made()
			close(goOn)
			<-idle
			for i := from; i <= l.disk.made(); i++ {
				l.promises = append(l.promises, promisedState{i, []string{l.now}})
			}
		}
	}
	l.disk.fails = nil
}

// written does what changes the state while other goroutines are at work that do not.
func (l *life) written(change func(ctx context.Context) error) {
	from := l.disk.made()
	require.NoError(l, change(l.Context()))
	after := dump(l.store)
	for i := from; i < l.disk.made(); i++ {
		l.promises = append(l.promises, promisedState{i, []string{l.now, after}})
	}
	l.now = after
}

func (d *modelDisk) named(name string) *modelFile {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.files[name]
}

// made returns how many calls were made.
func (d *modelDisk) made() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.steps)
}

func live(t *testing.T) *life {
	l := &life{T: t, disk: newModelDisk(nil), now: "0:"}
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
		for contents := range cutPower(l.disk.steps[:p.steps]) {
			states++
			id := identity(p.allowed, contents)
			if seen[id] {
				continue
			}
			seen[id] = true
			s, err := openFiles(newModelDisk(contents), modelOptions())
			require.NoError(t, err, "after step %d", p.steps)
			require.Contains(t, p.allowed, dump(s), "after step %d", p.steps)
			_, err = s.Create(t.Context(), modelVolume("new"))
			require.NoError(t, err, "after step %d", p.steps)
			require.NoError(t, s.Close())
		}
	}
	assert.Positive(t, l.store.snapshotSize.Load(), "there were snapshots")
	assert.Greater(t, len(seen), 200)
	t.Logf("%d states, %d of them different, after %d system calls", states, len(seen), len(l.disk.steps))
}

// identity is different for different states.
func identity(allowed []string, contents map[string][]byte) string {
	text := slices.Clone(allowed)
	for _, name := range slices.Sorted(maps.Keys(contents)) {
		text = append(text, name, string(contents[name]))
	}
	return strings.Join(text, "\x00")
}

// TestDiskKilledWhileItOpens: what a store has read, and tells, outlives a power cut, though it was written by a program that was
// killed before it could sync.
func TestDiskKilledWhileItOpens(t *testing.T) {
	l := live(t)
	for n := range l.disk.steps {
		disk := newModelDisk(nil)
		for _, s := range l.disk.steps[:n] {
			disk.replay(s)
		}
		s, err := openFiles(disk, modelOptions())
		require.NoError(t, err, "killed before step %d", n)
		told := dump(s)
		for contents := range cutPower(disk.steps) {
			again, err := openFiles(newModelDisk(contents), modelOptions())
			require.NoError(t, err, "killed before step %d", n)
			require.Equal(t, told, dump(again), "killed before step %d", n)
		}
	}
}

// replay does a step of another disk to this one.
func (d *modelDisk) replay(s modelStep) {
	switch s.call {
	case "create":
		_, _ = d.create(s.to)
	case "rename":
		_ = d.rename(s.from, s.to)
	case "unlink":
		_ = d.unlink(s.from)
	case "sync":
		_ = d.sync()
	default:
		for name, f := range d.files {
			if s.file.was(name) {
				f.do(s)
			}
		}
	}
}

// was reports whether a file of another disk has had a name. A file is renamed only from unfinished.
func (f *modelFile) was(name string) bool {
	names := map[*modelFile]map[string]bool{}
	for _, s := range f.disk.steps {
		if names[s.file] == nil {
			names[s.file] = map[string]bool{}
		}
		names[s.file][s.to] = true
	}
	return names[f][name]
}

func (f *modelFile) do(s modelStep) {
	switch s.call {
	case "write":
		_, _ = f.WriteAt(s.data, s.at)
	case "truncate":
		_ = f.Truncate(s.at)
	case "sync file":
		_ = f.Sync()
	}
}

// TestDiskFull has each call fail in turn, once or for a time: the write says why and has not happened, what was there stays, and
// when there is room again the store writes on.
func TestDiskFull(t *testing.T) {
	seen := map[string]bool{}
	for n := range len(live(t).disk.steps) {
		disk, made := newModelDisk(nil), 0
		disk.fails = func(modelStep) error {
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
		disk.fails = nil
		_, err = s.Create(t.Context(), modelVolume("last"))
		require.NoError(t, err, "call %d: the store does not write any more", n)
		s.committers.Wait()
		told := dump(s)
		for contents := range cutPower(disk.steps) {
			if id := identity(nil, contents); !seen[id] {
				seen[id] = true
				again, err := openFiles(newModelDisk(contents), modelOptions())
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
	disk := newModelDisk(nil)
	s, err := openFiles(disk, modelOptions())
	require.NoError(f, err)
	for i := range 9 {
		_, err := s.Create(context.Background(), modelVolume(fmt.Sprintf("disk-%d", i)))
		require.NoError(f, err)
	}
	require.NoError(f, s.Close())
	var journal, snapshot []byte
	for name, file := range disk.files {
		if strings.HasPrefix(name, snapshotPrefix) {
			snapshot = file.content
		} else if len(file.content) > 100 {
			journal = file.content
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
		s, err := openFiles(newModelDisk(contents), DiskOptions{Salvage: salvage})
		if err != nil {
			require.True(t, errors.Is(err, ErrDamaged) || errors.Is(err, ErrNewer), err)
			return
		}
		if _, err := s.Create(t.Context(), modelVolume("new")); err != nil {
			require.ErrorIs(t, err, ErrAlreadyExists)
		}
		again, err := openFiles(newModelDisk(s.files.(*modelDisk).contents()), DiskOptions{})
		require.NoError(t, err)
		require.Equal(t, dump(s), dump(again))
	})
}

func (d *modelDisk) contents() map[string][]byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	contents := map[string][]byte{}
	for name, f := range d.files {
		contents[name] = f.content
	}
	return contents
}
