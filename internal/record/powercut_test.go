package record

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/internal/journal/modeldisk"
)

// modelDir is a directory of records in memory.
type modelDir struct{ *modeldisk.Disk }

// modelInfo is what is known of a file there.
type modelInfo struct {
	fs.FileInfo

	size int64
}

func (i modelInfo) Mode() fs.FileMode { return 0o600 }
func (i modelInfo) Size() int64       { return i.size }

func (d modelDir) stat(name string) (fs.FileInfo, error) {
	if f := d.Named(name); f != nil {
		return modelInfo{size: int64(len(f.Content))}, nil
	}
	return nil, fs.ErrNotExist
}
func (modelDir) mkdir(string) error                       { return nil }
func (d modelDir) readRecord(name string) ([]byte, error) { return d.Read(name) }

// openModel returns a directory on a disk, with a log that is often written anew.
func openModel(disk *modeldisk.Disk, o Options) *Dir {
	d := newDir(files{disk: modelDir{disk}, durable: o.Sync})
	d.least = 600
	return d
}

// end ends a directory as Close does.
func (d *Dir) end(t *testing.T) {
	t.Helper()
	if d.log != nil && d.found == nil && d.log.Size() > d.base {
		require.NoError(t, d.compact())
	}
	require.NoError(t, d.closeLog())
}

// promise is what a directory has promised after so many steps: of each key, the values that may be found.
type promise struct {
	steps  int
	values map[string][]string
}

// absent is the value of a record that is not there.
const absent = "(none)"

// life is a directory on a disk, and what it has promised.
type life struct {
	*testing.T

	disk     *modeldisk.Disk
	dir      *Dir
	promised []promise
	now      map[string][]string // The last value of a key is the one that was promised.
}

// do does what changes one record and notes what is promised meanwhile, and from then on.
func (l *life) do(key, value string, call func() error) {
	l.Helper()
	from := l.disk.Made()
	require.NoError(l, call())
	before := maps.Clone(l.now)
	if key != "" {
		if len(l.now[key]) == 0 {
			l.now[key] = []string{absent}
		}
		before[key] = append([]string{value}, l.now[key]...)
		l.now = maps.Clone(l.now)
		l.now[key] = []string{value}
	}
	for i := from; i < l.disk.Made(); i++ {
		l.promised = append(l.promised, promise{steps: i, values: before})
	}
	l.promised = append(l.promised, promise{steps: l.disk.Made(), values: l.now})
}

func (l *life) put(key, value string) {
	l.Helper()
	l.do(key, value, func() error { return l.dir.Put(key, []byte(value)) })
}

func (l *life) remove(key string) {
	l.Helper()
	l.do(key, absent, func() error { return l.dir.Remove(key) })
}

// open opens the directory as another program does after the first was killed.
func (l *life) open(o Options) {
	l.Helper()
	l.dir = openModel(l.disk, o)
	l.do("", "", func() error {
		_, damaged, err := l.dir.Load()
		assert.Empty(l, damaged)
		return err
	})
}

// older has the files of an earlier version.
func (l *life) older(values map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(values)) {
		l.now[key] = []string{values[key]}
		f, err := l.disk.Create(fileName(key))
		require.NoError(l, err)
		_, err = f.WriteAt(encode(key, []byte(values[key])), 0)
		require.NoError(l, errors.Join(err, f.Sync()))
	}
	require.NoError(l, l.disk.Sync())
}

// live is the life of a directory: taken over, killed, closed, written anew.
func live(t *testing.T, o Options) *life {
	l := &life{T: t, disk: modeldisk.New(nil), now: make(map[string][]string)}
	l.older(map[string]string{"old": "from a file", "a": "in a file, too"})
	l.open(o)
	l.put("a", "first")
	l.put("b", "beside")
	l.put("a", strings.Repeat("second, and longer ", 30))
	l.remove("a")
	l.open(o)
	l.put("a", "third")
	l.remove("b")
	l.remove("old")
	l.do("", "", func() error {
		l.dir.end(t)
		return nil
	})
	l.open(o)
	for i := range 6 {
		l.put("c", strings.Repeat(fmt.Sprint(i), 150))
	}
	l.remove("a")
	return l
}

// TestPowerCut cuts the power before and after each system call of a directory's life, and lets each state be found that a
// crash-consistent filesystem may leave: every change of a name that was not synced is there or not, each by itself; what was
// written and not synced is not there, torn, zeroed or whole. What a call has promised is there, what was under way is old or
// new, nothing is damaged, and the directory goes on.
func TestPowerCut(t *testing.T) {
	l := live(t, Options{Sync: true})
	states, seen := 0, map[string]bool{}
	for _, p := range l.promised {
		for contents := range modeldisk.CutPower(l.disk.Steps[:p.steps]) {
			states++
			if id := modeldisk.Identity([]string{fmt.Sprint(p.values)}, contents); !seen[id] {
				seen[id] = true
				p.holds(t, modeldisk.New(contents), Options{Sync: true})
			}
		}
	}
	assert.Greater(t, len(seen), 100)
	t.Logf("%d states, %d of them different, after %d system calls", states, len(seen), len(l.disk.Steps))
}

// TestKilledAtEveryStep kills the program before each system call, with and without syncs: the page cache has all that was done.
func TestKilledAtEveryStep(t *testing.T) {
	for _, o := range []Options{{}, {Sync: true}} {
		l := live(t, o)
		for _, p := range l.promised {
			disk := modeldisk.New(nil)
			disk.Replay(l.disk.Steps[:p.steps])
			told := p.holds(t, disk, o)
			if !o.Sync {
				continue
			}
			for contents := range modeldisk.CutPower(disk.Steps) {
				again, damaged := load(t, openModel(modeldisk.New(contents), o))
				require.Empty(t, damaged)
				require.Equal(t, told, again, "what was read, and told, outlives a power cut that comes then")
			}
		}
	}
}

// holds checks that a directory keeps the promise, and goes on. It returns what is in it then.
func (p promise) holds(t *testing.T, disk *modeldisk.Disk, o Options) map[string]string {
	t.Helper()
	d := openModel(disk, o)
	got, damaged := load(t, d)
	require.Empty(t, damaged, "after step %d: %q", p.steps, disk.Contents())
	for key, allowed := range p.values {
		value, ok := got[key]
		if !ok {
			value = absent
		}
		require.Contains(t, allowed, value, "key %q after step %d", key, p.steps)
	}
	for key := range got {
		require.Contains(t, p.values, key, "after step %d", p.steps)
	}
	require.NoError(t, d.Put("new", []byte("after")), "after step %d", p.steps)
	got["new"] = "after"
	again, damaged := load(t, openModel(disk, o))
	require.Empty(t, damaged)
	require.Equal(t, got, again, "after step %d", p.steps)
	return again
}

// TestPowerCutIsNoticedWithoutSync: the model finds what a directory that does not sync would lose.
func TestPowerCutIsNoticedWithoutSync(t *testing.T) {
	disk := modeldisk.New(nil)
	d := openModel(disk, Options{})
	require.NoError(t, d.Put("a", []byte("value")))
	var found []string
	for contents := range modeldisk.CutPower(disk.Steps) {
		got, _ := load(t, openModel(modeldisk.New(contents), Options{}))
		found = append(found, got["a"])
	}
	assert.Contains(t, found, "", "the record is lost")
	assert.Contains(t, found, "value")
}

// TestEveryCallFailsOnce has each call fail in turn, once or for a time: a write that fails says so, what was there stays, and the
// directory writes on when calls succeed again.
func TestEveryCallFailsOnce(t *testing.T) {
	for _, cause := range []error{syscall.ENOSPC, syscall.EIO} {
		for n := range live(t, Options{Sync: true}).disk.Made() {
			disk, made := modeldisk.New(nil), 0
			(&life{T: t, disk: disk, now: map[string][]string{}}).older(map[string]string{"old": "from a file"})
			disk.Fails = func(modeldisk.Step) error {
				made++
				if made > n && made <= n+1+2*(n%2) {
					return cause
				}
				return nil
			}
			d, told, maybe := openModel(disk, Options{Sync: true}), map[string]string{"old": "from a file"}, map[string]bool{}
			got, _, err := d.Load()
			require.NoError(t, err)
			require.Len(t, got, 1)
			for i := range 9 {
				key := fmt.Sprint(i % 3)
				value := strings.Repeat(fmt.Sprint(i), 100)
				if err := d.Put(key, []byte(value)); err != nil {
					require.ErrorIs(t, err, cause)
					maybe[key] = true
					continue
				}
				told[key] = value
				delete(maybe, key)
			}
			disk.Fails = nil
			for key := range maybe {
				require.NoError(t, d.Put(key, []byte("again")))
				told[key] = "again"
			}
			require.NoError(t, d.Put("last", nil))
			told["last"] = ""
			for contents := range modeldisk.CutPower(disk.Steps) {
				again, damaged := load(t, openModel(modeldisk.New(contents), Options{Sync: true}))
				require.Empty(t, damaged, "call %d", n)
				require.Equal(t, told, again, "call %d", n)
			}
		}
	}
}

// TestAFullDiskTakesRemovals fills the disk with records: the removal of each has its room.
func TestAFullDiskTakesRemovals(t *testing.T) {
	disk := modeldisk.New(nil)
	disk.Capacity = 8 << 10
	d := newDir(files{disk: modelDir{disk}, durable: true})
	var keys []string
	for i := 0; ; i++ {
		key := fmt.Sprintf("a key that is not short %d", i)
		if err := d.Put(key, bytes.Repeat([]byte("x"), 200)); err != nil {
			require.ErrorIs(t, err, syscall.ENOSPC)
			break
		}
		keys = append(keys, key)
	}
	require.Greater(t, len(keys), 10)
	for _, key := range keys {
		require.NoError(t, d.Remove(key))
	}
	got, damaged := load(t, openModel(disk, Options{Sync: true}))
	assert.Empty(t, got)
	assert.Empty(t, damaged)
}

// TestWhatComesTogetherIsSyncedTogether has many records come while the first is being synced.
func TestWhatComesTogetherIsSyncedTogether(t *testing.T) {
	const records = 1000
	disk, syncs := modeldisk.New(nil), 0
	d := newDir(files{disk: modelDir{disk}, durable: true})
	require.NoError(t, d.Put("there", nil))
	all := func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.waiting != nil && len(d.waiting.writes) == records-1
	}
	disk.Fails = func(s modeldisk.Step) error {
		if s.Call == "sync file" {
			if syncs++; syncs == 1 {
				assert.Eventually(t, all, 10*time.Second, time.Millisecond)
			}
		}
		return nil
	}
	var wg sync.WaitGroup
	for i := range records {
		wg.Go(func() { assert.NoError(t, d.Put(fmt.Sprint(i), []byte("value"))) })
	}
	wg.Wait()
	assert.Equal(t, 2, syncs)
	got, _ := load(t, openModel(disk, Options{Sync: true}))
	assert.Len(t, got, records+1)
}

// TestOnAFullDiskWhatIsPastMakesRoom writes the same record over and over.
func TestOnAFullDiskWhatIsPastMakesRoom(t *testing.T) {
	disk := modeldisk.New(nil)
	disk.Capacity = 8 << 10
	d := newDir(files{disk: modelDir{disk}, durable: true})
	for i := range 200 {
		require.NoError(t, d.Put("key", bytes.Repeat([]byte{byte('a' + i%26)}, 200)))
	}
	got, damaged := load(t, openModel(disk, Options{Sync: true}))
	assert.Len(t, got, 1)
	assert.Empty(t, damaged)
}

// TestAWriteThatFindsNoRoomTakesNoOtherWithIt has a large record and a removal come together.
func TestAWriteThatFindsNoRoomTakesNoOtherWithIt(t *testing.T) {
	disk := modeldisk.New(nil)
	disk.Capacity = 4 << 10
	d := newDir(files{disk: modelDir{disk}, durable: true})
	require.NoError(t, d.Put("old", nil))
	b := &batch{done: make(chan struct{}), writes: []frame{
		{key: "large", payload: make([]byte, 8<<10)}, {key: "old", removed: true}, {key: "small"},
	}}
	d.waiting = b
	d.writeNext(b)
	require.ErrorIs(t, b.errs[0], syscall.ENOSPC)
	require.NoError(t, b.errs[1])
	require.NoError(t, b.errs[2])
	got, _ := load(t, openModel(disk, Options{Sync: true}))
	assert.Equal(t, map[string]string{"small": ""}, got)
}

// logOf returns a log of three writes of which the last was two records, and what was in it before that.
func logOf(t *testing.T) (content []byte, proven int, values map[string]string) {
	disk := modeldisk.New(nil)
	d := newDir(files{disk: modelDir{disk}, durable: true})
	require.NoError(t, d.Put("gone", []byte("x")))
	require.NoError(t, d.Put("a", []byte(`{"a":1}`)))
	require.NoError(t, d.Remove("gone"))
	proven = len(disk.Named(logName).Content)
	b := &batch{done: make(chan struct{}), writes: []frame{
		{key: "b", payload: []byte(`{"b":2}`)}, {key: "c", payload: bytes.Repeat([]byte("c"), 1500)},
	}}
	d.waiting = b
	d.writeNext(b)
	require.NoError(t, errors.Join(b.errs...))
	values = map[string]string{"a": `{"a":1}`, "b": `{"b":2}`, "c": strings.Repeat("c", 1500)}
	return disk.Named(logName).Content, proven, values
}

func loadLog(t *testing.T, content []byte) (map[string]string, []Damaged, *modeldisk.Disk) {
	t.Helper()
	disk := modeldisk.New(map[string][]byte{logName: content})
	got, damaged := load(t, openModel(disk, Options{Sync: true}))
	return got, damaged, disk
}

// TestATornWriteIsNoDamage cuts the log off at every byte, and has zeros from every byte on: nothing says that a last write was
// acknowledged of which a part is missing, but for a log that was never whole. What is whole is used.
func TestATornWriteIsNoDamage(t *testing.T) {
	content, proven, _ := logOf(t)
	head := bytes.IndexByte(content, '\n') + 1
	for n := range content {
		got, damaged, _ := loadLog(t, content[:n])
		require.Equal(t, n < head, len(damaged) > 0, "cut off at byte %d", n)
		want := map[string]string{}
		for at := head; at < n; {
			f, size, err := parseFrame(content[at:n])
			if err != nil {
				break
			}
			want[f.key] = string(f.payload)
			if f.removed {
				delete(want, f.key)
			}
			at += size
		}
		require.Equal(t, want, got, "cut off at byte %d", n)
		if n >= proven {
			// But for a part of a sector that was written: no power cut leaves that.
			_, damaged, _ = loadLog(t, append(bytes.Clone(content[:n]), make([]byte, len(content)-n)...))
			require.Equal(t, n%sector > 0 && len(content)/sector == n/sector && n > proven, len(damaged) > 0, "zeros from byte %d on", n)
		}
	}
	for n := proven - 1; n > head; n-- { // A later write was acknowledged.
		changed := slices.Concat(content[:n], make([]byte, proven-n), content[proven:])
		_, damaged, _ := loadLog(t, changed)
		require.NotEmpty(t, damaged, "zeros from byte %d to %d", n, proven)
	}
}

// TestNoBitIsLostInSilence changes every bit of a log: it is told, and what it is not in is there.
func TestNoBitIsLostInSilence(t *testing.T) {
	content, _, values := logOf(t)
	for i := range 8 * len(content) {
		changed := bytes.Clone(content)
		changed[i/8] ^= 1 << (i % 8)
		got, damaged, disk := loadLog(t, changed)
		require.NotEmpty(t, damaged, "bit %d", i)
		missing := 0
		for key, value := range values {
			if got[key] != value {
				missing++
			}
		}
		require.LessOrEqual(t, missing, 1, "bit %d", i)
		require.Equal(t, changed, disk.Named(quarantineDir+"/"+logName).Content, "nothing of it is lost")
		_, damaged = load(t, openModel(disk, Options{Sync: true}))
		require.Empty(t, damaged, "it is told once")
	}
}

// TestAfterACloseEveryEndIsProven: what is missing of a log that was closed is damage, also at its end.
func TestAfterACloseEveryEndIsProven(t *testing.T) {
	disk := modeldisk.New(nil)
	d := newDir(files{disk: modelDir{disk}, durable: true})
	require.NoError(t, d.Put("a", []byte("1")))
	require.NoError(t, d.Put("b", []byte("2")))
	d.end(t)
	content := disk.Named(logName).Content
	for n := range content {
		_, damaged, _ := loadLog(t, content[:n])
		require.NotEmpty(t, damaged, "cut off at byte %d", n)
		_, damaged, _ = loadLog(t, append(bytes.Clone(content[:n]), make([]byte, len(content)-n)...))
		require.NotEmpty(t, damaged, "zeros from byte %d on", n)
	}
	before := disk.Made()
	got, damaged := load(t, openModel(disk, Options{Sync: true}))
	assert.Len(t, got, 2)
	assert.Empty(t, damaged)
	assert.Equal(t, before, disk.Made(), "nothing is written again")
}

// TestALogOfANewerProgramStaysUntilItsPlaceIsNeeded, as its records do.
func TestALogOfANewerProgramStaysUntilItsPlaceIsNeeded(t *testing.T) {
	newer := []byte(logFormat + "3" + noSum + "surprise\n")
	sumUp(newer, len(logFormat)+1)
	newer = append(newer, "and more"...)
	disk := modeldisk.New(map[string][]byte{logName: newer})
	for range 2 {
		got, damaged := load(t, openModel(disk, Options{Sync: true}))
		require.Empty(t, got)
		require.Len(t, damaged, 1)
		require.ErrorIs(t, damaged[0].Err, ErrNewer)
		require.Equal(t, newer, disk.Named(logName).Content)
	}
	d := openModel(disk, Options{Sync: true})
	_, _ = load(t, d)
	require.NoError(t, d.Put("mine", nil))
	assert.Equal(t, newer, disk.Named(quarantineDir+"/"+logName).Content)
	got, damaged := load(t, openModel(disk, Options{Sync: true}))
	assert.Equal(t, map[string]string{"mine": ""}, got)
	assert.Empty(t, damaged)
}

// TestAFileThatCannotBeRemovedDoesNotComeBack: nothing is written before what was taken over is out of the way.
func TestAFileThatCannotBeRemovedDoesNotComeBack(t *testing.T) {
	disk := modeldisk.New(map[string][]byte{fileName("a"): encode("a", []byte("old"))})
	disk.Fails = func(s modeldisk.Step) error {
		if s.Call == "unlink" {
			return syscall.EPERM
		}
		return nil
	}
	d := openModel(disk, Options{Sync: true})
	got, _ := load(t, d)
	assert.Equal(t, map[string]string{"a": "old"}, got)
	require.ErrorIs(t, d.Put("a", []byte("new")), syscall.EPERM)
	disk.Fails = nil
	require.NoError(t, d.Put("a", []byte("new")))
	got, _ = load(t, openModel(disk, Options{Sync: true}))
	assert.Equal(t, map[string]string{"a": "new"}, got)
}
