package volumemanager

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/journal"
	"github.com/volumekit/volumekit/volumemanager/internal/rootlock"
)

// BenchmarkRestart is how long it takes until all of 8,000 volumes that are set up for 8,000 pods are known again, with their
// mounts in the mount table.
func BenchmarkRestart(b *testing.B) {
	const volumes = 8000
	host, err := volume.NewHost(volume.HostOptions{RootDir: testRoot, NodeName: testNode})
	require.NoError(b, err)
	plugins := volume.NewVolumePluginMgr(host)
	require.NoError(b, plugins.InitPlugins(b.Context(), &instantPlugin{}))
	o := Options{RuntimeDir: filepath.Join(b.TempDir(), "run"), Resync: -1}
	o.Mounter = recordManyVolumes(b, plugins, o.RuntimeDir, volumes)
	b.ReportAllocs()
	for b.Loop() {
		m, err := New(plugins, o)
		require.NoError(b, err)
		require.NoError(b, m.recovery.Read(b.Context()))
		b.StopTimer()
		require.Len(b, m.view.allVolumes(), volumes)
		require.Len(b, m.watch.All(), volumes)
		require.NoError(b, m.journal.Close(b.Context()))
		b.StartTimer()
	}
}

// manyMounts is a mount table.
type manyMounts []mount.MountPoint

func (t manyMounts) List(context.Context) ([]mount.MountPoint, error)             { return t, nil }
func (t manyMounts) IsMountPoint(context.Context, string) (bool, error)           { return true, nil }
func (t manyMounts) Lookup(context.Context, string) (m mount.MountPoint, _ error) { return m, nil }

// recordManyVolumes records volumes as an earlier manager has left them, and returns the table of their mounts.
func recordManyVolumes(tb testing.TB, plugins *volume.VolumePluginMgr, dir string, n int) manyMounts {
	tb.Helper()
	table := make(manyMounts, 0, n)
	j := journal.New(journal.Options{RuntimeDir: dir, Plugins: plugins, Root: &rootlock.Lock{}, Mounts: lastMount{&table}})
	require.NoError(tb, j.Open())
	for i := range n {
		pod := instantPod("pod-" + strconv.Itoa(i))
		spec := volume.NewSpecFromVolume(&pod.Spec.Volumes[0])
		path := plugins.Host().GetPodVolumeDir(pod.UID, "example.com/instant", spec.Name())
		table = append(table, mount.MountPoint{UniqueID: uint64(i + 1), ID: uint64(i + 1), Path: path, FSType: "tmpfs", Options: []string{"rw"}})
		intent := operationexecutor.Intent{
			Kind: operationexecutor.OpMount, PluginName: "example.com/instant", Spec: spec, PodUID: pod.UID,
			VolumeName: volume.GetUniqueVolumeNameFromSpecWithPod(volume.GetUniquePodName(pod), &instantPlugin{}, spec),
			Pod:        types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, OuterVolumeSpecNames: []string{"cache"}, MountPath: path,
		}
		require.NoError(tb, j.Intend(tb.Context(), intent))
		require.NoError(tb, j.Conclude(tb.Context(), intent, operationexecutor.IntentDone))
	}
	require.NoError(tb, j.Close(tb.Context()))
	return table
}

// lastMount is a mount table that shows the last mount wherever it is asked.
type lastMount struct{ table *manyMounts }

func (t lastMount) List(context.Context) ([]mount.MountPoint, error) { return *t.table, nil }
func (t lastMount) Lookup(context.Context, string) (mount.MountPoint, error) {
	return (*t.table)[len(*t.table)-1], nil
}

// asFiles puts a file for each record in the place of the log of a directory, as earlier versions had them, and returns the paths
// by key.
func asFiles(t *testing.T, dir string) map[string]string {
	t.Helper()
	files, castagnoli := make(map[string]string), crc32.MakeTable(crc32.Castagnoli)
	for key, payload := range recordsIn(t, dir) {
		sum, name := crc32.Checksum([]byte(key+payload), castagnoli), sha256.Sum256([]byte(key))
		content := fmt.Sprintf("volumekit-record/1 %08x %d %+q\n%s", sum, len(payload), key, payload)
		files[key] = filepath.Join(dir, hex.EncodeToString(name[:16])+".record")
		require.NoError(t, os.WriteFile(files[key], []byte(content), 0o600))
	}
	require.NoError(t, os.Remove(logIn(dir)))
	require.NoError(t, os.Remove(filepath.Join(dir, "log.record")))
	return files
}

// TestRecordsInFilesAreTakenOver: what an earlier version has left is known, and is in the log from then on.
func TestRecordsInFilesAreTakenOver(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, withRecords(t))
		w.claim("data")
		pod := podOf("web", "data", "-scratch")
		w.start()
		w.add(pod)
		require.NoError(t, w.stop())
		before, mounts := w.records(), w.mounts()
		var files []string
		for _, dir := range []string{w.options.RuntimeDir, w.options.StateDir} {
			files = slices.AppendSeq(files, maps.Values(asFiles(t, dir)))
		}
		require.Len(t, files, len(before))
		m := w.start()
		pass(time.Hour)
		assert.Equal(t, mounts, w.mounts())
		assert.Equal(t, before, w.records())
		for _, file := range files {
			assert.NoFileExists(t, file)
		}
		w.add(pod)
		w.remove(pod)
		m.PodsComplete()
		w.isClean()
	})
}

// TestBadRecordsAreReportedAndHoldUpNothing is row 14 of the fault matrix: whatever lies where a record should, the others are
// known, and the mounts that the bad ones stood for stay. It has the files of earlier versions.
func TestBadRecordsAreReportedAndHoldUpNothing(t *testing.T) {
	spoil := map[string]func(t *testing.T, path string, content []byte){
		"empty": func(t *testing.T, path string, _ []byte) { require.NoError(t, os.Truncate(path, 0)) },
		"torn":  func(t *testing.T, path string, c []byte) { require.NoError(t, os.Truncate(path, int64(len(c)-9))) },
		"garbage": func(t *testing.T, path string, c []byte) {
			require.NoError(t, os.WriteFile(path, bytes.Repeat([]byte{0xff}, len(c)), 0o600))
		},
		"huge": func(t *testing.T, path string, _ []byte) { require.NoError(t, os.Truncate(path, 1<<40)) },
		"header of a newer format": func(t *testing.T, path string, c []byte) {
			require.NoError(t, os.WriteFile(path, bytes.Replace(c, []byte("record/1"), []byte("record/2"), 1), 0o600))
		},
		"pipe": func(t *testing.T, path string, _ []byte) {
			require.NoError(t, os.Remove(path))
			require.NoError(t, unix.Mkfifo(path, 0o600))
		},
		"link": func(t *testing.T, path string, _ []byte) {
			require.NoError(t, os.Rename(path, path+".away"))
			require.NoError(t, os.Symlink(path+".away", path))
		},
		"directory": func(t *testing.T, path string, _ []byte) {
			require.NoError(t, os.Remove(path))
			require.NoError(t, os.Mkdir(path, 0o700))
		},
		"none": func(t *testing.T, path string, _ []byte) { require.NoError(t, os.Remove(path)) },
	}
	for name, spoil := range spoil {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newWorld(t, Options{RuntimeDir: filepath.Join(t.TempDir(), "run")})
				w.start()
				w.add(podOf("bad", "-scratch"))
				synctest.Wait()
				var bad string
				for key := range recordsIn(t, w.options.RuntimeDir) {
					bad = key
				}
				w.add(podOf("good", "-scratch"))
				require.NoError(t, w.stop())
				file := asFiles(t, w.options.RuntimeDir)[bad]
				content, err := os.ReadFile(file)
				require.NoError(t, err)
				spoil(t, file, content)
				before := w.mounts()

				m := w.start()
				m.PodsComplete()
				pass(time.Hour)
				require.NoError(t, m.WaitForUnmount(t.Context(), podOf("good")))
				assert.Len(t, w.mounts(), len(before)-1, "the mount whose record is bad stays")
				orphans := m.Status().Orphans
				require.Len(t, orphans, 1)
				assert.True(t, orphans[0].Mounted)
				assert.Equal(t, types.UID("uid-bad"), orphans[0].PodUID)
				if name == "none" {
					assert.Empty(t, m.Status().Damaged)
				} else {
					require.Len(t, m.Status().Damaged, 1)
				}
				w.add(podOf("bad", "-scratch"))
				assert.Empty(t, m.Status().Orphans, "it is a volume again")
				w.remove(podOf("bad"))
				require.NoError(t, m.WaitForNodeEmpty(t.Context()))
				require.Empty(t, w.mounts())
			})
		})
	}
}

// TestABadPartOfTheLogHoldsUpNothing is the same of the log: what is spoiled of it is one record of two.
func TestABadPartOfTheLogHoldsUpNothing(t *testing.T) {
	for name, spoil := range map[string]func(frame []byte){
		"a bit":  func(frame []byte) { frame[len(frame)/2] ^= 1 },
		"zeros":  func(frame []byte) { clear(frame) },
		"line":   func(frame []byte) { frame[len(frame)-1] = ' ' },
		"length": func(frame []byte) { frame[bytes.IndexByte(frame[4:], ' ')+5] = '9' },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newWorld(t, Options{RuntimeDir: filepath.Join(t.TempDir(), "run")})
				w.start()
				w.add(podOf("bad", "-scratch"))
				w.add(podOf("good", "-scratch"))
				require.NoError(t, w.stop())
				log := logIn(w.options.RuntimeDir)
				content, err := os.ReadFile(log)
				require.NoError(t, err)
				at := bytes.Index(content, []byte("uid-bad"))
				from := bytes.LastIndex(content[:at], []byte("put "))
				to := at + bytes.IndexByte(content[at:], '\n') + 1
				to += bytes.IndexByte(content[to:], '\n') + 1
				spoil(content[from:to])
				require.NoError(t, os.WriteFile(log, content, 0o600))
				before := w.mounts()

				m := w.start()
				m.PodsComplete()
				pass(time.Hour)
				require.NoError(t, m.WaitForUnmount(t.Context(), podOf("good")))
				assert.Len(t, w.mounts(), len(before)-1, "the mount whose record is bad stays")
				require.Len(t, m.Status().Orphans, 1)
				assert.Equal(t, types.UID("uid-bad"), m.Status().Orphans[0].PodUID)
				require.Len(t, m.Status().Damaged, 1)
				kept, err := os.ReadFile(m.Status().Damaged[0].Path)
				require.NoError(t, err)
				assert.Equal(t, content, kept, "nothing of it is lost")
			})
		})
	}
}

// A restart does not hide that a record was damaged: its volume may still be attached, and nothing else says so.
func TestARecordThatWasMovedAsideIsListedUntilItIsRemoved(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, withRecords(t))
		w.start()
		w.add(podOf("web", "-scratch"))
		require.NoError(t, w.stop())
		log := logIn(w.options.RuntimeDir)
		content, err := os.ReadFile(log)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(log, content[:len(content)-7], 0o600))
		first := w.start().Status().Damaged
		require.Len(t, first, 1)
		require.NotErrorIs(t, first[0].Err, record.ErrAside)
		require.NoError(t, w.stop())

		for range 2 {
			damaged := w.start().Status().Damaged
			require.NoError(t, w.stop())
			require.Len(t, damaged, 1)
			require.ErrorIs(t, damaged[0].Err, record.ErrAside)
			assert.Equal(t, first[0].Path, damaged[0].Path)
		}
		require.NoError(t, os.Remove(first[0].Path))
		assert.Empty(t, w.start().Status().Damaged)
	})
}

func TestRecordOfANewerManagerIsNeverOverwritten(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{RuntimeDir: filepath.Join(t.TempDir(), "run")})
		pod := podOf("web", "-scratch")
		w.start()
		w.add(pod)
		require.NoError(t, w.stop())
		rewriteRecord(t, w.options.RuntimeDir, func(r map[string]any) { r["version"], r["surprise"] = journal.Version+1, true })
		newer := recordsIn(t, w.options.RuntimeDir)
		for range 2 {
			m := w.start()
			pass(time.Hour)
			require.Len(t, m.Status().Damaged, 1)
			require.ErrorIs(t, m.Status().Damaged[0].Err, record.ErrNewer)
			require.ErrorIs(t, m.Status().Damaged[0].Err, volume.ErrUnsupported)
			assert.Equal(t, logIn(w.options.RuntimeDir), m.Status().Damaged[0].Path)
			require.NoError(t, w.stop())
			assert.Equal(t, newer, recordsIn(t, w.options.RuntimeDir))
		}
		m := w.start()
		w.add(pod)
		w.remove(pod)
		require.NoError(t, m.WaitForNodeEmpty(t.Context()))
		synctest.Wait()
		assert.Equal(t, newer, recordsIn(t, filepath.Join(w.options.RuntimeDir, "quarantine")))
	})
}

// TestPlainDirectoryIsNeverBoundInPlaceOfAStage is row 16 of the fault matrix: what was staged is gone, its directory is
// there, and a pod wants the volume.
func TestPlainDirectoryIsNeverBoundInPlaceOfAStage(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, withRecords(t))
		w.claim("data")
		w.start()
		w.add(podOf("old", "data"))
		w.remove(podOf("old"))
		w.add(podOf("web", "data"))
		require.NoError(t, w.stop())
		for _, path := range w.mounts() {
			require.NoError(t, w.mounter.Unmount(t.Context(), testRoot+path, mount.UnmountOptions{}))
		}
		m := w.start()
		w.add(podOf("web", "data"))
		assert.Equal(t, []string{"Attach", "MountDevice", "SetUp uid-web"}, w.changes())
		path := m.GetMountedVolumesForPod("uid-web")["data"].Path
		refs, err := w.mounter.GetMountRefs(t.Context(), path)
		require.NoError(t, err)
		assert.Len(t, refs, 1, "it is what is staged")
		m.PodsComplete()
		w.remove(podOf("web"))
		w.isClean()
	})
}
