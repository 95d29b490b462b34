package loopblock_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volume/volumetest"
)

const mebibyte = 1 << 20

// withImagesOn gives the images of a node a filesystem of their own with that many mebibytes.
func withImagesOn(t *testing.T, mib string) *node {
	n := newNode(t)
	require.NoError(t, os.MkdirAll(n.images, 0o700))
	require.NoError(t, unix.Mount("tmpfs", n.images, "tmpfs", 0, "size="+mib+"m"))
	n.cleanMount(n.images)
	return n
}

func (n *node) capacity(segment map[string]string, parameters ...string) volume.Capacity {
	n.t.Helper()
	capacity, err := n.plugin.GetCapacity(n.t.Context(), volume.CapacityOptions{Parameters: claimOf("", parameters...).Parameters, Segment: segment})
	require.NoError(n.t, err)
	return capacity
}

func TestCapacityTakesOffWhatSparseImagesMayStillWrite(t *testing.T) {
	n := withImagesOn(t, "200")
	capacity := n.capacity(nil)
	assert.EqualValues(t, 200*mebibyte, capacity.Available.Value())
	assert.EqualValues(t, 200*mebibyte, capacity.MaximumVolumeSize.Value())
	assert.EqualValues(t, 8*mebibyte, capacity.MinimumVolumeSize.Value())

	n.provision("sparse")
	n.provision("whole", "preallocate", "true")
	require.Less(t, blocks(t, n.image("sparse")), int64(32*mebibyte), "the image is not sparse, and proves nothing")
	assert.EqualValues(t, 136*mebibyte, n.capacity(nil).Available.Value())
	require.NoError(t, os.WriteFile(filepath.Join(n.images, "half.partial"), nil, 0o600))
	require.NoError(t, os.Truncate(filepath.Join(n.images, "half.partial"), 100*mebibyte))
	assert.EqualValues(t, 36*mebibyte, n.capacity(nil).Available.Value(), "an image that is being made has promised its size too")
	require.NoError(t, os.Truncate(filepath.Join(n.images, "half.partial"), 500*mebibyte))
	full := n.capacity(nil)
	assert.Zero(t, full.Available.Value(), "more is promised than there is")
	assert.Zero(t, full.MaximumVolumeSize.Value())
}

func TestCapacityBeforeTheFirstVolumeAndElsewhere(t *testing.T) {
	n := withImagesOn(t, "200")
	host, err := volume.NewHost(volume.HostOptions{RootDir: n.root, NodeName: nodeName})
	require.NoError(t, err)
	n.plugin = loopblock.New(loopblock.Options{BaseDir: filepath.Join(n.images, "not", "made")})
	require.NoError(t, n.plugin.Init(t.Context(), host))
	here := map[string]string{v1.LabelHostname: nodeName}
	assert.EqualValues(t, 200*mebibyte, n.capacity(here).Available.Value())
	assert.NoDirExists(t, filepath.Join(n.images, "not"))
	assert.EqualValues(t, 0, n.capacity(map[string]string{v1.LabelHostname: "elsewhere"}).Available.Value())
	large := n.capacity(here, "fstype", "xfs")
	assert.EqualValues(t, 300*mebibyte, large.MinimumVolumeSize.Value())
	assert.Zero(t, large.Available.Value(), "not even the smallest xfs fits")

	_, err = n.plugin.GetCapacity(t.Context(), volume.CapacityOptions{Segment: map[string]string{v1.LabelTopologyZone: "a"}})
	require.ErrorIs(t, err, volume.ErrUnsupported)
	_, err = n.plugin.GetCapacity(t.Context(), volume.CapacityOptions{Parameters: map[string]string{"fstype": "fat"}})
	require.ErrorIs(t, err, volume.ErrInvalid)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = n.plugin.GetCapacity(ended, volume.CapacityOptions{})
	require.ErrorIs(t, err, context.Canceled)
}

// A filesystem that no other process writes to keeps the rules for capacity.
func TestCapacityKeepsItsRules(t *testing.T) {
	mounttest.RequireRoot(t)
	requireTool(t, "ext4")
	n := withImagesOn(t, "500")
	config := volumetest.Config{
		NewPlugin:   func(testing.TB) volume.VolumePlugin { return loopblock.New(loopblock.Options{BaseDir: n.images}) },
		OwnCapacity: true, Lifetime: volumetest.LifetimeOfStorage, Shared: true,
	}
	for _, c := range volumetest.Cases() {
		if c.Group == "capacity" {
			t.Run(c.String(), func(t *testing.T) { c.Run(t, config) })
		}
	}
}
