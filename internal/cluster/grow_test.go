package cluster_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/cachetest"
	"github.com/volumekit/volumekit/internal/cluster"
	"github.com/volumekit/volumekit/volume"
)

// TestNothingGrowsWithWhatIsGone: volumes, pods and nodes that came and went leave no memory behind.
func TestNothingGrowsWithWhatIsGone(t *testing.T) {
	live := lifeOfAnAttachment(t)
	assert.Less(t, cachetest.ObjectsOf(live), int64(1000), "fewer than one object of every three")
	runtime.KeepAlive(live)
}

func lifeOfAnAttachment(t *testing.T) func(i int) {
	plugins := cachetest.NewPlugins(t, &cachetest.Plugin{})
	d, a := cluster.NewDesiredStateOfWorld(plugins, cluster.Options{}), cluster.NewActualStateOfWorld(plugins, cluster.Options{})
	return func(i int) {
		inner, nodeName, uid := fmt.Sprint("s", i), types.NodeName(fmt.Sprint("node-", i)), types.UID(fmt.Sprint("uid-", i))
		a.AddNode(nodeName, uid)
		p := cachetest.Pod(fmt.Sprint("pod-", i))
		p.Spec.NodeName = string(nodeName)
		name, err := d.AddPod(p, cachetest.RWO(inner))
		require.NoError(t, err)
		require.NoError(t, a.MarkVolumeAsAttached(name, cachetest.RWO(inner), nodeName, "/dev/"+inner))
		report, ok := a.Report(nodeName)
		require.True(t, ok)
		a.ReportWritten(report)
		require.NoError(t, a.SetVolumesInUse(nodeName, uid, nil))

		d.DeletePod(volume.GetUniquePodName(p))
		require.NoError(t, a.RemoveVolumeFromReportAsAttached(name, nodeName))
		a.MarkVolumeAsDetached(name, nodeName)
		require.Equal(t, cluster.NotAttached, a.AttachState(name, nodeName))
		a.DeleteNode(nodeName, uid)
		require.Empty(t, a.Nodes())
	}
}
