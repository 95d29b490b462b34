package record

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func open(t *testing.T, path string, o Options) *Dir {
	t.Helper()
	if runtime.GOOS != "linux" && runtime.GOOS != "darwin" {
		t.Skip("missing: locks on directories of records on " + runtime.GOOS)
	}
	d, err := Open(path, o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// private returns a directory of its own, whatever the umask.
func private(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "records")
	require.NoError(t, os.Mkdir(path, 0o700))
	return path
}

func load(t *testing.T, d *Dir) (map[string]string, []Damaged) {
	t.Helper()
	records, damaged, err := d.Load()
	require.NoError(t, err)
	got := make(map[string]string)
	for _, r := range records {
		got[r.Key] = string(r.Payload)
	}
	return got, damaged
}

func TestRecordsSurviveTheirDir(t *testing.T) {
	for _, sync := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "made", "when missing")
		d := open(t, path, Options{Sync: sync})
		odd := "a/../b\n\x00\xff \"quoted\""
		require.NoError(t, d.Put("one", []byte("first")))
		require.NoError(t, d.Put("one", []byte("second\nwith a line")))
		require.NoError(t, d.Put(odd, nil))
		require.NoError(t, d.Put("gone", []byte("x")))
		require.NoError(t, d.Remove("gone"))
		require.NoError(t, d.Remove("never there"))
		require.NoError(t, d.Close())

		got, damaged := load(t, open(t, path, Options{Sync: sync}))
		assert.Equal(t, map[string]string{"one": "second\nwith a line", odd: ""}, got)
		assert.Empty(t, damaged)
		left, err := filepath.Glob(filepath.Join(path, tempPrefix+"*"))
		require.NoError(t, err)
		assert.Empty(t, left)
	}
}

func TestSecondDirOfTheSamePathIsLockedOut(t *testing.T) {
	path := private(t)
	d := open(t, path, Options{})
	_, err := Open(path, Options{})
	require.ErrorIs(t, err, ErrLocked)
	require.NoError(t, d.Close())
	open(t, path, Options{})
}

func TestDirectoryOfOthersIsRefused(t *testing.T) {
	for _, mode := range []os.FileMode{0o702, 0o720, 0o777, 0o777 | os.ModeSticky} {
		path := private(t)
		require.NoError(t, os.Chmod(path, mode))
		_, err := Open(path, Options{})
		require.ErrorIs(t, err, ErrUnsafe)
		require.ErrorContains(t, err, path)
		require.ErrorContains(t, err, "chmod")
	}
	path := private(t)
	require.NoError(t, os.Chmod(path, 0o755))
	open(t, path, Options{})
}

func TestDirectoryOfAnotherUserIsRefused(t *testing.T) {
	path := private(t)
	if err := os.Chown(path, 12345, -1); err != nil {
		t.Skipf("missing: root, to give a directory away: %v", err)
	}
	_, err := Open(path, Options{})
	require.ErrorIs(t, err, ErrUnsafe)
}

// TestRecordThatCannotBeReadNowIsNotDamaged: it is not moved aside, for what it stands for is there.
func TestRecordThatCannotBeReadNowIsNotDamaged(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Log("root reads everything; ordinary users run this test, too")
		return
	}
	for _, name := range []string{logName, fileName("key")} { // The latter is of an earlier version.
		d := open(t, private(t), Options{})
		require.NoError(t, os.WriteFile(filepath.Join(d.Path(), name), encode("key", []byte("payload")), 0))
		_, _, err := d.Load()
		require.ErrorIs(t, err, os.ErrPermission)
		assert.NoDirExists(t, filepath.Join(d.Path(), quarantineDir))
	}
}

func TestDamagedFilesAreMovedAsideWhole(t *testing.T) {
	good := encode("key", []byte("payload"))
	cases := map[string][]byte{
		"empty":        {},
		"torn":         good[:len(good)-1],
		"longer":       append(bytes.Clone(good), 'x'),
		"bit flipped":  bytes.Replace(good, []byte("payload"), []byte("paylobd"), 1),
		"other key":    bytes.Replace(good, []byte(`"key"`), []byte(`"kez"`), 1),
		"older":        bytes.Replace(good, []byte("record/1"), []byte("record/0"), 1),
		"no version":   bytes.Replace(good, []byte("record/1"), []byte("record/x"), 1),
		"key unquoted": bytes.Replace(good, []byte(`"key"`), []byte(`key`), 1),
		"other name":   encode("another", []byte("payload")),
		"huge":         make([]byte, maxSize+1),
	}
	for name, content := range cases {
		t.Run(name, func(t *testing.T) {
			d := open(t, private(t), Options{})
			require.NoError(t, os.WriteFile(filepath.Join(d.Path(), fileName("key")), content, 0o600))
			got, damaged := load(t, d)
			assert.Empty(t, got)
			require.Len(t, damaged, 1)
			require.Error(t, damaged[0].Err)
			kept, err := os.ReadFile(damaged[0].Path)
			require.NoError(t, err)
			assert.True(t, bytes.Equal(content, kept), "nothing of it is lost")
			assert.Equal(t, quarantineDir, filepath.Base(filepath.Dir(damaged[0].Path)))

			_, damaged = load(t, d)
			assert.Empty(t, damaged, "it is reported once and not read again")
		})
	}
}

func TestQuarantineKeepsEarlierFiles(t *testing.T) {
	d := open(t, private(t), Options{})
	reason := errors.New("no sense")
	var paths []string
	for range 3 {
		require.NoError(t, d.Put("key", []byte("payload")))
		at := d.Quarantine("key", reason)
		require.Equal(t, reason, at.Err)
		paths = append(paths, at.Path)
	}
	for _, p := range paths {
		assert.FileExists(t, p)
	}
	got, _ := load(t, d)
	assert.Empty(t, got)
}

// TestRecordOfANewerProgramStaysUntilItsPlaceIsNeeded: who starts the newer program again, with nothing changed meanwhile,
// has lost nothing.
func TestRecordOfANewerProgramStaysUntilItsPlaceIsNeeded(t *testing.T) {
	d := open(t, private(t), Options{})
	newer := bytes.Replace(encode("header", []byte("new")), []byte(magic), []byte("volumekit-record/2"), 1)
	at := filepath.Join(d.Path(), fileName("header"))
	require.NoError(t, os.WriteFile(at, newer, 0o600))
	require.NoError(t, d.Put("payload", []byte("new")))
	for range 2 {
		got, damaged := load(t, d)
		assert.Len(t, got, 1, "that is for who knows what it means")
		damaged = append(damaged, d.Quarantine("payload", fmt.Errorf("version 2: %w", ErrNewer)))
		require.Len(t, damaged, 2)
		for _, left := range damaged {
			require.ErrorIs(t, left.Err, ErrNewer)
			assert.FileExists(t, left.Path)
			assert.Equal(t, d.Path(), filepath.Dir(left.Path))
		}
	}
	require.NoError(t, d.Remove("header"))
	assert.FileExists(t, at, "it is not ours to remove")
	require.NoError(t, d.Put("header", []byte("mine")))
	aside, err := os.ReadFile(filepath.Join(d.Path(), quarantineDir, fileName("header")))
	require.NoError(t, err)
	assert.Equal(t, newer, aside)
	require.NoError(t, d.Put("header", []byte("mine too")))
	require.NoError(t, d.Remove("header"))
	assert.NoFileExists(t, at)
}

func TestLockOfADirectoryLeavesNothing(t *testing.T) {
	path := private(t)
	d := open(t, path, Options{})
	_, err := Lock(path)
	require.ErrorIs(t, err, ErrLocked)
	require.NoError(t, d.Close())
	lock, err := Lock(path)
	require.NoError(t, err)
	_, err = Open(path, Options{})
	require.ErrorIs(t, err, ErrLocked)
	require.NoError(t, lock.Close())
	left, err := os.ReadDir(path)
	require.NoError(t, err)
	assert.Empty(t, left)
}

func TestMarksAreNoRecords(t *testing.T) {
	d := open(t, private(t), Options{Sync: true})
	assert.False(t, d.IsMarked("known"))
	require.NoError(t, d.Mark("known"))
	require.NoError(t, d.Mark("known"))
	assert.True(t, d.IsMarked("known"))
	got, damaged := load(t, d)
	assert.Empty(t, got)
	assert.Empty(t, damaged)
}

func TestHalfWrittenRecordIsRemovedAndTheOldOneStands(t *testing.T) {
	d := open(t, private(t), Options{})
	require.NoError(t, d.Put("key", []byte("old")))
	temp := filepath.Join(d.Path(), tempPrefix+"7-"+fileName("key"))
	require.NoError(t, os.WriteFile(temp, []byte("half"), 0o600))
	got, damaged := load(t, d)
	assert.Equal(t, map[string]string{"key": "old"}, got)
	assert.Empty(t, damaged)
	assert.NoFileExists(t, temp)
}

func TestTooLargeARecordIsRefused(t *testing.T) {
	d := open(t, private(t), Options{})
	require.NoError(t, d.Put("key", []byte("old")))
	require.Error(t, d.Put("key", []byte(strings.Repeat("x", maxSize))))
	got, _ := load(t, d)
	assert.Equal(t, map[string]string{"key": "old"}, got)
}

func FuzzDecode(f *testing.F) {
	f.Add(encode("key", []byte("payload")))
	f.Add([]byte(magic + " 00000000 0 \"\"\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		key, payload, err := decode(content)
		if err != nil {
			return
		}
		again, same, err := decode(encode(key, payload))
		require.NoError(t, err)
		assert.Equal(t, key, again)
		assert.Equal(t, payload, same)
	})
}

// TestALogWithoutRecordsGoesWithClose: what a program has kept is gone when nothing is on record, as a directory that it never had.
func TestALogWithoutRecordsGoesWithClose(t *testing.T) {
	for left, names := range map[string][]string{"": nil, "b": {newerMark, logName}} {
		path := filepath.Join(t.TempDir(), "records")
		d, err := Open(path, Options{Sync: true})
		require.NoError(t, err)
		require.NoError(t, d.Put("a", []byte("1")))
		if left != "" {
			require.NoError(t, d.Put(left, []byte("2")))
		}
		require.NoError(t, d.Remove("a"))
		require.NoError(t, d.Close())
		entries, err := os.ReadDir(path)
		require.NoError(t, err)
		var found []string
		for _, entry := range entries {
			found = append(found, entry.Name())
		}
		assert.Equal(t, names, found)
	}
}

// TestAClosedDirectoryTakesWhatAKilledOneLeft: a killed program leaves an empty log, or the mark of one that is gone.
func TestAClosedDirectoryTakesWhatAKilledOneLeft(t *testing.T) {
	for name, kill := range map[string]func(path string) error{
		"before Close": func(string) error { return nil },
		"within Close": func(path string) error { return os.Remove(filepath.Join(path, logName)) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "records")
			d, err := Open(path, Options{})
			require.NoError(t, err)
			require.NoError(t, d.Put("a", []byte("1")))
			require.NoError(t, d.Remove("a"))
			require.NoError(t, errors.Join(d.closeLog(), d.lock.fd.Close(), d.root.Close()))
			require.NoError(t, kill(path))

			d, err = Open(path, Options{})
			require.NoError(t, err)
			records, damaged, err := d.Load()
			require.NoError(t, err)
			assert.Empty(t, records)
			assert.Empty(t, damaged)
			require.NoError(t, d.Close())
			entries, err := os.ReadDir(path)
			require.NoError(t, err)
			assert.Empty(t, entries)
		})
	}
}
