package loopblock_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount/format"
	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/volume"
)

// copyOf asks for a copy of a volume, of size.
func copyOf(source *volume.Spec, name, size string, parameters ...string) volume.VolumeOptions {
	options := claimOf(name, parameters...)
	options.PVC.Spec.DataSource = &v1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: source.Name()}
	options.PVC.Spec.VolumeMode = source.PersistentVolume.Spec.VolumeMode
	options.PVC.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse(size)
	options.Source = source.PersistentVolume
	return options
}

// over moves the images to a filesystem of its own, in an image of its own, until the end of the test.
func (n *node) over(fsType string) {
	n.t.Helper()
	n.overOf(fsType, "900Mi")
}

func (n *node) overOf(fsType, size string) {
	n.t.Helper()
	requireTool(n.t, fsType)
	options := claimOf("below", "fstype", fsType)
	options.PVC.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse(size)
	below, err := n.tryProvision(n.t.Context(), options)
	require.NoError(n.t, err)
	first, dir := n.plugin, n.stage(below)
	n.t.Cleanup(func() {
		unmounter, err := first.NewDeviceUnmounter()
		require.NoError(n.t, err)
		detacher, err := first.NewDetacher()
		require.NoError(n.t, err)
		ctx := context.WithoutCancel(n.t.Context())
		assert.NoError(n.t, unmounter.UnmountDevice(ctx, dir))
		assert.NoError(n.t, detacher.Detach(ctx, "below", nodeName))
	})
	n.images = filepath.Join(dir, "images")
	n.plugin = n.pluginOver(n.mounter)
}

// withFile returns a volume that holds a file, staged nowhere.
func (n *node) withFile(name string, parameters ...string) *volume.Spec {
	n.t.Helper()
	spec := n.provision(name, parameters...)
	n.stage(spec)
	write(n.t, filepath.Join(n.setUp(spec, "pod"), "file"), "of both")
	n.tearDown(spec, "pod")
	n.release(spec)
	return spec
}

// requireCopy sets both up at once, and sees that they hold the same and share nothing.
func (n *node) requireCopy(source, copied *volume.Spec) {
	n.t.Helper()
	if mounted := n.mountsAt(n.stagingPath(source)); len(mounted) == 0 {
		n.stage(source)
	}
	n.stage(copied)
	first, second := n.setUp(source, "first"), n.setUp(copied, "second")
	assertContent(n.t, filepath.Join(second, "file"), "of both")
	write(n.t, filepath.Join(first, "file"), "of the source")
	write(n.t, filepath.Join(second, "file"), "of the copy")
	assertContent(n.t, filepath.Join(first, "file"), "of the source")
	for pod, spec := range map[types.UID]*volume.Spec{"first": source, "second": copied} {
		n.tearDown(spec, pod)
		n.release(spec)
		n.stage(spec)
	}
	assertContent(n.t, filepath.Join(n.stagingPath(source), "file"), "of the source")
	assertContent(n.t, filepath.Join(n.stagingPath(copied), "file"), "of the copy")
	n.release(source)
	n.release(copied)
}

func TestCopyByteByByteOfEachFilesystem(t *testing.T) {
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			n := newNode(t)
			requireTool(t, fsType)
			source := n.withFile("source", "fstype", fsType)
			var told []loopblock.CopyProgress
			n.plugin = n.pluginWith(loopblock.Options{Mounter: n.mounter, Progress: func(p loopblock.CopyProgress) { told = append(told, p) }})
			copied, err := n.tryProvision(t.Context(), copyOf(source, "copy", "700Mi"))
			require.NoError(t, err)
			require.NotEmpty(t, told)
			last := told[len(told)-1]
			assert.Equal(t, last.Size, last.Done)
			assert.Equal(t, "source", last.Source)
			assert.Equal(t, "copy", last.Volume)
			assert.Equal(t, fsType, copied.PersistentVolume.Spec.CSI.FSType)
			assert.Less(t, blocks(t, n.image("copy")), int64(400<<20), "holes stay holes")
			assert.Equal(t, []string{"copy.img", "source.img"}, n.names())

			n.stage(copied)
			var fs unix.Statfs_t
			require.NoError(t, unix.Statfs(n.stagingPath(copied), &fs))
			assert.Greater(t, int64(fs.Blocks)*fs.Bsize, int64(500<<20), "it grows when it is staged")
			n.release(copied)
			n.requireCopy(source, copied)
		})
	}
}

func TestCopyOfWhatIsInUseTakesAFilesystemThatShares(t *testing.T) {
	n := newNode(t)
	source := n.withFile("source")
	n.stage(source)
	_, err := n.tryProvision(t.Context(), copyOf(source, "copy", "32Mi"))
	require.ErrorIs(t, err, volume.ErrInUse)
	require.ErrorContains(t, err, "read-only", "what to do")
	assert.Equal(t, []string{"source.img"}, n.names())
	n.release(source)

	readOnly := source.PersistentVolume.DeepCopy()
	readOnly.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadOnlyMany}
	reader := volume.NewSpecFromPersistentVolume(readOnly, false)
	n.stage(reader)
	copied, err := n.tryProvision(t.Context(), copyOf(source, "copy", "32Mi"))
	require.NoError(t, err, "no process can write to it")
	n.release(reader)
	n.requireCopy(source, copied)
}

// TestCopyOfWhatIsInUseIsSharedUntilItIsWrittenTo copies volumes that pods write to: what they have written is in the copy.
func TestCopyOfWhatIsInUseIsSharedUntilItIsWrittenTo(t *testing.T) {
	for below, fsTypes := range map[string][]string{"xfs": {"ext4", "xfs"}, "btrfs": {"ext4"}} {
		t.Run(below, func(t *testing.T) {
			n := newNode(t)
			n.over(below)
			for _, fsType := range fsTypes {
				source := n.provision("source-"+fsType, "fstype", fsType)
				n.stage(source)
				write(t, filepath.Join(n.setUp(source, "pod"), "file"), "of both")
				copied, err := n.tryProvision(t.Context(), copyOf(source, "copy-"+fsType, "32Mi"))
				require.NoError(t, err)
				n.tearDown(source, "pod")
				n.requireCopy(source, copied)

				_, err = n.tryProvision(t.Context(), copyOf(source, "whole-"+fsType, "32Mi", "preallocate", "true"))
				require.NoError(t, err)
				assert.GreaterOrEqual(t, blocks(t, n.image("whole-"+fsType)), int64(32<<20))
				n.stage(source)
				_, err = n.tryProvision(t.Context(), copyOf(source, "none", "32Mi", "preallocate", "true"))
				require.ErrorIs(t, err, volume.ErrInUse, "what is shared has not all of its space")
				n.release(source)
			}
		})
	}
}

func TestCopyOfABlockVolumeIsItsBytes(t *testing.T) {
	n := newNode(t)
	options := claimOf("source")
	mode := v1.PersistentVolumeBlock
	options.PVC.Spec.VolumeMode = &mode
	source, err := n.tryProvision(t.Context(), options)
	require.NoError(t, err)
	file, err := os.OpenFile(n.image("source"), os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = file.WriteAt([]byte("of both"), 5<<20)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	copied, err := n.tryProvision(t.Context(), copyOf(source, "copy", "32Mi"))
	require.NoError(t, err)
	assert.Equal(t, mode, *copied.PersistentVolume.Spec.VolumeMode)
	assert.Equal(t, sum(t, n.image("source")), sum(t, n.image("copy")))

	other := copyOf(source, "other", "32Mi")
	other.PVC.Spec.VolumeMode = nil
	_, err = n.plugin.NewProvisioner(other)
	require.ErrorIs(t, err, volume.ErrInfeasible, "another volumeMode")
}

func TestCopyThatIsBrokenOffLeavesNothing(t *testing.T) {
	n := newNode(t)
	source := n.withFile("source")
	ctx, end := context.WithCancelCause(t.Context())
	stops := errors.New("the controller stops")
	n.plugin = n.pluginWith(loopblock.Options{Mounter: n.mounter, Progress: func(loopblock.CopyProgress) { end(stops) }})
	_, err := n.tryProvision(ctx, copyOf(source, "copy", "32Mi"))
	require.ErrorIs(t, err, stops)
	assert.Equal(t, []string{"source.img"}, n.names())
	n.plugin = n.pluginOver(n.mounter)
	copied, err := n.tryProvision(t.Context(), copyOf(source, "copy", "32Mi"))
	require.NoError(t, err)
	n.requireCopy(source, copied)
}

func TestCopyOfWhatIsGone(t *testing.T) {
	n := newNode(t)
	source := n.withFile("source")
	options := copyOf(source, "copy", "16Mi")
	copied, err := n.tryProvision(t.Context(), options)
	require.NoError(t, err)
	assert.Equal(t, int64(32<<20), copied.PersistentVolume.Spec.Capacity.Storage().Value(), "no smaller than its source")
	require.NoError(t, n.tryDelete(source))
	options.Source = nil
	again, err := n.tryProvision(t.Context(), options)
	require.NoError(t, err, "it was made before")
	assert.Equal(t, copied.PersistentVolume.Spec.CSI, again.PersistentVolume.Spec.CSI)

	options.PVName = "another"
	_, err = n.tryProvision(t.Context(), options)
	require.ErrorIs(t, err, volume.ErrInfeasible)
	_, err = n.tryProvision(t.Context(), copyOf(source, "another", "32Mi"))
	require.ErrorIs(t, err, os.ErrNotExist)
	assert.Equal(t, []string{"copy.img"}, n.names())
}

func TestCopyHasTheFilesystemOfItsSource(t *testing.T) {
	n := newNode(t)
	source := n.withFile("source")
	_, err := n.plugin.NewProvisioner(copyOf(source, "copy", "32Mi", "fstype", "xfs"))
	require.ErrorIs(t, err, volume.ErrInfeasible)

	unknown := source.PersistentVolume.DeepCopy()
	unknown.Spec.CSI.FSType = ""
	options := copyOf(source, "copy", "400Mi", "fstype", "xfs")
	options.Source = unknown
	_, err = n.tryProvision(t.Context(), options)
	require.ErrorIs(t, err, volume.ErrInfeasible)
	require.NotErrorIs(t, err, format.ErrNoTool)
	assert.Equal(t, []string{"source.img"}, n.names())
}
