package atomicwriter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/outcome"
)

// versioned is a payload in which every file holds n.
func versioned(n int) payload {
	p := payload{}
	for _, name := range []string{"a", "b"} {
		p[name] = FileProjection{Data: []byte(strconv.Itoa(n)), Mode: 0o644}
	}
	return p
}

// readSet reads every file of the set that is published, through one descriptor. A set that was replaced meanwhile is an
// error that matches ENOENT.
func readSet(dir string) ([]string, error) {
	fd, err := unix.Open(filepath.Join(dir, dataLink), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening what is published: %w", err)
	}
	defer unix.Close(fd)
	var contents []string
	for _, name := range []string{"a", "b"} {
		at, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		f := os.NewFile(uintptr(at), name)
		content, err := io.ReadAll(f)
		_ = f.Close()
		if err != nil {
			return nil, err
		}
		contents = append(contents, string(content))
	}
	return contents, nil
}

// reader reads sets until end is closed. Each must be of one version, and none older than one before.
func reader(t *testing.T, dir string, end <-chan struct{}) (sets int) {
	last := 0
	for {
		select {
		case <-end:
			return sets
		default:
		}
		contents, err := readSet(dir)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if !assert.NoError(t, err) {
			return sets
		}
		n, err := strconv.Atoi(contents[0])
		ok := assert.NoError(t, err, "half a file") && assert.Equal(t, []string{contents[0], contents[0]}, contents) &&
			assert.GreaterOrEqual(t, n, last)
		if !ok {
			return sets
		}
		last = n
		sets++
	}
}

func TestReadersSeeOneSetDuringThousandsOfUpdates(t *testing.T) {
	const updates = 4000
	dir := mountTmpfs(t, "")
	w := newWriter(t, dir, Options{})
	mustWrite(t, w, versioned(1))
	end := make(chan struct{})
	var readers sync.WaitGroup
	var sets atomic.Int64
	readers.Go(func() { sets.Add(int64(reader(t, dir, end))) })
	for n := 2; n <= updates; n++ {
		if _, err := w.Write(t.Context(), versioned(n)); !assert.NoError(t, err) {
			break
		}
	}
	close(end)
	readers.Wait()
	assert.Positive(t, sets.Load())
	requireShows(t, dir, versioned(updates))
}

// TestTwoWriters breaks the rule that there is one. Readers see whole sets all the same, "..data" always leads to one,
// and the next Write puts everything right.
func TestTwoWriters(t *testing.T) {
	dir := mountTmpfs(t, "")
	mustWrite(t, newWriter(t, dir, Options{}), versioned(1))
	end := make(chan struct{})
	var readers, writers sync.WaitGroup
	readers.Go(func() {
		for {
			select {
			case <-end:
				return
			default:
			}
			contents, err := readSet(dir)
			if errors.Is(err, unix.ENOENT) {
				// The set may be gone by now; but then another is there.
				assert.False(t, dangling(dir), "nothing is published: %v", err)
				continue
			}
			if assert.NoError(t, err) {
				assert.Equal(t, []string{contents[0], contents[0]}, contents)
			}
		}
	})
	var conflicts, done atomic.Int64
	for id := range 3 {
		writers.Go(func() {
			w := newWriter(t, dir, Options{})
			for n := range 500 {
				p := versioned(id*1000 + n)
				p[fmt.Sprintf("of-%d", id)] = FileProjection{}
				switch _, err := w.Write(t.Context(), p); {
				case errors.Is(err, ErrConflict):
					conflicts.Add(1)
				case assert.NoError(t, err):
					done.Add(1)
				}
			}
		})
	}
	writers.Wait()
	close(end)
	readers.Wait()
	t.Logf("%d conflicts", conflicts.Load())
	assert.Positive(t, done.Load())
	mustWrite(t, newWriter(t, dir, Options{}), versioned(7))
}

// dangling reports whether "..data" leads to nothing and goes on to lead there.
func dangling(dir string) bool {
	target := published(dir)
	_, err := os.Stat(filepath.Join(dir, target))
	return err != nil && published(dir) == target
}

// TestWorkAtHandIsNotALeftover: what another Write has not finished must stay, though it looks like a leftover.
func TestWorkAtHandIsNotALeftover(t *testing.T) {
	dir := t.TempDir()
	mustWrite(t, newWriter(t, dir, Options{}), versioned(1))
	slow, quick := newWriter(t, dir, Options{}), newWriter(t, dir, Options{})
	at := 0
	slow.before = func(call, _ string) error {
		if at++; call == "create" {
			slow.before = nil
			result, err := quick.Write(t.Context(), versioned(2))
			assert.NoError(t, err)
			assert.Empty(t, result.Cleared)
		}
		return nil
	}
	_, err := slow.Write(t.Context(), versioned(3))
	require.ErrorIs(t, err, ErrConflict, "it does not undo what it has not seen")
	assert.False(t, outcome.IsUncertain(err))
	requireShows(t, dir, versioned(2))
}

// TestPublishedByAnotherIsKept: a Write that comes last must not remove what another has published beside it.
func TestPublishedByAnotherIsKept(t *testing.T) {
	for _, call := range []string{"symlink ..data_tmp", "rename ..data", "rmdir"} {
		dir := t.TempDir()
		mustWrite(t, newWriter(t, dir, Options{}), versioned(1))
		slow, quick := newWriter(t, dir, Options{}), newWriter(t, dir, Options{})
		slow.before = func(c, name string) error {
			if strings.HasPrefix(c+" "+name, call) {
				slow.before = nil
				_, err := quick.Write(t.Context(), versioned(2))
				assert.NoError(t, err)
			}
			return nil
		}
		_, err := slow.Write(t.Context(), versioned(3))
		assert.True(t, err == nil || errors.Is(err, ErrConflict), "%v", err)
		contents, readErr := readSet(dir)
		require.NoError(t, readErr, call)
		want := "3"
		if err != nil {
			want = "2"
		}
		assert.Equal(t, []string{want, want}, contents, call)
		mustWrite(t, newWriter(t, dir, Options{}), versioned(4))
	}
}

// watch returns a function that reads what has happened in dir since it was called last: "event name".
func watch(t *testing.T, dir string) func() []string {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	const mask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_ATTRIB | unix.IN_MODIFY | unix.IN_CLOSE_WRITE
	_, err = unix.InotifyAddWatch(fd, dir, mask)
	require.NoError(t, err)
	names := map[uint32]string{
		unix.IN_CREATE: "create", unix.IN_DELETE: "delete", unix.IN_MOVED_FROM: "moved from", unix.IN_MOVED_TO: "moved to",
		unix.IN_ATTRIB: "attributes of", unix.IN_MODIFY: "modify", unix.IN_CLOSE_WRITE: "close",
	}
	return func() []string {
		var events []string
		buf := make([]byte, 64<<10)
		n, err := unix.Read(fd, buf)
		if !errors.Is(err, unix.EAGAIN) {
			require.NoError(t, err)
		}
		for rest := buf[:max(n, 0)]; len(rest) > 0; {
			size := unix.SizeofInotifyEvent + binary.NativeEndian.Uint32(rest[12:])
			name := strings.TrimRight(string(rest[unix.SizeofInotifyEvent:size]), "\x00")
			events = append(events, names[binary.NativeEndian.Uint32(rest[4:])&mask]+" "+name)
			rest = rest[size:]
		}
		return events
	}
}

func TestWatchersSeeOneEventForEachChange(t *testing.T) {
	dir := t.TempDir()
	w := newWriter(t, dir, Options{})
	mustWrite(t, w, versioned(0))
	events := watch(t, dir)
	for n := 1; n <= 20; n++ {
		mustWrite(t, w, versioned(n))
		var ofData []string
		for _, e := range events() {
			if strings.HasSuffix(e, " ..data") {
				ofData = append(ofData, e)
			}
			assert.NotRegexp(t, " [ab]$", e, "user-visible links stay as they are")
		}
		assert.Equal(t, []string{"moved to ..data"}, ofData)

		mustWrite(t, w, versioned(n))
		assert.Empty(t, events(), "nothing has changed")
	}
}
