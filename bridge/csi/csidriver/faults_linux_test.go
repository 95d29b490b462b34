package csidriver

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/bridge/csi/internal/fakedriver"
	"github.com/volumekit/volumekit/volume"
)

// recordsDisk is a small filesystem that has the records of a node.
type recordsDisk struct {
	t    *testing.T
	path string
}

// onDisk mounts the filesystem.
func onDisk(n *node) recordsDisk {
	n.t.Helper()
	d := recordsDisk{n.t, n.plugin.node.mountPoints.records.dir}
	require.NoError(n.t, os.MkdirAll(d.path, 0o700))
	require.NoError(n.t, unix.Mount("records", d.path, "tmpfs", 0, "size=64k,nr_inodes=64"))
	n.t.Cleanup(func() { assert.NoError(n.t, unix.Unmount(d.path, unix.MNT_DETACH)) })
	return d
}

func (d recordsDisk) remount(flags uintptr, options string) {
	d.t.Helper()
	require.NoError(d.t, unix.Mount("", d.path, "", unix.MS_REMOUNT|flags, options))
}

// fill leaves no block free: a file can be created, and not written.
func (d recordsDisk) fill() {
	d.t.Helper()
	file, err := os.Create(filepath.Join(d.path, "filler"))
	require.NoError(d.t, err)
	for err == nil {
		_, err = file.Write(make([]byte, 4096))
	}
	require.ErrorIs(d.t, err, unix.ENOSPC)
	require.NoError(d.t, file.Close())
}

// A record that cannot be written stops the call before the driver is called. The error says what to do. The call after the fault is whole,
// and nothing is staged or published twice.
func TestARecordThatCannotBeWrittenStopsTheCall(t *testing.T) {
	for name, c := range map[string]struct {
		is            error
		advice        string
		breaks, mends func(recordsDisk)
	}{
		"no block": {
			unix.ENOSPC, "free space", recordsDisk.fill, func(d recordsDisk) { require.NoError(t, os.Remove(filepath.Join(d.path, "filler"))) },
		},
		"read-only": {
			unix.EROFS, "make it writable", func(d recordsDisk) { d.remount(unix.MS_RDONLY, "") }, func(d recordsDisk) { d.remount(0, "") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, withoutAttach(), nil)
			disk := onDisk(n)
			refused := func(call string, err error) {
				t.Helper()
				require.ErrorIs(t, err, c.is)
				require.ErrorIs(t, err, volume.ErrTransient)
				for _, text := range []string{disk.path, "vol-pv-1", c.advice} {
					require.ErrorContains(t, err, text)
				}
				assert.NotContains(t, n.Calls(), call)
			}
			c.breaks(disk)
			refused("NodeStageVolume", n.stageAlone())
			c.mends(disk)
			require.NoError(t, n.stageAlone())
			c.breaks(disk)
			refused("NodePublishVolume", n.setUp(t.Context()))
			c.mends(disk)
			require.NoError(t, n.setUp(t.Context()))

			c.breaks(disk)
			require.ErrorIs(t, n.setUp(t.Context()), volume.ErrTransient, "a repeated call leaves the volume as it is")
			assert.True(t, n.isMounted())
			assert.Equal(t, 1, n.Count("NodePublishVolume"))
			c.mends(disk)
			n.expectGone()
			assert.Equal(t, 1, n.Count("NodeStageVolume"))
		})
	}
}

// A record that cannot be removed stays: the volume counts as used, and the next teardown calls the driver again.
func TestARecordThatCannotBeRemovedStays(t *testing.T) {
	n := newNode(t, withoutAttach(), nil)
	disk := onDisk(n)
	require.NoError(t, n.stageAlone())
	require.NoError(t, n.setUp(t.Context()))
	for _, end := range []func() error{n.tearDown, n.unstage} {
		disk.remount(unix.MS_RDONLY, "")
		err := end()
		require.ErrorIs(t, err, unix.EROFS)
		require.ErrorIs(t, err, volume.ErrUncertain)
		require.ErrorContains(t, err, n.root)
		require.ErrorIs(t, n.tryDelete(n.spec), volume.ErrInUse)
		disk.remount(0, "")
		require.NoError(t, end())
	}
	assert.Equal(t, 2, n.Count("NodeUnpublishVolume"))
	assert.Equal(t, 2, n.Count("NodeUnstageVolume"))
	n.expectGone()
	require.NoError(t, n.tryDelete(n.spec))
}

// A final refusal whose record cannot be removed is uncertain: the volume is torn down before it is forgotten.
func TestARefusalWhoseRecordStaysIsUncertain(t *testing.T) {
	n := newNode(t, withoutAttach(), nil)
	disk := onDisk(n)
	require.NoError(t, n.stageAlone())
	answers := make(chan struct{})
	n.Plan("NodePublishVolume", fakedriver.Fault{Code: codes.InvalidArgument, Hold: answers})
	ended := make(chan error, 1)
	go func() { ended <- n.setUp(t.Context()) }()
	require.Eventually(t, func() bool { return n.Count("NodePublishVolume") == 1 }, time.Minute, time.Millisecond)
	disk.remount(unix.MS_RDONLY, "")
	close(answers)
	require.ErrorIs(t, <-ended, volume.ErrUncertain)
	disk.remount(0, "")
	n.expectGone()
}

// Without a descriptor no record is written, read or found, and none counts as missing.
func TestRecordsWithoutADescriptor(t *testing.T) {
	r := records{dir: t.TempDir(), boot: "boot"}
	rec := record{Path: "/path", VolumeID: "vol", Kind: staged}
	_, err := r.write(rec)
	require.NoError(t, err)
	var before unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	none := before
	none.Cur = 0
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &none))
	_, writeErr := r.write(rec)
	_, known, readErr := r.read("/path")
	_, allErr := r.all(func(record) bool { return true })
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before))
	require.ErrorIs(t, writeErr, unix.EMFILE)
	require.ErrorIs(t, writeErr, volume.ErrTransient)
	require.ErrorIs(t, readErr, unix.EMFILE)
	require.ErrorContains(t, readErr, "limit of open files")
	assert.False(t, known)
	require.ErrorIs(t, allErr, unix.EMFILE)
	_, known, err = r.read("/path")
	require.NoError(t, err)
	assert.True(t, known)
}

// A call that is refused before the driver gets it says nothing of what an earlier call has left at the path: its error is not final, and
// a manager does not forget the volume.
func TestARefusedRepetitionIsNotFinal(t *testing.T) {
	n := newNode(t, withoutAttach(), nil)
	n.spec.PersistentVolume.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
	require.NoError(t, n.stageAlone())
	require.NoError(t, n.setUp(t.Context()))
	n.Update(func(o *fakedriver.Options) {
		o.Node = []csi.NodeServiceCapability_RPC_Type{csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME}
	})
	n.restart()
	require.Eventually(t, func() bool {
		return n.driver.Connect(t.Context()) == nil && !n.plugin.client.known().node[csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER]
	}, time.Minute, time.Millisecond)
	for _, call := range []func() error{n.stageAlone, func() error { return n.setUp(t.Context()) }} {
		err := call()
		require.ErrorIs(t, err, volume.ErrUnsupported)
		require.ErrorIs(t, err, volume.ErrTransient)
	}
	n.expectGone()
	err := n.stageAlone()
	require.ErrorIs(t, err, volume.ErrUnsupported)
	require.NotErrorIs(t, err, volume.ErrTransient, "nothing is on record")
}
