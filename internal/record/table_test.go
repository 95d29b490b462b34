package record

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type row struct {
	Name string
	Boot string `json:",omitempty"`
}

func loadTables(t *testing.T, d *Dir, tables ...loader) {
	t.Helper()
	require.NoError(t, LoadTables(d, slog.New(slog.DiscardHandler), tables...))
}

// The rows are JSON under the kind and the key, so that a program without tables, and one of another version, can read them.
func TestTablesShareADirectory(t *testing.T) {
	path := private(t)
	d := open(t, path, Options{})
	volumes, uses := NewTable[row](d, "volume/"), NewTable[row](d, "use/")
	loadTables(t, d, volumes, uses)
	require.NoError(t, volumes.Put("b", row{Name: "b"}))
	require.NoError(t, volumes.Put("a", row{Name: "first"}))
	require.NoError(t, volumes.Put("a", row{Name: "a"}))
	require.NoError(t, uses.Put("a", row{Name: "use of a", Boot: "1"}))
	require.NoError(t, uses.Put("gone", row{Name: "gone"}))
	require.NoError(t, uses.Remove("gone"))
	require.NoError(t, uses.Remove("never there"))
	require.NoError(t, d.Close())

	d = open(t, path, Options{})
	got, _ := load(t, d)
	assert.Equal(t, map[string]string{"volume/a": `{"Name":"a"}`, "volume/b": `{"Name":"b"}`, "use/a": `{"Name":"use of a","Boot":"1"}`}, got)
	volumes, uses = NewTable[row](d, "volume/"), NewTable[row](d, "use/")
	loadTables(t, d, volumes, uses)
	assert.Equal(t, []row{{Name: "a"}, {Name: "b"}}, volumes.All())
	assert.Equal(t, []row{{Name: "b"}}, volumes.Where(func(r row) bool { return r.Name == "b" }))
	found, ok := uses.Get("a")
	assert.Equal(t, row{Name: "use of a", Boot: "1"}, found)
	assert.True(t, ok)
	_, ok = uses.Get("gone")
	assert.False(t, ok)
}

func TestRowsOfAnEarlierBootAreRemoved(t *testing.T) {
	d := open(t, private(t), Options{})
	uses := NewTable[row](d, "")
	loadTables(t, d, uses)
	boot, err := BootID()
	if os.IsNotExist(err) {
		t.Skip("missing: the kernel's id of a boot")
	}
	require.NoError(t, err)
	for name, of := range map[string]string{"now": boot, "before": "another", "long ago": ""} {
		require.NoError(t, uses.Put(name, row{Name: name, Boot: of}))
	}
	require.NoError(t, uses.RemoveWhere(func(r row) bool { return r.Boot != boot }))
	assert.Equal(t, []row{{Name: "now", Boot: boot}}, uses.All())
	got, _ := load(t, d)
	assert.Len(t, got, 1)
}

// The table says what is on the disk: a row whose write has failed is not in it, and one whose removal has failed stays.
func TestATableFollowsTheDisk(t *testing.T) {
	d := open(t, private(t), Options{})
	volumes := NewTable[row](d, "")
	loadTables(t, d, volumes)
	require.NoError(t, volumes.Put("a", row{Name: "a"}))
	require.NoError(t, d.Close())
	require.Error(t, volumes.Put("a", row{Name: "changed"}))
	require.Error(t, volumes.Put("b", row{Name: "b"}))
	require.Error(t, volumes.Remove("a"))
	require.Error(t, volumes.RemoveWhere(func(row) bool { return true }))
	assert.Equal(t, []row{{Name: "a"}}, volumes.All())
}

func TestRecordsThatATableCannotHave(t *testing.T) {
	for name, c := range map[string]struct {
		key, payload string
		newer        bool
	}{
		"of another kind":      {"snapshot/a", `{}`, true},
		"not JSON":             {"volume/a", `{`, false},
		"JSON of another type": {"volume/a", `{"Name":1}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			path := private(t)
			d := open(t, path, Options{})
			require.NoError(t, d.Put(c.key, []byte(c.payload)))
			err := LoadTables(d, slog.New(slog.DiscardHandler), NewTable[row](d, "volume/"))
			require.ErrorContains(t, err, c.key)
			if c.newer {
				require.ErrorIs(t, err, ErrNewer)
			}
			got, _ := load(t, d)
			assert.Equal(t, map[string]string{c.key: c.payload}, got, "it stays")
		})
	}
}

func TestDamagedRecordsAreInNoTable(t *testing.T) {
	path := private(t)
	d := open(t, path, Options{})
	require.NoError(t, os.WriteFile(filepath.Join(path, fileName("a")), []byte("nonsense"), 0o600))
	var log bytes.Buffer
	volumes := NewTable[row](d, "")
	require.NoError(t, LoadTables(d, slog.New(slog.NewTextHandler(&log, nil)), volumes))
	assert.Empty(t, volumes.All())
	assert.Contains(t, log.String(), quarantineDir)
}
