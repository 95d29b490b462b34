package cluster_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/cachetest"
	"github.com/volumekit/volumekit/internal/cluster"
	"github.com/volumekit/volumekit/volume"
)

// Of several nodes to which an exclusive volume is to be attached at the same time, one gets it. Meanwhile, other goroutines read the
// state, report, and add and delete nodes.
func TestOfManyWhoBeginAtOnceOneGetsTheVolume(t *testing.T) {
	const nodes, times = 8, 200
	a := newCluster(t, nil)
	var holders, won atomic.Int32
	var users, onlookers sync.WaitGroup
	stop := make(chan struct{})
	for i := range nodes {
		nodeName := types.NodeName(fmt.Sprint("n", i))
		a.AddNode(nodeName, "uid")
		users.Go(func() {
			for range times {
				attempt, err := a.BeginAttach(cluster.AttachRequest{VolumeName: cachetest.Shared("s1"), VolumeSpec: cachetest.RWO("s1"), NodeName: nodeName})
				if err != nil {
					continue
				}
				won.Add(1)
				assert.Equal(t, int32(1), holders.Add(1))
				assert.NoError(t, attempt.MarkVolumeAsAttached(cachetest.Shared("s1"), nil, nodeName, "/dev/x"))
				attempt.End()
				assert.NoError(t, a.SetVolumesInUse(nodeName, "uid", nil))
				assert.NoError(t, a.RemoveVolumeFromReportAsAttached(cachetest.Shared("s1"), nodeName))
				holders.Add(-1)
				a.MarkVolumeAsDetached(cachetest.Shared("s1"), nodeName)
			}
		})
	}
	onlookers.Go(func() { watchCluster(a, stop) })
	onlookers.Go(func() { comeAndGo(a, stop) })
	users.Wait()
	close(stop)
	onlookers.Wait()
	assert.Positive(t, won.Load())
	assert.Empty(t, a.NodesOfVolume(cachetest.Shared("s1")))
}

// watchCluster reads the state and reports until stop is closed.
func watchCluster(a *cluster.ActualStateOfWorld, stop <-chan struct{}) {
	for seen := 0; ; {
		select {
		case <-stop:
			return
		default:
		}
		for row := range a.AllAttachments() {
			seen += len(row.DevicePath) + int(row.AttachState) + int(row.InUse)
			for other := range a.AttachmentsOfNode(row.NodeName) {
				seen += len(other.VolumeName)
			}
		}
		for _, nodeName := range a.NodesToReport() {
			if r, ok := a.ReportChanges(nodeName); ok {
				a.ReportWritten(r)
			}
		}
	}
}

// comeAndGo adds and deletes a node with a volume until stop is closed.
func comeAndGo(a *cluster.ActualStateOfWorld, stop <-chan struct{}) {
	for life := 0; ; life++ {
		select {
		case <-stop:
			return
		default:
		}
		a.AddNode("comes", types.UID(fmt.Sprint(life)))
		_ = a.MarkVolumeAsAttached(cachetest.Shared("s2"), cachetest.RWX("s2"), "comes", "/dev/y")
		a.DeleteNode("comes", "")
		a.MarkVolumeAsDetached(cachetest.Shared("s2"), "comes")
	}
}

func TestPodsComeAndGoAtOnce(t *testing.T) {
	d := newDesiredCluster(t, &hooks{})
	var users sync.WaitGroup
	for i := range 4 {
		users.Go(func() {
			nodeName := []types.NodeName{nodeA, nodeB}[i%2]
			p := onNode(fmt.Sprint("p", i), nodeName)
			for range 200 {
				for _, name := range []string{"s1", "s2"} {
					_, err := d.AddPod(p, cachetest.RWX(name))
					assert.NoError(t, err)
				}
				for row := range d.AllVolumesToAttach() {
					at, ok := d.VolumeToAttach(row.VolumeName, row.NodeName)
					assert.Equal(t, ok, len(at.ScheduledPods) > 0)
				}
				d.DeletePod(volume.GetUniquePodName(p))
			}
		})
	}
	users.Wait()
	var left []v1.UniqueVolumeName
	for row := range d.AllVolumesToAttach() {
		left = append(left, row.VolumeName)
	}
	assert.Empty(t, left)
}
