package volumemanager

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/volume"
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
			n.options.FilesystemLook = time.Millisecond
			n.run()
			path := n.add(n.pod)
			n.until(n.pod, isWell)
			c.fail(t, n, path)
			s := n.until(n.pod, has(c.reason))
			assert.Equal(t, PhaseMounted, s.Phase, "its pod is not taken from it")
			assert.NotZero(t, n.events.count(EventVolumeConditionAbnormal))
			n.remove(n.pod)
			assert.NoDirExists(t, path)
		})
	}
}

// TestErrorsThatAFilesystemHasOnRecordAreTold while it goes on, and at once when it is mounted again.
func TestErrorsThatAFilesystemHasOnRecordAreTold(t *testing.T) {
	n := newDeviceNodeOf(t, "ext4", "-e", "continue")
	n.options.FilesystemLook = time.Millisecond
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

	n.options.FilesystemLook = time.Hour
	n.run()
	n.add(n.pod)
	n.until(n.pod, has(ReasonFilesystemErrors))
	n.remove(n.pod)
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
