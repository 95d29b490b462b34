package loopblock_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/volume"
)

// attached is how many of specs are.
func (n *node) attached(specs []*volume.Spec) int {
	n.t.Helper()
	asked := map[v1.UniqueVolumeName]*volume.Spec{}
	for _, spec := range specs {
		asked[v1.UniqueVolumeName(spec.Name())] = spec
	}
	answer, err := n.attacher().VolumesAreAttached(n.t.Context(), asked, nodeName)
	require.NoError(n.t, err)
	count := 0
	for _, is := range answer {
		if is {
			count++
		}
	}
	return count
}

func TestNodeHoldsNoMoreVolumesThanItMay(t *testing.T) {
	n := newNode(t)
	specs := []*volume.Spec{n.provision("a"), n.provision("b"), n.provision("c")}
	const limit = int64(2)
	n.plugin = n.pluginWith(loopblock.Options{Mounter: n.mounter, MaxVolumes: limit})
	limits, err := n.plugin.GetVolumeLimits(t.Context())
	require.NoError(t, err)
	assert.Equal(t, map[string]int64{"attachable-volumes-csi-" + loopblock.Driver: limit}, limits)

	n.attach(specs[0])
	n.attach(specs[1])
	_, err = n.attacher().Attach(t.Context(), specs[2], nodeName)
	require.ErrorIs(t, err, volume.ErrAttachLimit)
	n.attach(specs[0]) // which has its device
	require.NoError(t, n.tryDetach(t.Context(), specs[0]))
	n.attach(specs[2])
}

func TestCallsAtOnceDoNotPassTheLimit(t *testing.T) {
	n := newNode(t)
	var specs []*volume.Spec
	for _, name := range []string{"a", "b", "c", "d"} {
		specs = append(specs, n.provision(name))
	}
	n.plugin = n.pluginWith(loopblock.Options{Mounter: n.mounter, MaxVolumes: 2})
	var group sync.WaitGroup
	for _, spec := range specs {
		t.Cleanup(func() { _ = n.tryDetach(context.WithoutCancel(t.Context()), spec) })
		group.Go(func() {
			_, err := n.attacher().Attach(t.Context(), spec, nodeName)
			if err != nil {
				assert.ErrorIs(t, err, volume.ErrAttachLimit)
			}
		})
	}
	group.Wait()
	assert.LessOrEqual(t, n.attached(specs), 2)
	for _, spec := range specs {
		require.NoError(t, n.tryDetach(t.Context(), spec))
	}
}

func TestWithoutALimitThereIsNone(t *testing.T) {
	limits, err := loopblock.New(loopblock.Options{}).GetVolumeLimits(t.Context())
	require.NoError(t, err)
	assert.Empty(t, limits)
}
