package cluster_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/cachetest"
	"github.com/volumekit/volumekit/internal/cluster"
	"github.com/volumekit/volumekit/volume"
)

func onNode(name string, nodeName types.NodeName) *v1.Pod {
	p := cachetest.Pod(name)
	p.Spec.NodeName = string(nodeName)
	return p
}

func newDesiredCluster(t *testing.T, h *hooks) *cluster.DesiredStateOfWorld {
	t.Helper()
	return cluster.NewDesiredStateOfWorld(cachetest.NewPlugins(t, &cachetest.Plugin{}), h.options())
}

func wants(t *testing.T, d *cluster.DesiredStateOfWorld, p *v1.Pod, specs ...*volume.Spec) {
	t.Helper()
	for _, s := range specs {
		name, err := d.AddPod(p, s)
		require.NoError(t, err)
		assert.Equal(t, cachetest.Shared(s.Name()), name)
	}
}

func uids(pods []*v1.Pod) (uids []types.UID) {
	for _, p := range pods {
		uids = append(uids, p.UID)
	}
	return uids
}

// moody changes its mind about what must be attached and staged.
type moody struct {
	*cachetest.Plugin
	not bool
}

func (m *moody) CanAttach(*volume.Spec) (bool, error)      { return !m.not, nil }
func (m *moody) CanDeviceMount(*volume.Spec) (bool, error) { return !m.not, nil }

// TestAVolumeThatNeedsNoAttachingAnyMoreIsNotWanted, under whatever name it was.
func TestAVolumeThatNeedsNoAttachingAnyMoreIsNotWanted(t *testing.T) {
	p := &moody{Plugin: &cachetest.Plugin{}}
	d := cluster.NewDesiredStateOfWorld(cachetest.NewPlugins(t, p), (&hooks{}).options())
	wants(t, d, onNode("p1", nodeA), cachetest.RWO("s1"))
	wants(t, d, onNode("p2", nodeA), cachetest.RWO("s1"))
	p.not = true
	name, err := d.AddPod(onNode("p1", nodeA), cachetest.RWO("s1"))
	require.NoError(t, err)
	assert.Empty(t, name)
	assert.False(t, d.PodExists("p1", cachetest.Shared("s1"), nodeA))
	assert.True(t, d.PodExists("p2", cachetest.Shared("s1"), nodeA), "nothing was said of it")
	_, err = d.AddPod(onNode("p2", nodeA), cachetest.RWO("s1"))
	require.NoError(t, err)
	assert.False(t, d.VolumeExists(cachetest.Shared("s1"), nodeA))
}

func TestAPodIsRemovedFromAllItsVolumesAtOnce(t *testing.T) {
	h := &hooks{}
	d := newDesiredCluster(t, h)
	wants(t, d, onNode("p1", nodeA), cachetest.RWO("s1"), cachetest.RWO("s2"), cachetest.RWO("s3"))
	wants(t, d, onNode("p2", nodeA), cachetest.RWO("s2"))
	h.take()
	assert.Equal(t, []v1.UniqueVolumeName{cachetest.Shared("s1"), cachetest.Shared("s2"), cachetest.Shared("s3")}, d.DeletePod("p1"))
	changed, _ := h.take()
	assert.Equal(t, []string{string(cachetest.Shared("s1")) + " a", string(cachetest.Shared("s2")) + " a", string(cachetest.Shared("s3")) + " a"}, changed)
	assert.False(t, d.VolumeExists(cachetest.Shared("s1"), nodeA))
	assert.True(t, d.VolumeExists(cachetest.Shared("s2"), nodeA), "another pod wants it")
	assert.False(t, d.PodExists("p1", cachetest.Shared("s2"), nodeA))
	assert.True(t, d.PodExists("p2", cachetest.Shared("s2"), nodeA))
	assert.Empty(t, slices.Collect(d.VolumesOfPod("p1")))
	assert.Empty(t, d.DeletePod("p1"))
	d.DeletePodFromVolume("p2", cachetest.Shared("s2"), nodeB)
	assert.True(t, d.VolumeExists(cachetest.Shared("s2"), nodeA))
	d.DeletePodFromVolume("p2", cachetest.Shared("s2"), nodeA)
	assert.False(t, d.VolumeExists(cachetest.Shared("s2"), nodeA))
}

func TestOneVolumeIsWantedOnTwoNodesByPodsOfEach(t *testing.T) {
	d := newDesiredCluster(t, &hooks{})
	specA, specB := cachetest.RWX("s1"), cachetest.RWX("s1")
	wants(t, d, onNode("p2", nodeA), specA)
	wants(t, d, onNode("p1", nodeA), specA)
	wants(t, d, onNode("p3", nodeB), specB)
	at := d.VolumesToAttach(cachetest.Shared("s1"))
	require.Len(t, at, 2)
	assert.Equal(t, nodeA, at[0].NodeName)
	assert.Same(t, specA, at[0].VolumeSpec)
	assert.Equal(t, []types.UID{"p1", "p2"}, uids(at[0].ScheduledPods))
	assert.Equal(t, nodeB, at[1].NodeName)
	assert.Same(t, specB, at[1].VolumeSpec)
	assert.Equal(t, []types.UID{"p3"}, uids(at[1].ScheduledPods))
	one, ok := d.VolumeToAttach(cachetest.Shared("s1"), nodeB)
	require.True(t, ok)
	assert.Equal(t, at[1], one)
	row := slices.Collect(d.VolumesOfNode(nodeA))[0]
	assert.Equal(t, cluster.WantedAttachment{
		VolumeName: cachetest.Shared("s1"), VolumeSpec: specA, PluginName: cachetest.PluginName, NodeName: nodeA, PodCount: 2,
	}, *row)
	assert.Len(t, slices.Collect(d.NodesOfVolume(cachetest.Shared("s1"))), 2)
	assert.Len(t, slices.Collect(d.AllVolumesToAttach()), 2)
	assert.Nil(t, d.VolumesToAttach(cachetest.Shared("s2")))
	_, ok = d.VolumeToAttach(cachetest.Shared("s2"), nodeA)
	assert.False(t, ok)
}

func TestAPodOfTheSameNameIsAnotherPod(t *testing.T) {
	d := newDesiredCluster(t, &hooks{})
	first, second := onNode("p", nodeA), onNode("p", nodeA)
	first.UID, second.UID = "uid-1", "uid-2"
	wants(t, d, first, cachetest.RWO("s1"))
	wants(t, d, second, cachetest.RWO("s1"))
	d.DeletePod(volume.GetUniquePodName(first))
	at, ok := d.VolumeToAttach(cachetest.Shared("s1"), nodeA)
	require.True(t, ok)
	assert.Equal(t, []types.UID{"uid-2"}, uids(at.ScheduledPods))
}

func TestThatAnotherNodeHasTheVolumeIsToldOnce(t *testing.T) {
	d := newDesiredCluster(t, &hooks{})
	assert.False(t, d.MarkMultiAttachErrorReported(cachetest.Shared("s1"), nodeA), "no pod needs it")
	wants(t, d, onNode("p1", nodeA), cachetest.RWO("s1"))
	wants(t, d, onNode("p3", nodeB), cachetest.RWO("s1"))
	assert.True(t, d.MarkMultiAttachErrorReported(cachetest.Shared("s1"), nodeA))
	assert.False(t, d.MarkMultiAttachErrorReported(cachetest.Shared("s1"), nodeA))
	at, _ := d.VolumeToAttach(cachetest.Shared("s1"), nodeA)
	assert.True(t, at.MultiAttachErrorReported)
	wants(t, d, onNode("p1", nodeA), cachetest.RWO("s1"))
	assert.False(t, d.MarkMultiAttachErrorReported(cachetest.Shared("s1"), nodeA), "the same pod was told")
	assert.True(t, d.MarkMultiAttachErrorReported(cachetest.Shared("s1"), nodeB), "the pods of each node are told")
	wants(t, d, onNode("p2", nodeA), cachetest.RWO("s1"))
	assert.True(t, d.MarkMultiAttachErrorReported(cachetest.Shared("s1"), nodeA), "the new pod was not told")
	d.DeletePod("p2")
	assert.False(t, d.MarkMultiAttachErrorReported(cachetest.Shared("s1"), nodeA))
}

func TestWhatNeedsNoAttachingIsNotKept(t *testing.T) {
	d := newDesiredCluster(t, &hooks{})
	name, err := d.AddPod(onNode("p1", nodeA), cachetest.RWO("local"))
	require.NoError(t, err)
	assert.Empty(t, name)
	assert.Empty(t, slices.Collect(d.AllVolumesToAttach()))
	for _, p := range []*v1.Pod{nil, cachetest.Pod("without-node"), {Spec: v1.PodSpec{NodeName: "a"}}} {
		_, err = d.AddPod(p, cachetest.RWO("s1"))
		require.ErrorIs(t, err, volume.ErrInvalid)
	}
	_, err = d.AddPod(onNode("p1", nodeA), nil)
	require.ErrorIs(t, err, volume.ErrInvalid)
	_, err = d.AddPod(onNode("p1", nodeA), volume.NewSpecFromVolume(&v1.Volume{Name: "s1"}))
	require.ErrorIs(t, err, volume.ErrNoPlugin)
}
