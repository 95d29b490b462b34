package volumemanager

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/health"
)

// TestAFilesystemThatHasFailedIsNoticedByItself, without a measurement, a resync or another pod.
func TestAFilesystemThatHasFailedIsNoticedByItself(t *testing.T) {
	for name, c := range map[string]struct {
		fsType  string
		options []string
		fail    func(t *testing.T, n deviceNode, path string)
		reason  string
	}{
		"an ext4 was shut down":    {"ext4", nil, shutDownAt, ReasonFilesystemShutDown},
		"an xfs was shut down":     {"xfs", nil, shutDownAt, ReasonFilesystemShutDown},
		"an ext4 found an error":   {"ext4", []string{"-e", "remount-ro"}, findError, ReasonFilesystemReadOnly},
		"a btrfs could not commit": {"btrfs", nil, fillBelow, ReasonFilesystemReadOnly},
	} {
		t.Run(name, func(t *testing.T) {
			n := newDeviceNodeOf(t, c.fsType, c.options...)
			n.options.FilesystemCheckInterval = time.Millisecond
			n.run()
			path := n.add(n.pod)
			n.until(n.pod, isWell)
			c.fail(t, n, path)
			s := n.until(n.pod, has(c.reason))
			assert.Equal(t, PhaseMounted, s.Phase, "its pod is not taken from it")
			assert.NotZero(t, n.events.count(health.EventAbnormal))
			n.remove(n.pod)
			assert.NoDirExists(t, path)
		})
	}
}

// TestErrorsThatAFilesystemHasOnRecordAreTold while it goes on, and at once when it is mounted again.
func TestErrorsThatAFilesystemHasOnRecordAreTold(t *testing.T) {
	n := newDeviceNodeOf(t, "ext4", "-e", "continue")
	n.options.FilesystemCheckInterval = time.Millisecond
	m, stop := n.realNode.start(t)
	n.m = m
	m.PodsComplete()
	path := n.add(n.pod)
	n.until(n.pod, isWell)
	findError(t, n, path)
	s := n.until(n.pod, has(ReasonFilesystemErrors))
	require.Len(t, s.Conditions, 1)
	assert.Equal(t, volume.HealthDegraded, s.Conditions[0].Status)
	assert.Contains(t, s.Conditions[0].Message, "1 errors on record, the last one in trigger_test_error at 2")
	n.remove(n.pod)
	stop()

	n.options.FilesystemCheckInterval = time.Hour
	n.run()
	n.add(n.pod)
	n.until(n.pod, has(ReasonFilesystemErrors))
	n.remove(n.pod)
}

// TestAWriteThatHasFailedIsTold while the volume is mounted: an ext4 by what it complains of, others at the resync.
func TestAWriteThatHasFailedIsTold(t *testing.T) {
	for fsType, options := range map[string][]string{"ext4": {"-O", "^has_journal"}, "xfs": nil} {
		t.Run(fsType, func(t *testing.T) {
			n := newDeviceNodeOf(t, fsType, options...)
			n.options.FilesystemCheckInterval = time.Millisecond
			if fsType != "ext4" {
				n.options.Resync = 10 * time.Millisecond
			}
			n.run()
			path := n.add(n.pod)
			file, err := os.Create(filepath.Join(path, "f"))
			require.NoError(t, err)
			defer file.Close()
			n.until(n.pod, isWell)
			takeRoom(t, n)
			_, err = file.Write(bytes.Repeat([]byte("precious"), 1<<18))
			require.NoError(t, err, "it is in memory")
			_ = unix.SyncFileRange(int(file.Fd()), 0, 0, unix.SYNC_FILE_RANGE_WRITE|unix.SYNC_FILE_RANGE_WAIT_AFTER)
			s := n.until(n.pod, has(ReasonDataLost))
			assert.Equal(t, PhaseMounted, s.Phase)
			lost := n.m.Status().LostData
			require.NotEmpty(t, lost)
			assert.Equal(t, n.pod.UID, lost[0].PodUID)
			require.Error(t, lost[0].Err)
			require.NoError(t, file.Close())
			n.remove(n.pod)
		})
	}
}

// TestNothingIsWrittenToAFilesystemThatIsWell at a look: what is dirty stays so, however often.
func TestNothingIsWrittenToAFilesystemThatIsWell(t *testing.T) {
	n := newDeviceNodeOf(t, "ext4")
	counting := &countingSync{Mounter: n.mounter, looked: make(chan struct{})}
	n.options.Mounter, n.options.FilesystemCheckInterval = counting, time.Millisecond
	n.run()
	path := n.add(n.pod)
	require.NoError(t, os.WriteFile(filepath.Join(path, "f"), []byte("precious"), 0o600))
	for range 10 {
		<-counting.looked
	}
	assert.Zero(t, counting.syncs.Load())
	n.until(n.pod, isWell)
	n.remove(n.pod)
}

// countingSync counts the syncs of filesystems, and says that one is looked at.
type countingSync struct {
	*mount.Mounter
	syncs  atomic.Int64
	looked chan struct{}
}

func (c *countingSync) SyncFS(ctx context.Context, target string) error {
	c.syncs.Add(1)
	return c.Mounter.SyncFS(ctx, target)
}

func (c *countingSync) Report(ctx context.Context, found mount.MountPoint) (mount.FilesystemReport, error) {
	select {
	case c.looked <- struct{}{}:
	default: // the test does not wait for a report now
	}
	return c.Mounter.Report(ctx, found)
}

func shutDownAt(t *testing.T, _ deviceNode, path string) {
	t.Helper()
	shutDown(t, path)
}

// findError has an ext4 find an error in itself.
func findError(t *testing.T, n deviceNode, _ string) {
	t.Helper()
	trigger := filepath.Join("/sys/fs/ext4", filepath.Base(n.device.Path), "trigger_fs_error")
	require.NoError(t, os.WriteFile(trigger, []byte("a test asked for it"), 0))
}

// fillBelow leaves no room for the image, and has the filesystem write what needs some.
func fillBelow(t *testing.T, n deviceNode, path string) {
	t.Helper()
	takeRoom(t, n)
	require.NoError(t, os.WriteFile(filepath.Join(path, "f"), bytes.Repeat([]byte("precious"), 1<<18), 0o600))
	root, err := os.Open(path)
	require.NoError(t, err)
	defer root.Close()
	require.Error(t, unix.Syncfs(int(root.Fd())))
}

// takeRoom makes the filesystem below the image as small as what is in it.
func takeRoom(t *testing.T, n deviceNode) {
	t.Helper()
	below := filepath.Dir(n.image)
	var stat unix.Statfs_t
	require.NoError(t, unix.Statfs(below, &stat))
	used := (int64(stat.Blocks) - int64(stat.Bfree)) * stat.Bsize
	require.NoError(t, unix.Mount("", below, "", unix.MS_REMOUNT, fmt.Sprint("size=", used)))
}
