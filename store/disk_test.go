package store_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/store/storetest"
)

// openDisk opens a store until the test ends.
func openDisk(t testing.TB, path string, options store.DiskOptions) *store.Disk {
	t.Helper()
	s, err := store.OpenDisk(path, options)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip("missing: locks of directories: ", err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

func TestDisk(t *testing.T) {
	storetest.Run(t, storetest.Config{
		New: func(t *testing.T) store.Store {
			return openDisk(t, filepath.Join(t.TempDir(), "store"), store.DiskOptions{History: 100, CompactBytes: 4000})
		},
		Compact: func(t *testing.T, s store.Store) {
			for i := range 201 {
				createVolume(t, s, fmt.Sprintf("filler-%d", i))
			}
		},
	})
}

// state returns the versions of all volumes, and that of the list.
func state(t *testing.T, s store.Store) (map[string]string, string) {
	t.Helper()
	items, version, err := store.ListOf[*v1.PersistentVolume](t.Context(), s, "")
	require.NoError(t, err)
	found := map[string]string{}
	for _, pv := range items {
		found[pv.Name] = pv.ResourceVersion + " " + string(pv.UID) + " " + pv.Labels["made"]
	}
	return found, version
}

func TestDiskIsThereAfterARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "store")
	first := openDisk(t, path, store.DiskOptions{})
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	gone := createVolume(t, first, "gone")
	kept := createVolume(t, first, "kept")
	setClass(t, first, "kept", "fast")
	require.NoError(t, store.Delete(t.Context(), first, gone))
	before, version := state(t, first)
	require.NoError(t, first.Close())
	require.NoError(t, first.Close(), "twice is as good as once")
	_, err = first.Create(t.Context(), &v1.PersistentVolume{ObjectMeta: objectMeta("", "late", "")})
	require.ErrorIs(t, err, store.ErrClosed)

	second := openDisk(t, path, store.DiskOptions{})
	after, same := state(t, second)
	assert.Equal(t, before, after)
	assert.Equal(t, version, same)
	events, err := second.Watch(t.Context(), store.PersistentVolumes, "", gone.ResourceVersion)
	require.NoError(t, err, "the history is there, too")
	for _, want := range []string{"Added kept", "Modified kept", "Deleted gone"} {
		event := <-events
		assert.Equal(t, want, string(event.Type)+" "+event.Object.(*v1.PersistentVolume).Name)
	}
	_, err = store.Update(t.Context(), second, kept)
	require.ErrorIs(t, err, store.ErrConflict)
	assert.Empty(t, second.Salvaged())
}

func TestDiskIsLocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	openDisk(t, path, store.DiskOptions{})
	_, err := store.OpenDisk(path, store.DiskOptions{})
	require.ErrorIs(t, err, store.ErrLocked)
	_, err = store.OpenDisk("relative", store.DiskOptions{})
	require.ErrorIs(t, err, store.ErrInvalid)
}

// awaitSnapshot waits until no snapshot is being written: then there is one at most, the journal after it, and that before.
func awaitSnapshot(t *testing.T, path string) {
	t.Helper()
	for journals, snapshots := 0, 0; snapshots > 1 || journals != 1+snapshots; runtime.Gosched() {
		require.NoError(t, t.Context().Err())
		names, err := filepath.Glob(filepath.Join(path, "*-*"))
		require.NoError(t, err)
		journals, snapshots = 0, 0
		for _, name := range names {
			switch base := filepath.Base(name); {
			case strings.HasPrefix(base, "journal-"):
				journals++
			case strings.HasPrefix(base, "snapshot-"):
				snapshots++
			}
		}
	}
}

// A watch goes on while snapshots take the place of journals, each write once and in order; the directory does not grow with the
// number of writes, and a restart finds the same.
func TestDiskIsCompactedUnderWatches(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	s := openDisk(t, path, store.DiskOptions{CompactBytes: 4000})
	events, err := s.Watch(t.Context(), store.PersistentVolumes, "", "0")
	require.NoError(t, err)
	pv := createVolume(t, s, "disk")
	const writes = 300
	for range writes {
		pv, err = store.Update(t.Context(), s, pv)
		require.NoError(t, err)
		awaitSnapshot(t, path)
	}
	for i := range writes + 1 {
		event := <-events
		require.Equal(t, fmt.Sprint(i+1), event.Object.(*v1.PersistentVolume).ResourceVersion)
	}
	require.NoError(t, s.Close())
	size := int64(0)
	names, err := os.ReadDir(path)
	require.NoError(t, err)
	for _, name := range names {
		info, err := name.Info()
		require.NoError(t, err)
		size += info.Size()
	}
	assert.Less(t, size, int64(40000), "of %d writes, 160,000 bytes", writes)
	assert.Len(t, names, 4, "a snapshot, the journal after it, that before, and the mark of the close")
	again := openDisk(t, path, store.DiskOptions{})
	found, version := state(t, again)
	assert.Equal(t, fmt.Sprint(writes+1), version)
	assert.Contains(t, found["disk"], version)
	_, err = again.Watch(t.Context(), store.PersistentVolumes, "", "1")
	require.ErrorIs(t, err, store.ErrCompacted)
	_, err = again.Watch(t.Context(), store.PersistentVolumes, "", fmt.Sprint(writes-1))
	require.NoError(t, err, "what the last journal says is history")
}

func TestDiskRefusesWhatIsTooLarge(t *testing.T) {
	s := openDisk(t, filepath.Join(t.TempDir(), "store"), store.DiskOptions{MaxObjectBytes: 2000, MaxBytes: 5000})
	large := func(name string, size int) error {
		_, err := s.Create(t.Context(), &v1.ConfigMap{ObjectMeta: objectMeta("default", name, ""), Data: map[string]string{"a": strings.Repeat("a", size)}})
		return err
	}
	require.ErrorIs(t, large("too-large", 3000), store.ErrFull)
	require.NoError(t, errors.Join(large("one", 1500), large("two", 1500)))
	require.ErrorIs(t, large("three", 1500), store.ErrFull)
	require.NoError(t, s.Delete(t.Context(), store.Key{Kind: store.ConfigMaps, Namespace: "default", Name: "one"}, store.Preconditions{}))
	require.NoError(t, large("three", 1500), "there is room again")
}

// damage opens a store whose file of that prefix was changed.
func damage(t *testing.T, prefix string, change func([]byte) []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "store")
	s := openDisk(t, path, store.DiskOptions{CompactBytes: map[string]int64{"snapshot-": 3000}[prefix]})
	for i := range 12 {
		createVolume(t, s, fmt.Sprintf("disk-%d", i))
	}
	require.NoError(t, s.Close())
	names, err := filepath.Glob(filepath.Join(path, prefix+"*"))
	require.NoError(t, err)
	require.NotEmpty(t, names)
	name := names[len(names)-1]
	content, err := os.ReadFile(name)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(name, change(content), 0o600))
	return path
}

func flip(at int) func([]byte) []byte {
	return func(content []byte) []byte {
		content[at] ^= 1
		return content
	}
}

func TestDiskTellsDamageAndTouchesNothing(t *testing.T) {
	for name, path := range map[string]string{
		"a bit in a journal":         damage(t, "journal-", flip(120)),
		"the head of a journal":      damage(t, "journal-", flip(12)),
		"a bit in a snapshot":        damage(t, "snapshot-", flip(200)),
		"a snapshot that is cut off": damage(t, "snapshot-", func(b []byte) []byte { return b[:len(b)-10] }),
		"a snapshot that is empty":   damage(t, "snapshot-", func([]byte) []byte { return nil }),
	} {
		t.Run(name, func(t *testing.T) {
			before := contents(t, path)
			_, err := store.OpenDisk(path, store.DiskOptions{})
			require.ErrorIs(t, err, store.ErrDamaged)
			var damaged *store.DamageError
			require.ErrorAs(t, err, &damaged)
			assert.NotEmpty(t, damaged.Damage)
			assert.Equal(t, before, contents(t, path))

			s, err := store.OpenDisk(path, store.DiskOptions{Salvage: true})
			require.NoError(t, err)
			assert.Equal(t, damaged.Damage, s.Salvaged())
			kept := filepath.Join(path, "damaged-"+damaged.Damage[0].File)
			assert.FileExists(t, kept)
			_, err = s.Watch(t.Context(), store.PersistentVolumes, "", "12")
			require.ErrorIs(t, err, store.ErrCompacted)
			createVolume(t, s, "new")
			salvaged, _ := state(t, s)
			require.NoError(t, s.Close())
			again := openDisk(t, path, store.DiskOptions{})
			found, _ := state(t, again)
			assert.Equal(t, salvaged, found)
			assert.Empty(t, again.Salvaged())
			assert.FileExists(t, kept)
		})
	}
}

func TestDiskSalvagesTheRest(t *testing.T) {
	s, err := store.OpenDisk(damage(t, "snapshot-", flip(200)), store.DiskOptions{Salvage: true})
	require.NoError(t, err)
	defer s.Close()
	found, _ := state(t, s)
	assert.Contains(t, found, "disk-11", "it is in the journal")
}

func TestDiskLeavesWhatIsNewerAlone(t *testing.T) {
	path := damage(t, "journal-", func([]byte) []byte { return []byte("52f316ce {\"format\":\"volumekit-store/2\"}\n") })
	_, err := store.OpenDisk(path, store.DiskOptions{Salvage: true})
	require.ErrorIs(t, err, store.ErrNewer)
}

func contents(t *testing.T, path string) map[string]string {
	t.Helper()
	files, err := os.ReadDir(path)
	require.NoError(t, err)
	all := map[string]string{}
	for _, f := range files {
		content, err := os.ReadFile(filepath.Join(path, f.Name()))
		require.NoError(t, err)
		all[f.Name()] = string(content)
	}
	return all
}

func BenchmarkDiskUpdate(b *testing.B) {
	s := openDisk(b, filepath.Join(b.TempDir(), "store"), store.DiskOptions{})
	pv, err := store.Create(b.Context(), s, &v1.PersistentVolume{ObjectMeta: objectMeta("", "disk", "")})
	require.NoError(b, err)
	for b.Loop() {
		if pv, err = store.Update(b.Context(), s, pv); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDiskUpdateTogether is what a write costs where 64 come at once.
func BenchmarkDiskUpdateTogether(b *testing.B) {
	s := openDisk(b, filepath.Join(b.TempDir(), "store"), store.DiskOptions{})
	each := make([]*v1.PersistentVolume, 64)
	for i := range each {
		pv, err := store.Create(b.Context(), s, &v1.PersistentVolume{ObjectMeta: objectMeta("", fmt.Sprintf("disk-%d", i), "")})
		require.NoError(b, err)
		each[i] = pv
	}
	for b.Loop() {
		var all sync.WaitGroup
		for i := range each {
			all.Go(func() { each[i] = mustUpdate(b.Context(), b, s, each[i]) })
		}
		all.Wait()
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*len(each)), "µs/write")
}

func mustUpdate(ctx context.Context, b *testing.B, s store.Store, pv *v1.PersistentVolume) *v1.PersistentVolume {
	updated, err := store.Update(ctx, s, pv)
	if err != nil {
		b.Error(err)
		return pv
	}
	return updated
}

func BenchmarkDiskGet(b *testing.B) {
	s := openDisk(b, filepath.Join(b.TempDir(), "store"), store.DiskOptions{})
	_, err := store.Create(b.Context(), s, &v1.PersistentVolume{ObjectMeta: objectMeta("", "disk", "")})
	require.NoError(b, err)
	for b.Loop() {
		if _, err := store.Get[*v1.PersistentVolume](b.Context(), s, "", "disk"); err != nil {
			b.Fatal(err)
		}
	}
}

// fill creates so many volumes.
func fill(b *testing.B, s *store.Disk, count int) {
	b.Helper()
	var writes []store.Write
	for i := range count {
		writes = append(writes, store.ToCreate(&v1.PersistentVolume{ObjectMeta: objectMeta("", fmt.Sprintf("disk-%d", i), "")}))
		if len(writes) == 1000 || i == count-1 {
			_, err := s.Commit(b.Context(), store.Transaction{Writes: writes})
			require.NoError(b, err)
			writes = nil
		}
	}
}

// BenchmarkOpenDisk is what a start with many objects costs.
func BenchmarkOpenDisk(b *testing.B) {
	for _, count := range []int{10_000, 100_000} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "store")
			s := openDisk(b, path, store.DiskOptions{})
			fill(b, s, count)
			require.NoError(b, s.Close())
			for b.Loop() {
				s, err := store.OpenDisk(path, store.DiskOptions{})
				require.NoError(b, err)
				require.NoError(b, s.Close())
			}
		})
	}
}

// BenchmarkDiskUpdateDuringSnapshot is how long the slowest write takes while a snapshot of many objects is written.
func BenchmarkDiskUpdateDuringSnapshot(b *testing.B) {
	const count = 100_000
	path := filepath.Join(b.TempDir(), "store")
	s := openDisk(b, path, store.DiskOptions{})
	fill(b, s, count)
	large := strings.Repeat("a", 1_000_000)
	for b.Loop() {
		slowest := time.Duration(0)
		snapshots := newest(b, path)
		for newest(b, path) == snapshots {
			began := time.Now()
			pv, err := store.Get[*v1.PersistentVolume](b.Context(), s, "", "disk-1")
			require.NoError(b, err)
			pv.Annotations = map[string]string{"a": large}
			mustUpdate(b.Context(), b, s, pv)
			slowest = max(slowest, time.Since(began))
		}
		b.ReportMetric(float64(slowest.Milliseconds()), "ms/slowest")
	}
}

// newest returns the name of the newest snapshot.
func newest(b *testing.B, path string) string {
	b.Helper()
	names, err := filepath.Glob(filepath.Join(path, "snapshot-*"))
	require.NoError(b, err)
	slices.Sort(names)
	if len(names) == 0 {
		return ""
	}
	return names[len(names)-1]
}
