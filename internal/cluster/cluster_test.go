package cluster_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/cachetest"
	"github.com/volumekit/volumekit/internal/cluster"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

const nodeA, nodeB = types.NodeName("a"), types.NodeName("b")

// hooks keeps the calls of the hooks of a state. Its methods may be called from several goroutines at once.
type hooks struct {
	mu      sync.Mutex
	changed []string // "volume node"
	reports []types.NodeName
}

func (h *hooks) options() cluster.Options {
	return cluster.Options{
		Changed: func(volumeName v1.UniqueVolumeName, nodeName types.NodeName) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.changed = append(h.changed, string(volumeName)+" "+string(nodeName))
		},
		ReportChanged: func(nodeName types.NodeName) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.reports = append(h.reports, nodeName)
		},
	}
}

// take returns the calls since the last take.
func (h *hooks) take() (changed []string, reports []types.NodeName) {
	h.mu.Lock()
	defer h.mu.Unlock()
	changed, reports = h.changed, h.reports
	h.changed, h.reports = nil, nil
	return changed, reports
}

// newCluster returns an actual state with the nodes a and b.
func newCluster(t *testing.T, h *hooks) *cluster.ActualStateOfWorld {
	t.Helper()
	if h == nil {
		h = &hooks{}
	}
	a := cluster.NewActualStateOfWorld(cachetest.NewPlugins(t, &cachetest.Plugin{}), h.options())
	a.AddNode(nodeA, "uid-a")
	a.AddNode(nodeB, "uid-b")
	return a
}

func attachTo(t *testing.T, a *cluster.ActualStateOfWorld, name string, nodeName types.NodeName, devicePath string) {
	t.Helper()
	require.NoError(t, a.MarkVolumeAsAttached(cachetest.Shared(name), cachetest.RWX(name), nodeName, devicePath))
}

func get(t *testing.T, a *cluster.ActualStateOfWorld, name string, nodeName types.NodeName) cluster.Attachment {
	t.Helper()
	row, ok := a.Attachment(cachetest.Shared(name), nodeName)
	require.True(t, ok)
	return row
}

// told returns the volumes in the report for a node, by name.
func told(t *testing.T, a *cluster.ActualStateOfWorld, nodeName types.NodeName) map[v1.UniqueVolumeName]string {
	t.Helper()
	r, ok := a.Report(nodeName)
	require.True(t, ok)
	paths := map[v1.UniqueVolumeName]string{}
	for _, at := range r.Attached {
		paths[at.Name] = at.DevicePath
	}
	return paths
}

func TestOneVolumeOnTwoNodesHasTwoDevicePathsAndTwoSpecs(t *testing.T) {
	a := newCluster(t, nil)
	specA, specB := cachetest.RWX("s1"), cachetest.RWX("s1")
	require.NoError(t, a.MarkVolumeAsAttached(cachetest.Shared("s1"), specA, nodeA, "/dev/a"))
	require.NoError(t, a.MarkVolumeAsAttached("", specB, nodeB, "/dev/b"), "the plugin knows the name")
	assert.Equal(t, "/dev/a", get(t, a, "s1", nodeA).DevicePath)
	assert.Equal(t, "/dev/b", get(t, a, "s1", nodeB).DevicePath)
	assert.Same(t, specA, get(t, a, "s1", nodeA).VolumeSpec)
	assert.Same(t, specB, get(t, a, "s1", nodeB).VolumeSpec)
	assert.Equal(t, map[v1.UniqueVolumeName]string{cachetest.Shared("s1"): "/dev/a"}, told(t, a, nodeA))
	assert.Equal(t, map[v1.UniqueVolumeName]string{cachetest.Shared("s1"): "/dev/b"}, told(t, a, nodeB))

	require.NoError(t, a.MarkVolumeAsUncertain(cachetest.Shared("s1"), nil, nodeB))
	row := get(t, a, "s1", nodeB)
	assert.Equal(t, cluster.AttachUncertain, row.AttachState)
	assert.Equal(t, "/dev/b", row.DevicePath, "doubt takes nothing away")
	assert.Same(t, specB, row.VolumeSpec)
	assert.Equal(t, cluster.Attached, a.AttachState(cachetest.Shared("s1"), nodeA), "what happens on one node is nothing to the other")
	assert.Equal(t, "/dev/a", get(t, a, "s1", nodeA).DevicePath)

	require.NoError(t, a.MarkVolumeAsAttached(cachetest.Shared("s1"), nil, nodeA, ""))
	assert.Equal(t, "/dev/a", get(t, a, "s1", nodeA).DevicePath)
	attachTo(t, a, "s1", nodeA, "/dev/a2")
	assert.Equal(t, "/dev/a2", get(t, a, "s1", nodeA).DevicePath)
	assert.Equal(t, "/dev/a2", told(t, a, nodeA)[cachetest.Shared("s1")])
}

func TestAnExclusiveVolumeIsAttachedToOneNodeUncertainCounted(t *testing.T) {
	a := newCluster(t, nil)
	toA := cluster.AttachRequest{VolumeName: cachetest.Shared("s1"), VolumeSpec: cachetest.RWO("s1"), NodeName: nodeA}
	toB := toA
	toB.NodeName = nodeB
	refused := func(because string) {
		t.Helper()
		_, err := a.BeginAttach(toB)
		var elsewhere *operationexecutor.MultiAttachError
		require.ErrorAs(t, err, &elsewhere, because)
		require.ErrorIs(t, err, volume.ErrInUse)
		assert.Equal(t, []types.NodeName{nodeA}, elsewhere.Nodes)
		assert.Equal(t, []types.NodeName{nodeA}, a.OtherNodesOfVolume(cachetest.Shared("s1"), nodeB))
		assert.Equal(t, cluster.NotAttached, a.AttachState(cachetest.Shared("s1"), nodeB), "a refusal leaves nothing behind")
	}
	attempt, err := a.BeginAttach(toA)
	require.NoError(t, err)
	refused("while it is being attached")
	assert.Empty(t, attempt.NodesOfVolume(cachetest.Shared("s1")), "an attempt of which nothing has come is no trace to itself")
	_, err = a.BeginAttach(toA)
	require.ErrorIs(t, err, cluster.ErrAttaching)
	require.NoError(t, attempt.MarkVolumeAsUncertain(cachetest.Shared("s1"), toA.VolumeSpec, nodeA))
	assert.Equal(t, []types.NodeName{nodeA}, attempt.NodesOfVolume(cachetest.Shared("s1")))
	attempt.End()
	refused("while it may be attached")
	again, err := a.BeginAttach(toA)
	require.NoError(t, err, "the node itself may try again")
	twice, err := a.BeginAttach(toA)
	require.NoError(t, err, "the executor runs one at a time")
	twice.End()
	refused("when one of two attempts has ended")
	require.NoError(t, again.MarkVolumeAsAttached(cachetest.Shared("s1"), toA.VolumeSpec, nodeA, "/dev/a"))
	again.End()
	refused("while it is attached")
	require.NoError(t, a.SetVolumesInUse(nodeA, "uid-a", nil))
	require.NoError(t, a.RemoveVolumeFromReportAsAttached(cachetest.Shared("s1"), nodeA))
	refused("while it is being detached")
	_, err = a.BeginAttach(toA)
	require.ErrorIs(t, err, cluster.ErrDetaching)
	a.DeleteNode(nodeA, "uid-a")
	refused("while its node has gone and it was not detached")
	a.MarkVolumeAsDetached(cachetest.Shared("s1"), nodeA)
	assert.Empty(t, a.NodesOfVolume(cachetest.Shared("s1")))
	_, err = a.BeginAttach(toB)
	require.NoError(t, err)
}

func TestASharedVolumeIsAttachedToManyNodesAndDetachedFromEachForItself(t *testing.T) {
	a := newCluster(t, nil)
	for _, nodeName := range []types.NodeName{nodeB, nodeA} {
		attempt, err := a.BeginAttach(cluster.AttachRequest{VolumeSpec: cachetest.RWX("s1"), NodeName: nodeName})
		require.NoError(t, err)
		require.NoError(t, attempt.MarkVolumeAsAttached(cachetest.Shared("s1"), cachetest.RWX("s1"), nodeName, ""))
		attempt.End()
	}
	assert.Equal(t, []types.NodeName{nodeA, nodeB}, a.NodesOfVolume(cachetest.Shared("s1")))
	require.NoError(t, a.SetVolumesInUse(nodeA, "", nil))
	require.NoError(t, a.SetVolumesInUse(nodeB, "", []v1.UniqueVolumeName{cachetest.Shared("s1")}))
	require.NoError(t, a.RemoveVolumeFromReportAsAttached(cachetest.Shared("s1"), nodeA), "that the other node uses it is nothing to this one")
	require.ErrorIs(t, a.RemoveVolumeFromReportAsAttached(cachetest.Shared("s1"), nodeB), volume.ErrInUse)
	a.MarkVolumeAsDetached(cachetest.Shared("s1"), nodeA)
	assert.Equal(t, []types.NodeName{nodeB}, a.NodesOfVolume(cachetest.Shared("s1")))
	assert.Contains(t, told(t, a, nodeB), cachetest.Shared("s1"))
}

func TestAReportIsWithdrawnBeforeADetachAndComesBackWhenItFails(t *testing.T) {
	h := &hooks{}
	a := newCluster(t, h)
	attempt, err := a.BeginAttach(cluster.AttachRequest{VolumeSpec: cachetest.RWO("s1"), NodeName: nodeA})
	require.NoError(t, err)
	assert.Empty(t, told(t, a, nodeA), "what is not confirmed is not told")
	assert.Empty(t, a.NodesToReport())
	require.NoError(t, attempt.MarkVolumeAsAttached(cachetest.Shared("s1"), cachetest.RWO("s1"), nodeA, "/dev/a"))
	assert.Equal(t, []types.NodeName{nodeA}, a.NodesToReport())
	_, reports := h.take()
	assert.Equal(t, []types.NodeName{nodeA}, reports)

	published, ok := a.Report(nodeA)
	require.True(t, ok)
	a.ReportWritten(published)
	assert.Empty(t, a.NodesToReport())
	require.NoError(t, a.SetVolumesInUse(nodeA, "uid-a", nil))
	h.take()

	require.NoError(t, a.RemoveVolumeFromReportAsAttached(cachetest.Shared("s1"), nodeA))
	changes, ok := a.ReportChanges(nodeA)
	require.True(t, ok)
	assert.Equal(t, []v1.UniqueVolumeName{cachetest.Shared("s1")}, changes.Withdrawn)
	assert.Empty(t, changes.Attached)
	assert.Empty(t, told(t, a, nodeA))
	changed, reports := h.take()
	assert.Equal(t, []string{string(cachetest.Shared("s1")) + " a"}, changed)
	assert.Equal(t, []types.NodeName{nodeA}, reports)
	require.NoError(t, a.RemoveVolumeFromReportAsAttached(cachetest.Shared("s1"), nodeA), "one that is withdrawn is no error")
	changed, reports = h.take()
	assert.Empty(t, changed)
	assert.Empty(t, reports)

	a.AddVolumeToReportAsAttached(cachetest.Shared("s1"), nodeA)
	assert.Contains(t, told(t, a, nodeA), cachetest.Shared("s1"))
	a.ReportWritten(changes)
	assert.Equal(t, []types.NodeName{nodeA}, a.NodesToReport(), "it came back after that report was made")
	back, _ := a.ReportChanges(nodeA)
	assert.Equal(t, []v1.AttachedVolume{{Name: cachetest.Shared("s1"), DevicePath: "/dev/a"}}, back.Attached)
	assert.Empty(t, back.Withdrawn)
	a.ReportWritten(back)
	_, ok = a.ReportChanges(nodeA)
	assert.False(t, ok)

	require.NoError(t, a.RemoveVolumeFromReportAsAttached(cachetest.Shared("s1"), nodeA))
	require.NoError(t, a.MarkVolumeAsUncertain(cachetest.Shared("s1"), nil, nodeA))
	a.AddVolumeToReportAsAttached(cachetest.Shared("s1"), nodeA)
	assert.Empty(t, told(t, a, nodeA), "what is in doubt is not told")
	require.ErrorIs(t, a.RemoveVolumeFromReportAsAttached(cachetest.Shared("s2"), nodeA), cluster.ErrNotAttached)
	a.AddVolumeToReportAsAttached(cachetest.Shared("s2"), nodeA)
	assert.Equal(t, cluster.NotAttached, a.AttachState(cachetest.Shared("s2"), nodeA))
}

func TestNothingIsDetachedThatTheNodeUses(t *testing.T) {
	a := newCluster(t, nil)
	attachTo(t, a, "s1", nodeA, "")
	attachTo(t, a, "s2", nodeA, "")
	withdraw := func(name string) error { return a.RemoveVolumeFromReportAsAttached(cachetest.Shared(name), nodeA) }

	err := withdraw("s1")
	var uses *cluster.NodeUsesVolumeError
	require.ErrorAs(t, err, &uses)
	assert.Equal(t, cluster.AssumedInUse, uses.InUse, "a new one is in use until the node says otherwise")
	require.NoError(t, a.SetVolumesInUse(nodeA, "uid-a", []v1.UniqueVolumeName{cachetest.Shared("s1"), cachetest.Shared("s-unknown")}))
	require.ErrorAs(t, withdraw("s1"), &uses)
	assert.Equal(t, cluster.ReportedInUse, uses.InUse)
	assert.Equal(t, []v1.UniqueVolumeName{cachetest.Shared("s1")}, a.VolumesInUse(nodeA))
	require.NoError(t, withdraw("s2"))
	assert.Contains(t, told(t, a, nodeA), cachetest.Shared("s1"), "a refusal changes nothing")

	require.NoError(t, a.MarkVolumeAsUncertain(cachetest.Shared("s2"), nil, nodeA))
	attachTo(t, a, "s2", nodeA, "")
	require.ErrorAs(t, withdraw("s2"), &uses, "it is told to the node again, which may begin to use it")

	a.AllowForcedDetach(cachetest.Shared("s1"), nodeA)
	assert.True(t, get(t, a, "s1", nodeA).ForcedDetachAllowed)
	require.NoError(t, withdraw("s1"))
	a.AddVolumeToReportAsAttached(cachetest.Shared("s1"), nodeA)
	a.CancelDetachRequest(cachetest.Shared("s1"), nodeA)
	require.ErrorIs(t, withdraw("s1"), volume.ErrInUse, "the leave is taken back")
	a.AllowForcedDetach(cachetest.Shared("s1"), nodeA)
	attachTo(t, a, "s1", nodeA, "")
	require.ErrorIs(t, withdraw("s1"), volume.ErrInUse, "who attaches it wants it")

	require.NoError(t, a.SetVolumesInUse(nodeA, "uid-a", nil))
	assert.Empty(t, a.VolumesInUse(nodeA), "what was used is not used any more")
	require.NoError(t, withdraw("s1"))
	require.NoError(t, a.SetVolumesInUse(nodeA, "uid-a", []v1.UniqueVolumeName{cachetest.Shared("s1")}))
	a.AddVolumeToReportAsAttached(cachetest.Shared("s1"), nodeA)

	require.ErrorIs(t, a.SetVolumesInUse(nodeA, "uid-of-another", nil), cluster.ErrNodeUnknown)
	require.ErrorIs(t, a.SetVolumesInUse("c", "", nil), cluster.ErrNodeUnknown)
	require.ErrorIs(t, withdraw("s1"), volume.ErrInUse, "another node says nothing of this one")
}

func TestADetachIsRequestedOnceAndStaysSoWhateverBecomesOfAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newCluster(t, nil)
		assert.Zero(t, a.RequestDetach(cachetest.Shared("s1"), nodeA))
		attachTo(t, a, "s1", nodeA, "")
		began := time.Now()
		assert.Equal(t, began, a.RequestDetach(cachetest.Shared("s1"), nodeA))
		time.Sleep(time.Minute)
		require.NoError(t, a.SetVolumesInUse(nodeA, "", nil))
		require.NoError(t, a.RemoveVolumeFromReportAsAttached(cachetest.Shared("s1"), nodeA))
		a.AddVolumeToReportAsAttached(cachetest.Shared("s1"), nodeA)
		require.NoError(t, a.MarkVolumeAsUncertain(cachetest.Shared("s1"), nil, nodeA))
		assert.Equal(t, began, a.RequestDetach(cachetest.Shared("s1"), nodeA))
		assert.Equal(t, began, get(t, a, "s1", nodeA).DetachRequestedSince)
		a.CancelDetachRequest(cachetest.Shared("s1"), nodeA)
		assert.Equal(t, time.Now(), a.RequestDetach(cachetest.Shared("s1"), nodeA))
		attachTo(t, a, "s1", nodeA, "")
		assert.Zero(t, get(t, a, "s1", nodeA).DetachRequestedSince, "it is wanted again")
	})
}

func TestADeletedNodeLeavesNothingBehindOnceItsVolumesAreDetached(t *testing.T) {
	h := &hooks{}
	a := newCluster(t, h)
	attachTo(t, a, "s1", nodeA, "/dev/a")
	attachTo(t, a, "s1", nodeB, "/dev/b")
	require.NoError(t, a.SetVolumesInUse(nodeA, "", []v1.UniqueVolumeName{cachetest.Shared("s1")}))
	h.take()
	a.DeleteNode(nodeA, "uid-of-another")
	assert.Equal(t, cluster.Attached, a.AttachState(cachetest.Shared("s1"), nodeA), "a late word of an earlier node changes nothing")
	a.DeleteNode(nodeA, "uid-a")
	changed, _ := h.take()
	assert.Equal(t, []string{string(cachetest.Shared("s1")) + " a"}, changed)

	row := get(t, a, "s1", nodeA)
	assert.Equal(t, cluster.AttachUncertain, row.AttachState, "the storage may still have it attached")
	assert.Equal(t, "/dev/a", row.DevicePath)
	assert.False(t, row.Reported)
	_, ok := a.Report(nodeA)
	assert.False(t, ok)
	assert.Equal(t, []types.NodeName{nodeB}, a.NodesToReport(), "a node that has gone has no report")
	require.ErrorIs(t, a.RemoveVolumeFromReportAsAttached(cachetest.Shared("s1"), nodeA), volume.ErrInUse, "its last word stands")
	require.ErrorIs(t, a.MarkVolumeAsAttached(cachetest.Shared("s1"), nil, nodeA, ""), cluster.ErrNodeUnknown)
	_, err := a.BeginAttach(cluster.AttachRequest{VolumeSpec: cachetest.RWX("s1"), NodeName: nodeA})
	require.ErrorIs(t, err, cluster.ErrNodeUnknown)
	assert.Equal(t, []types.NodeName{nodeA, nodeB}, a.Nodes())

	a.AllowForcedDetach(cachetest.Shared("s1"), nodeA)
	require.NoError(t, a.RemoveVolumeFromReportAsAttached(cachetest.Shared("s1"), nodeA))
	a.MarkVolumeAsDetached(cachetest.Shared("s1"), nodeA)
	assert.Equal(t, []types.NodeName{nodeB}, a.Nodes())
	assert.Zero(t, a.AttachCount(nodeA, cachetest.PluginName))
	a.DeleteNode(nodeA, "")
	a.MarkVolumeAsDetached(cachetest.Shared("s1"), nodeA)
	assert.Equal(t, []types.NodeName{nodeB}, a.Nodes(), "nor do late words bring it back")
	assert.Equal(t, "/dev/b", get(t, a, "s1", nodeB).DevicePath)
}

func TestANodeOfTheSameNameWithAnotherUIDInheritsNothing(t *testing.T) {
	a := newCluster(t, nil)
	attachTo(t, a, "s1", nodeA, "/dev/old")
	require.NoError(t, a.SetVolumesInUse(nodeA, "", nil))
	a.RequestDetach(cachetest.Shared("s1"), nodeA)
	a.AllowForcedDetach(cachetest.Shared("s1"), nodeA)
	attempt, err := a.BeginAttach(cluster.AttachRequest{VolumeSpec: cachetest.RWO("s2"), NodeName: nodeA, NodeUID: "uid-a"})
	require.NoError(t, err)
	old, _ := a.Report(nodeA)
	a.AddNode(nodeA, "uid-new")

	row := get(t, a, "s1", nodeA)
	assert.Equal(t, cluster.AttachUncertain, row.AttachState)
	assert.Equal(t, types.UID("uid-a"), row.NodeUID, "that is what it is known of")
	assert.False(t, row.Reported)
	assert.False(t, row.ForcedDetachAllowed)
	assert.Zero(t, row.DetachRequestedSince)
	assert.Equal(t, cluster.AssumedInUse, row.InUse)
	assert.Empty(t, told(t, a, nodeA))
	a.ReportWritten(old)
	changes, _ := a.ReportChanges(nodeA)
	assert.Equal(t, []v1.UniqueVolumeName{cachetest.Shared("s1"), cachetest.Shared("s2")}, changes.Withdrawn, "what was written for the old one was not told the new one")
	assert.Equal(t, types.UID("uid-new"), changes.NodeUID)

	require.ErrorIs(t, attempt.MarkVolumeAsAttached(cachetest.Shared("s2"), cachetest.RWO("s2"), nodeA, "/dev/old2"), cluster.ErrNodeUnknown,
		"the attempt was meant for the old one")
	require.NoError(t, attempt.MarkVolumeAsUncertain(cachetest.Shared("s2"), cachetest.RWO("s2"), nodeA))
	attempt.End()
	assert.Equal(t, cluster.AttachUncertain, a.AttachState(cachetest.Shared("s2"), nodeA))
	_, err = a.BeginAttach(cluster.AttachRequest{VolumeSpec: cachetest.RWO("s3"), NodeName: nodeA, NodeUID: "uid-a"})
	require.ErrorIs(t, err, cluster.ErrNodeUnknown)

	require.NoError(t, a.MarkVolumeAsAttached(cachetest.Shared("s1"), nil, nodeA, ""))
	row = get(t, a, "s1", nodeA)
	assert.Empty(t, row.DevicePath, "the path was the old node's")
	assert.Equal(t, types.UID("uid-new"), row.NodeUID)
	assert.Contains(t, told(t, a, nodeA), cachetest.Shared("s1"))
	a.DeleteNode(nodeA, "uid-a")
	assert.Equal(t, cluster.Attached, a.AttachState(cachetest.Shared("s1"), nodeA), "a late word of the old one changes nothing")
}

// TestANewObjectOfANodeProvesNothing: volumes that were attached under an earlier object of the node stay assumed in use. The empty
// list of a new object does not change that; a list that the node has written does.
func TestANewObjectOfANodeProvesNothing(t *testing.T) {
	a := newCluster(t, nil)
	attachTo(t, a, "s1", nodeA, "/dev/s1")
	require.NoError(t, a.SetVolumesInUse(nodeA, "uid-a", []v1.UniqueVolumeName{cachetest.Shared("s1")}))
	a.DeleteNode(nodeA, "uid-a")
	a.AddNode(nodeA, "uid-new")
	require.NoError(t, a.RecoverAttachment(operationexecutor.AttachedVolume{VolumeName: cachetest.Shared("s2"), NodeName: nodeA}, "uid-a"))
	require.NoError(t, a.RecoverAttachment(operationexecutor.AttachedVolume{VolumeName: cachetest.Shared("s3"), NodeName: nodeA}, "uid-new"))
	require.NoError(t, a.MarkVolumeAsAttached(cachetest.Shared("s1"), nil, nodeA, ""), "it is confirmed for the new object")
	require.NoError(t, a.SetVolumesInUse(nodeA, "uid-new", nil))
	assert.Equal(t, cluster.AssumedInUse, get(t, a, "s1", nodeA).InUse, "an empty list is what a new object has")
	assert.Equal(t, cluster.AssumedInUse, get(t, a, "s2", nodeA).InUse)
	assert.Equal(t, cluster.NotInUse, get(t, a, "s3", nodeA).InUse, "it came in this life")
	require.NoError(t, a.SetVolumesInUse(nodeA, "uid-new", []v1.UniqueVolumeName{cachetest.Shared("s1")}))
	assert.Equal(t, cluster.ReportedInUse, get(t, a, "s1", nodeA).InUse)
	assert.Equal(t, cluster.NotInUse, get(t, a, "s2", nodeA).InUse, "the node has written its list")
	require.NoError(t, a.SetVolumesInUse(nodeA, "uid-new", nil))
	assert.Equal(t, cluster.NotInUse, get(t, a, "s1", nodeA).InUse)

	require.NoError(t, a.RecoverAttachment(operationexecutor.AttachedVolume{VolumeName: cachetest.Shared("s4"), NodeName: "gone"}, "uid-1"))
	a.AddNode("gone", "uid-2")
	require.NoError(t, a.SetVolumesInUse("gone", "uid-2", nil))
	assert.Equal(t, cluster.AssumedInUse, get(t, a, "s4", "gone").InUse, "the record knows whose it was")
}

func TestTheLimitOfANodeCountsWhatIsBeingAttached(t *testing.T) {
	a := newCluster(t, nil)
	begin := func(name string) (*cluster.AttachAttempt, error) {
		return a.BeginAttach(cluster.AttachRequest{VolumeSpec: cachetest.RWX(name), NodeName: nodeA, AttachLimit: 2})
	}
	first, err := begin("s1")
	require.NoError(t, err)
	require.NoError(t, a.MarkVolumeAsUncertain(cachetest.Shared("s2"), nil, nodeA))
	assert.Equal(t, 2, a.AttachCount(nodeA, cachetest.PluginName))
	_, err = begin("s3")
	var full *cluster.AttachLimitError
	require.ErrorAs(t, err, &full)
	require.ErrorIs(t, err, cluster.ErrAttachLimit)
	assert.Equal(t, cluster.AttachLimitError{NodeName: nodeA, PluginName: cachetest.PluginName, Limit: 2, Count: 2}, *full)
	_, err = begin("s2")
	require.NoError(t, err, "what is there counts already")
	require.NoError(t, a.MarkVolumeAsUncertain("example.com/other/v", nil, nodeA))
	assert.Equal(t, 2, a.AttachCount(nodeA, cachetest.PluginName), "each plugin has its own limit")
	assert.Equal(t, 1, a.AttachCount(nodeA, "example.com/other"))
	assert.Zero(t, a.AttachCount(nodeB, cachetest.PluginName))

	first.End()
	first.End()
	assert.Equal(t, 1, a.AttachCount(nodeA, cachetest.PluginName))
	third, err := begin("s3")
	require.NoError(t, err)
	first.End()
	assert.Equal(t, cluster.Attaching, a.AttachState(cachetest.Shared("s3"), nodeA))
	third.End()
	fourth, err := begin("s3")
	require.NoError(t, err)
	third.End()
	assert.Equal(t, cluster.Attaching, a.AttachState(cachetest.Shared("s3"), nodeA), "an attempt ends itself and no other")
	fourth.End()
}

func TestWhatANodesStatusAndAttachmentsTellAfterARestartIsUncertain(t *testing.T) {
	h := &hooks{}
	a := cluster.NewActualStateOfWorld(cachetest.NewPlugins(t, &cachetest.Plugin{}), h.options())
	object := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: string(nodeA), UID: "uid-a"}, Status: v1.NodeStatus{
		VolumesAttached: []v1.AttachedVolume{{Name: cachetest.Shared("s1"), DevicePath: "/dev/1"}, {Name: cachetest.Shared("s2"), DevicePath: "/dev/2"}},
		VolumesInUse:    []v1.UniqueVolumeName{cachetest.Shared("s1")},
	}}
	require.NoError(t, a.RecoverNode(object))
	assert.Equal(t, cluster.AssumedInUse, get(t, a, "s1", nodeA).InUse, "the caller knows that the node wrote the list")
	assert.Equal(t, cluster.AssumedInUse, get(t, a, "s2", nodeA).InUse)
	require.NoError(t, a.SetVolumesInUse(nodeA, "uid-a", object.Status.VolumesInUse))
	require.NoError(t, a.RecoverAttachment(operationexecutor.AttachedVolume{
		VolumeName: cachetest.Shared("s1"), VolumeSpec: cachetest.RWO("s1"), NodeName: nodeA, DevicePath: "/dev/other",
	}, "uid-a"))
	require.NoError(t, a.RecoverAttachment(operationexecutor.AttachedVolume{VolumeName: cachetest.Shared("s3"), NodeName: nodeB}, ""))

	row := get(t, a, "s1", nodeA)
	assert.Equal(t, cluster.AttachUncertain, row.AttachState)
	assert.Equal(t, "/dev/1", row.DevicePath, "what is known is not overwritten")
	assert.Equal(t, cluster.ReportedInUse, row.InUse)
	assert.NotNil(t, row.VolumeSpec, "what is missing is filled in")
	assert.Equal(t, cachetest.PluginName, row.PluginName)
	assert.True(t, row.PluginIsAttachable)
	assert.Equal(t, cluster.NotInUse, get(t, a, "s2", nodeA).InUse)
	assert.Empty(t, a.NodesToReport(), "the status says what it said")
	assert.Equal(t, map[v1.UniqueVolumeName]string{cachetest.Shared("s1"): "/dev/1", cachetest.Shared("s2"): "/dev/2"}, told(t, a, nodeA))
	_, err := a.BeginAttach(cluster.AttachRequest{VolumeSpec: cachetest.RWO("s1"), NodeName: nodeA})
	require.NoError(t, err, "an attachment that is uncertain is made again")

	require.NoError(t, a.RemoveVolumeFromReportAsAttached(cachetest.Shared("s2"), nodeA))
	changes, _ := a.ReportChanges(nodeA)
	assert.Equal(t, []v1.UniqueVolumeName{cachetest.Shared("s2")}, changes.Withdrawn, "the status lists it still")
	a.MarkVolumeAsDetached(cachetest.Shared("s2"), nodeA)

	attachTo(t, a, "s1", nodeA, "/dev/new")
	require.NoError(t, a.RecoverNode(object))
	row = get(t, a, "s1", nodeA)
	assert.Equal(t, cluster.Attached, row.AttachState, "what is known is not doubted by an old status")
	assert.Equal(t, "/dev/new", row.DevicePath)

	assert.Equal(t, cluster.AssumedInUse, get(t, a, "s3", nodeB).InUse)
	_, ok := a.NodeUID(nodeB)
	assert.False(t, ok)
	a.AddNode(nodeB, "uid-b")
	assert.Equal(t, cluster.AttachUncertain, a.AttachState(cachetest.Shared("s3"), nodeB))
	a.SetVolumeSpec(cachetest.Shared("s3"), nodeB, cachetest.RWO("s3"))
	assert.NotNil(t, get(t, a, "s3", nodeB).VolumeSpec)
}

func TestOneBadEntryOfAStatusHidesNoOther(t *testing.T) {
	a := cluster.NewActualStateOfWorld(cachetest.NewPlugins(t, &cachetest.Plugin{}), cluster.Options{})
	err := a.RecoverNode(&v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: string(nodeA), UID: "uid-a"},
		Status: v1.NodeStatus{
			VolumesAttached: []v1.AttachedVolume{{Name: ""}, {Name: cachetest.Shared("s1")}},
		},
	})
	require.ErrorContains(t, err, string(nodeA))
	assert.Equal(t, cluster.AttachUncertain, a.AttachState(cachetest.Shared("s1"), nodeA))
}

func TestAStatusThatListsWhatIsNotToBeToldIsWrittenAnew(t *testing.T) {
	a := newCluster(t, nil)
	require.NoError(t, a.MarkVolumeAsUncertain(cachetest.Shared("s1"), cachetest.RWO("s1"), nodeA))
	require.NoError(t, a.RecoverNode(&v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: string(nodeA), UID: "uid-a"},
		Status:     v1.NodeStatus{VolumesAttached: []v1.AttachedVolume{{Name: cachetest.Shared("s1")}}},
	}))
	changes, ok := a.ReportChanges(nodeA)
	require.True(t, ok)
	assert.Equal(t, []v1.UniqueVolumeName{cachetest.Shared("s1")}, changes.Withdrawn)
}

func TestADanglingAttachmentBelongsToTheOtherNode(t *testing.T) {
	a := newCluster(t, nil)
	attempt, err := a.BeginAttach(cluster.AttachRequest{VolumeSpec: cachetest.RWO("s1"), NodeName: nodeA})
	require.NoError(t, err)
	require.NoError(t, attempt.MarkVolumeAsUncertain(cachetest.Shared("s1"), cachetest.RWO("s1"), "unknown"))
	attempt.End()
	assert.Equal(t, []types.NodeName{"unknown"}, a.NodesOfVolume(cachetest.Shared("s1")))
	_, err = a.BeginAttach(cluster.AttachRequest{VolumeSpec: cachetest.RWO("s1"), NodeName: nodeA})
	require.ErrorIs(t, err, volume.ErrInUse)
	a.MarkVolumeAsDetached(cachetest.Shared("s1"), "unknown")
	assert.Equal(t, []types.NodeName{nodeA, nodeB}, a.Nodes())
}

func TestWhatIsMissingIsRefused(t *testing.T) {
	a := newCluster(t, nil)
	require.ErrorIs(t, a.MarkVolumeAsAttached(cachetest.Shared("s1"), nil, "", ""), volume.ErrInvalid)
	_, err := a.BeginAttach(cluster.AttachRequest{VolumeName: cachetest.Shared("s1"), NodeName: nodeA})
	require.ErrorIs(t, err, volume.ErrInvalid)
	require.Error(t, a.MarkVolumeAsUncertain("", nil, nodeA))
	require.NoError(t, a.MarkVolumeAsUncertain("no-name-of-a-plugin", nil, nodeA), "what may be attached is kept")
	for _, text := range []string{
		(&cluster.NodeUsesVolumeError{VolumeName: "v", NodeName: "n", InUse: cluster.ReportedInUse}).Error(),
		(&cluster.AttachLimitError{NodeName: "n", PluginName: "v", Limit: 2, Count: 2}).Error(),
	} {
		assert.Contains(t, text, `"n"`)
		assert.Contains(t, text, `"v"`)
	}
}
