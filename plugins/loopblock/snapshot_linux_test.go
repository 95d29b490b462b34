package loopblock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/mount/freeze"
	"github.com/volumekit/volumekit/mount/image"
	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/volume"
)

func (n *node) trySnapshot(ctx context.Context, name string, source *volume.Spec) (volume.Snapshot, error) {
	return n.plugin.CreateSnapshot(ctx, volume.SnapshotOptions{Name: name, Source: source})
}

func (n *node) snapshot(name string, source *volume.Spec) volume.Snapshot {
	n.t.Helper()
	made, err := n.trySnapshot(n.t.Context(), name, source)
	require.NoError(n.t, err)
	return made
}

// restoreOf asks for a volume of a snapshot, of size.
func restoreOf(s volume.Snapshot, source *volume.Spec, name, size string, parameters ...string) volume.VolumeOptions {
	options := claimOf(name, parameters...)
	group := "snapshot.storage.k8s.io"
	options.PVC.Spec.DataSource = &v1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: s.Handle}
	options.PVC.Spec.VolumeMode = source.PersistentVolume.Spec.VolumeMode
	options.PVC.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse(size)
	options.Snapshot = &s
	return options
}

func (n *node) restore(s volume.Snapshot, source *volume.Spec, name, size string) *volume.Spec {
	n.t.Helper()
	spec, err := n.tryProvision(n.t.Context(), restoreOf(s, source, name, size))
	require.NoError(n.t, err)
	return spec
}

// requireFile stages a volume and compares a file.
func (n *node) requireFile(spec *volume.Spec, content string) {
	n.t.Helper()
	n.stage(spec)
	assertContent(n.t, filepath.Join(n.stagingPath(spec), "file"), content)
	n.release(spec)
}

// syncs writes to a volume and calls fsync in a loop, until stop is called, which returns the longest pause.
func syncs(t testing.TB, path string) (stop func() time.Duration) {
	t.Helper()
	file, err := os.Create(filepath.Join(path, "busy"))
	require.NoError(t, err)
	end, result := make(chan struct{}), make(chan time.Duration, 1)
	go func() {
		longest := time.Duration(0)
		var err error
		for n := int64(0); err == nil; n++ {
			select {
			case <-end:
				if err := file.Close(); err != nil {
					t.Error(err)
				}
				result <- longest
				return
			default:
			}
			begun := time.Now()
			_, err = file.WriteAt(fmt.Append(nil, n), n%1024*4096)
			err = errors.Join(err, file.Sync())
			longest = max(longest, time.Since(begun))
		}
		t.Error(err)
		result <- longest
	}()
	return func() time.Duration {
		close(end)
		return <-result
	}
}

// TestSnapshotOfAVolumeInUse makes snapshots under load: copied on the filesystem of the temporary directory, which may share no
// blocks, and shared on xfs and btrfs.
func TestSnapshotOfAVolumeInUse(t *testing.T) {
	for _, below := range []string{"", "xfs", "btrfs"} {
		for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
			t.Run(fsType+" on "+below, func(t *testing.T) {
				n := newNode(t)
				requireTool(t, fsType)
				if below != "" {
					n.over(below)
				}
				source := n.provision("source", "fstype", fsType)
				n.stage(source)
				path := n.setUp(source, "pod")
				write(t, filepath.Join(path, "file"), "of then")
				stop := syncs(t, path)
				made := n.snapshot("s", source)
				stop()
				write(t, filepath.Join(path, "file"), "of later")
				assert.Equal(t, "source", made.SourceVolume)
				assert.ElementsMatch(t, []string{"s.snapshot", "source.img", filepath.Base(n.snapshotImage("s"))}, n.names())
				requireClean(t, n.snapshotImage("s"), fsType)

				restored := n.restore(made, source, "restored", "400Mi")
				n.stage(restored)
				assertContent(t, filepath.Join(n.stagingPath(restored), "file"), "of then")
				var fs unix.Statfs_t
				require.NoError(t, unix.Statfs(n.stagingPath(restored), &fs))
				assert.Greater(t, int64(fs.Blocks)*fs.Bsize, int64(300<<20), "it grows when it is staged")
				assertContent(t, filepath.Join(path, "file"), "of later")
				n.release(restored)
				n.tearDown(source, "pod")
				n.release(source)
				require.NoError(t, n.tryDelete(source))
				n.requireFile(n.restore(made, source, "again", "400Mi"), "of then")
				require.NoError(t, n.plugin.DeleteSnapshot(t.Context(), "s"))
				assert.Equal(t, []string{"again.img", "restored.img"}, n.names())
			})
		}
	}
}

// snapshotImage is the path of the image of a snapshot.
func (n *node) snapshotImage(name string) string {
	n.t.Helper()
	found, err := filepath.Glob(filepath.Join(n.images, name+".*.snap"))
	require.NoError(n.t, err)
	require.Len(n.t, found, 1)
	return found[0]
}

// requireClean has the filesystem's own check read an image, which it does not change.
func requireClean(t *testing.T, image, fsType string) {
	t.Helper()
	check := map[string][]string{
		"ext4":  {"e2fsck", "-f", "-n"},
		"btrfs": {"btrfs", "check", "--readonly"},
	}[fsType]
	if check == nil {
		return // An xfs that is frozen has a log that is not empty, which the kernel replays.
	}
	out, err := exec.CommandContext(t.Context(), check[0], append(check[1:], image)...).CombinedOutput()
	require.NoError(t, err, string(out))
	assert.NotContains(t, string(out), "recover")
}

func TestSnapshotsOfAGroupInEachState(t *testing.T) {
	n := newNode(t)
	var sources []*volume.Spec
	for _, name := range []string{"staged", "detached", "frozen"} {
		sources = append(sources, n.withFile(name))
	}
	for _, spec := range []*volume.Spec{sources[0], sources[2]} {
		n.stage(spec)
		write(t, filepath.Join(n.stagingPath(spec), "file"), "of "+spec.Name())
	}
	group, err := n.plugin.CreateGroupSnapshot(t.Context(), volume.GroupSnapshotOptions{Name: "g", Sources: sources})
	require.NoError(t, err)
	require.Len(t, group.Snapshots, 3)
	for i, want := range []string{"detached", "frozen", "staged"} {
		assert.Equal(t, want, group.Snapshots[i].SourceVolume)
		assert.Equal(t, fmt.Sprintf("g/%d", i), group.Snapshots[i].Handle)
		assert.Equal(t, group.CreationTime, group.Snapshots[i].CreationTime)
	}
	for _, spec := range []*volume.Spec{sources[0], sources[2]} {
		write(t, filepath.Join(n.stagingPath(spec), "file"), "of later")
		n.release(spec)
	}
	for i, want := range []string{"of both", "of frozen", "of staged"} {
		n.requireFile(n.restore(group.Snapshots[i], sources[0], fmt.Sprint("restored-", i), "32Mi"), want)
	}
	require.ErrorIs(t, n.plugin.DeleteSnapshot(t.Context(), "g/1"), volume.ErrInfeasible)
	require.ErrorIs(t, n.plugin.DeleteSnapshot(t.Context(), "g"), volume.ErrInvalid)
	require.ErrorIs(t, n.plugin.DeleteGroupSnapshot(t.Context(), "g", []string{"g/3"}), volume.ErrInvalid)
	require.NoError(t, n.plugin.DeleteGroupSnapshot(t.Context(), "g", []string{"g/0", "g/1", "g/2"}))
	require.NoError(t, n.plugin.DeleteSnapshot(t.Context(), "g/1"))
	for _, name := range n.names() {
		assert.True(t, strings.HasSuffix(name, ".img"), name)
	}
}

// While the first volume of a group is copied, nothing can be written to the second.
func TestAGroupIsOfOneMoment(t *testing.T) {
	n := newNode(t)
	one, two := n.withFile("one"), n.withFile("two")
	if shares(t, n.images) {
		t.Skip("missing: a temporary directory whose filesystem does not share blocks")
	}
	first, second := n.stage(one), n.stage(two)
	done := make(chan struct{})
	begin := sync.OnceFunc(func() {
		go func() {
			defer close(done)
			for _, dir := range []string{first, second} {
				path := filepath.Join(dir, "file")
				assert.NoError(t, errors.Join(os.WriteFile(path, []byte("of later"), 0o644), image.Sync(path)))
			}
		}()
		select {
		case <-done: // as it is if the volumes are not frozen
		case <-time.After(200 * time.Millisecond):
		}
	})
	n.plugin = n.pluginWith(loopblock.Options{Mounter: n.mounter, FreezeLimit: time.Hour, Progress: func(loopblock.CopyProgress) { begin() }})
	group, err := n.plugin.CreateGroupSnapshot(t.Context(), volume.GroupSnapshotOptions{Name: "g", Sources: []*volume.Spec{one, two}})
	require.NoError(t, err)
	<-done
	assertContent(t, filepath.Join(second, "file"), "of later")
	n.release(one)
	n.release(two)
	for i, made := range group.Snapshots {
		n.requireFile(n.restore(made, one, fmt.Sprint("restored-", i), "32Mi"), "of both")
	}
}

func TestACopyThatTakesTooLongIsRemovedAndWritersGoOn(t *testing.T) {
	n := newNode(t)
	source := n.withFile("source")
	if shares(t, n.images) {
		t.Skip("missing: a temporary directory whose filesystem does not share blocks")
	}
	n.stage(source)
	written := false
	for limit := 300 * time.Millisecond; !written; limit *= 2 { // A busy machine may copy nothing within a short limit.
		n.plugin = n.pluginWith(loopblock.Options{
			Mounter: n.mounter, FreezeLimit: limit,
			Progress: func(p loopblock.CopyProgress) {
				assert.Equal(t, "s", p.Volume)
				written = true
				write(t, filepath.Join(n.stagingPath(source), "file"), "of later") // which waits until it is thawed
			},
		})
		_, err := n.trySnapshot(t.Context(), "s", source)
		require.ErrorIs(t, err, loopblock.ErrTimeout)
		require.ErrorIs(t, err, volume.ErrInUse)
		assert.Equal(t, []string{"source.img"}, n.names())
	}
	n.plugin = n.pluginOver(n.mounter)
	made := n.snapshot("s", source)
	n.release(source)
	n.requireFile(n.restore(made, source, "restored", "32Mi"), "of later")
}

// shares reports whether the filesystem of a directory shares blocks.
func shares(t *testing.T, dir string) bool {
	t.Helper()
	var fs unix.Statfs_t
	require.NoError(t, unix.Statfs(dir, &fs))
	return fs.Type == unix.XFS_SUPER_MAGIC || fs.Type == unix.BTRFS_SUPER_MAGIC
}

func TestACopyIsDiscardedIfSomeoneThaws(t *testing.T) {
	n := newNode(t)
	source := n.withFile("source")
	if shares(t, n.images) {
		t.Skip("missing: a temporary directory whose filesystem does not share blocks")
	}
	staging := n.stage(source)
	root, err := os.Open(staging)
	require.NoError(t, err)
	thaw := true
	n.plugin = n.pluginWith(loopblock.Options{Mounter: n.mounter, FreezeLimit: time.Hour, Progress: func(loopblock.CopyProgress) {
		if thaw {
			_, err := freeze.ThawLeft(root)
			assert.NoError(t, err)
		}
	}})
	_, err = n.trySnapshot(t.Context(), "s", source)
	require.ErrorIs(t, err, freeze.ErrThawed)
	require.ErrorIs(t, err, volume.ErrTransient)
	assert.Equal(t, []string{"source.img"}, n.names())

	frozen, err := freeze.Freeze(root, time.Hour)
	require.NoError(t, err)
	_, err = n.trySnapshot(t.Context(), "s", source)
	require.ErrorIs(t, err, freeze.ErrFrozen, "an administrator's freeze is left alone")
	require.NoError(t, frozen.Thaw())
	thaw = false
	n.snapshot("s", source)
	require.NoError(t, root.Close())
	n.release(source)
}

func TestAVolumeThatIsCopiedIsNotAttached(t *testing.T) {
	n := newNode(t)
	source := n.withFile("source")
	if shares(t, n.images) {
		t.Skip("missing: a temporary directory whose filesystem does not share blocks")
	}
	other := n.pluginOver(n.mounter)
	attach := func(ctx context.Context) error {
		attacher, err := other.NewAttacher()
		require.NoError(t, err)
		_, err = attacher.Attach(ctx, source, nodeName)
		return err
	}
	tried := false
	n.plugin = n.pluginWith(loopblock.Options{Mounter: n.mounter, Progress: func(loopblock.CopyProgress) {
		if tried {
			return
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		assert.ErrorIs(t, attach(ctx), context.DeadlineExceeded)
		tried = true
	}})
	n.snapshot("s", source)
	assert.True(t, tried)
	n.requireFile(source, "of both")
}

func TestSnapshotOfAVolumeThatCannotBeFrozen(t *testing.T) {
	n := newNode(t)
	source := n.withFile("source")
	if !shares(t, n.images) {
		n.attach(source)
		_, err := n.trySnapshot(t.Context(), "s", source)
		require.ErrorIs(t, err, volume.ErrInUse, "it is attached, and staged nowhere")
		assert.Equal(t, []string{"source.img"}, n.names())
		require.NoError(t, n.tryDetach(t.Context(), source))
	}

	n.over("xfs")
	options := claimOf("raw")
	mode := v1.PersistentVolumeBlock
	options.PVC.Spec.VolumeMode = &mode
	raw, err := n.tryProvision(t.Context(), options)
	require.NoError(t, err)
	device := n.attach(raw)
	file, err := os.OpenFile(device, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = file.WriteAt([]byte("of then"), 5<<20)
	require.NoError(t, err)
	made := n.snapshot("s", raw)
	_, err = n.plugin.CreateGroupSnapshot(t.Context(), volume.GroupSnapshotOptions{Name: "g", Sources: []*volume.Spec{raw, n.provision("other")}})
	require.ErrorIs(t, err, volume.ErrInUse, "its writer cannot be stopped")
	require.NoError(t, file.Close())
	require.NoError(t, n.tryDetach(t.Context(), raw))
	n.restore(made, raw, "restored", "32Mi")
	assert.Equal(t, sum(t, n.image("raw")), sum(t, n.image("restored")))
	other := restoreOf(made, raw, "files", "32Mi")
	other.PVC.Spec.VolumeMode = nil
	_, err = n.tryProvision(t.Context(), other)
	require.ErrorIs(t, err, volume.ErrInfeasible, "another volumeMode")
}

func TestARestoredVolumeIsFoundAfterItsSnapshotIsGone(t *testing.T) {
	n := newNode(t)
	source := n.withFile("source")
	made := n.snapshot("s", source)
	options := restoreOf(made, source, "restored", "64Mi", "preallocate", "true")
	restored, err := n.tryProvision(t.Context(), options)
	require.NoError(t, err)
	assert.GreaterOrEqual(t, blocks(t, n.image("restored")), int64(64<<20))
	require.NoError(t, n.plugin.DeleteSnapshot(t.Context(), "s"))
	for _, snapshot := range []*volume.Snapshot{&made, nil} {
		options.Snapshot = snapshot
		again, err := n.tryProvision(t.Context(), options)
		require.NoError(t, err)
		assert.Equal(t, restored.PersistentVolume.Spec.CSI, again.PersistentVolume.Spec.CSI)
		options.PVName = "another"
		_, err = n.tryProvision(t.Context(), options)
		require.ErrorIs(t, err, volume.ErrInfeasible)
		options.PVName = "restored"
	}
	assert.Equal(t, []string{"restored.img", "source.img"}, n.names())
}

func TestARestoredVolumeHasTheFilesystemOfItsSnapshot(t *testing.T) {
	n := newNode(t)
	source := n.withFile("source")
	made := n.snapshot("s", source)
	_, err := n.tryProvision(t.Context(), restoreOf(made, source, "restored", "400Mi", "fstype", "xfs"))
	require.ErrorIs(t, err, volume.ErrInfeasible)
	made.RestoreSize = 0 // as by a caller that does not know it
	_, err = n.tryProvision(t.Context(), restoreOf(made, source, "restored", "16Mi"))
	var small *volume.RestoreSizeError
	require.ErrorAs(t, err, &small)
	assert.ElementsMatch(t, []string{"s.snapshot", "source.img", filepath.Base(n.snapshotImage("s"))}, n.names())
}

// A process that was killed together with its guard leaves a record and a frozen filesystem.
func TestWhatWasLeftFrozenIsThawed(t *testing.T) {
	for name, thaw := range map[string]func(n *node, source *volume.Spec){
		"by the next start":    func(n *node, _ *volume.Spec) { n.pluginOver(n.mounter) },
		"by the next snapshot": func(n *node, source *volume.Spec) { n.snapshot("s", source) },
		"by the teardown": func(n *node, source *volume.Spec) {
			n.release(source)
			n.stage(source)
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			source := n.withFile("source")
			root, err := os.Open(n.stage(source))
			require.NoError(t, err)
			fd := int(root.Fd())
			require.NoError(t, unix.IoctlSetInt(fd, 0xc0045877, 0)) // FIFREEZE
			require.NoError(t, root.Close())
			record := filepath.Join(n.images, "source.frozen")
			write(t, record, "")
			thaw(n, source)
			write(t, filepath.Join(n.stagingPath(source), "file"), "again")
			assert.NoFileExists(t, record)
			n.release(source)
		})
	}
}

// TestNoSnapshotIsListedBeforeTheFirstVolume, when there is no directory yet.
func TestNoSnapshotIsListedBeforeTheFirstVolume(t *testing.T) {
	n := newNode(t)
	assert.NoDirExists(t, n.images)
	all, err := n.plugin.ListSnapshots(t.Context())
	require.NoError(t, err)
	assert.Empty(t, all)
}

func TestARecordThatIsNotOursIsNoSnapshot(t *testing.T) {
	n := newNode(t)
	source := n.withFile("source")
	n.snapshot("s", source)
	record := filepath.Join(n.images, "s.snapshot")
	data, err := os.ReadFile(record)
	require.NoError(t, err)
	for _, wrong := range []string{"", "{}", strings.Replace(string(data), `"version":1`, `"version":2`, 1), strings.Replace(string(data), `"name":"s"`, `"name":"t"`, 1)} {
		write(t, record, wrong)
		_, err = n.plugin.GetSnapshot(t.Context(), "s")
		require.Error(t, err)
		require.NotErrorIs(t, err, volume.ErrNotFound, "it is not known to be gone")
		_, err = n.plugin.ListSnapshots(t.Context())
		require.Error(t, err)
		require.Error(t, n.plugin.DeleteSnapshot(t.Context(), "s"))
		assert.FileExists(t, n.snapshotImage("s"))
	}
	write(t, record, string(data))
	require.NoError(t, n.plugin.DeleteSnapshot(t.Context(), "s"))
	assert.Equal(t, []string{"source.img"}, n.names())
}

func TestWhatAKilledCallHasLeftIsNoSnapshot(t *testing.T) {
	n := newNode(t)
	source := n.withFile("source")
	left := []string{"s.0.ABC.snap", "s.1.ABC.snap", "s.snapshotting"}
	for _, next := range []func(){
		func() { require.NoError(t, n.plugin.DeleteSnapshot(t.Context(), "s")) },
		func() { n.snapshot("s", source) },
	} {
		for _, name := range left {
			write(t, filepath.Join(n.images, name), "half")
		}
		write(t, filepath.Join(n.images, "s.t.0.ABC.snap"), "of another")
		all, err := n.plugin.ListSnapshots(t.Context())
		require.NoError(t, err)
		assert.Empty(t, all)
		_, err = n.plugin.GetSnapshot(t.Context(), "s")
		require.ErrorIs(t, err, volume.ErrNotFound)
		next()
		for _, name := range left {
			assert.NoFileExists(t, filepath.Join(n.images, name))
		}
		assert.FileExists(t, filepath.Join(n.images, "s.t.0.ABC.snap"))
	}
}

// BenchmarkSnapshotUnderLoad measures how long an fsync in a pod takes at most while a snapshot of a volume of 1 GiB with
// 512 MiB of data is made.
func BenchmarkSnapshotUnderLoad(b *testing.B) {
	for _, below := range []string{"copy", "xfs", "btrfs"} {
		b.Run(below, func(b *testing.B) { benchmarkSnapshot(b, below) })
	}
}

func benchmarkSnapshot(b *testing.B, below string) {
	n := newNode(b)
	if below != "copy" {
		n.overOf(below, "4Gi")
	}
	frozen := &longest{}
	n.plugin = n.pluginWith(loopblock.Options{Mounter: n.mounter, FreezeLimit: time.Minute, Logger: slog.New(frozen)})
	options := claimOf("source")
	options.PVC.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse("1Gi")
	source, err := n.tryProvision(b.Context(), options)
	require.NoError(b, err)
	n.stage(source)
	path := n.setUp(source, "pod")
	file, err := os.Create(filepath.Join(path, "data"))
	require.NoError(b, err)
	for range 512 {
		_, err := file.Write(bytes.Repeat([]byte("data"), 1<<18))
		require.NoError(b, err)
	}
	require.NoError(b, errors.Join(file.Sync(), file.Close()))
	var worst, usual time.Duration
	for b.Loop() {
		stop := syncs(b, path)
		time.Sleep(200 * time.Millisecond)
		usual = max(usual, stop())
		stop = syncs(b, path)
		n.snapshot("s", source)
		worst = max(worst, stop())
		require.NoError(b, n.plugin.DeleteSnapshot(b.Context(), "s"))
	}
	for unit, value := range map[string]time.Duration{
		"ms-frozen": frozen.value, "ms-longest-fsync": worst, "ms-longest-fsync-before": usual,
	} {
		b.ReportMetric(float64(value.Microseconds())/1000, unit)
	}
	n.tearDown(source, "pod")
	n.release(source)
}

// longest is a log that keeps the longest time for which a volume was frozen.
type longest struct {
	slog.Handler
	value time.Duration
}

func (*longest) Enabled(context.Context, slog.Level) bool { return true }

func (l *longest) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "for" {
			l.value = max(l.value, a.Value.Duration())
		}
		return true
	})
	return nil
}

func (l *longest) WithAttrs([]slog.Attr) slog.Handler { return l }
