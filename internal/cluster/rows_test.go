package cluster

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/cachetest"
	"github.com/volumekit/volumekit/internal/rows"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

func claimSpec(name string, mode v1.PersistentVolumeAccessMode) *volume.Spec {
	return volume.NewSpecFromPersistentVolume(&v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1.PersistentVolumeSpec{AccessModes: []v1.PersistentVolumeAccessMode{mode}},
	}, false)
}

func exclusiveSpec(name string) *volume.Spec { return claimSpec(name, v1.ReadWriteOnce) }

func podOn(name, nodeName string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(name)}, Spec: v1.PodSpec{NodeName: nodeName}}
}

const rounds = 1000

// TestTheListsOfTheClustersDesiredState changes the state at random and holds every list against all rows.
func TestTheListsOfTheClustersDesiredState(t *testing.T) {
	d := NewDesiredStateOfWorld(cachetest.NewAnyPlugins(t), Options{})
	random := rand.New(rand.NewPCG(9, 10))
	for range rounds {
		changeClusterDesired(d, random)
		d.verify(t)
	}
	for node := range 3 {
		for i := range 3 {
			d.DeletePod(volume.UniquePodName(fmt.Sprint("n", node, "-pod", i)))
		}
	}
	d.verify(t)
	assert.Empty(t, d.nodes)
	assert.Empty(t, d.volumes)
	assert.Empty(t, d.pods)
}

func changeClusterDesired(d *DesiredStateOfWorld, random *rand.Rand) {
	nodeName := fmt.Sprint("n", random.IntN(3))
	p := podOn(fmt.Sprint(nodeName, "-pod", random.IntN(3)), nodeName)
	podName := volume.GetUniquePodName(p)
	volumeName := fmt.Sprint("s", random.IntN(4))
	unique := volume.GetUniqueVolumeName("example.com/any", volumeName)
	switch random.IntN(9) {
	case 0:
		d.DeletePod(podName)
	case 1, 2:
		d.DeletePodFromVolume(podName, unique, types.NodeName(nodeName))
	case 3:
		d.MarkMultiAttachErrorReported(unique, types.NodeName(nodeName))
	default:
		_, _ = d.AddPod(p, exclusiveSpec(volumeName))
	}
}

func (d *DesiredStateOfWorld) verify(t *testing.T) {
	t.Helper()
	byNode, byVolume := map[*wantedAttachment]bool{}, map[*wantedAttachment]bool{}
	podsOf := 0
	for name, list := range d.nodes {
		require.NotEmpty(t, list, "no node without a volume")
		require.True(t, slices.IsSortedFunc(list, func(a, b *wantedAttachment) int { return a.compareVolume(b.VolumeName) }))
		for _, w := range list {
			require.Equal(t, name, w.NodeName)
			byNode[w] = true
		}
	}
	for name, list := range d.volumes {
		require.NotEmpty(t, list)
		require.True(t, slices.IsSortedFunc(list, func(a, b *wantedAttachment) int { return a.compareNode(b.NodeName) }))
		for _, w := range list {
			require.Equal(t, name, w.VolumeName)
			require.NotEmpty(t, w.pods, "each row has a pod")
			require.Len(t, w.pods, w.PodCount)
			byVolume[w] = true
			podsOf += len(w.pods)
		}
	}
	require.Equal(t, byNode, byVolume)
	for name, list := range d.pods {
		require.NotEmpty(t, list)
		require.True(t, slices.IsSortedFunc(list, func(a, b *wantedAttachment) int { return a.compare(b.key()) }))
		for _, w := range list {
			require.True(t, byNode[w])
			require.True(t, slices.ContainsFunc(w.pods, func(p *v1.Pod) bool { return volume.GetUniquePodName(p) == name }))
			podsOf--
		}
	}
	require.Zero(t, podsOf)
}

// clusterModel knows by plain maps what the actual state should know.
type clusterModel struct {
	// status is what the nodes have been told, by node, and reports the report that is under way.
	status  map[types.NodeName]map[v1.UniqueVolumeName]string
	reports map[types.NodeName]NodeReport
	uids    map[types.NodeName]types.UID
	lives   int
}

// TestTheListsOfTheClustersActualState changes the state at random, by every method, and holds every list against all
// rows; what the nodes are told by reports of changes alone is what the whole report says.
func TestTheListsOfTheClustersActualState(t *testing.T) {
	a := NewActualStateOfWorld(cachetest.NewAnyPlugins(t), Options{})
	m := &clusterModel{status: map[types.NodeName]map[v1.UniqueVolumeName]string{}, reports: map[types.NodeName]NodeReport{}, uids: map[types.NodeName]types.UID{}}
	random := rand.New(rand.NewPCG(11, 12))
	for range 3 * rounds {
		m.change(a, random)
		a.verify(t)
		m.verify(t, a)
	}
	for _, name := range a.Nodes() {
		a.DeleteNode(name, "")
	}
	for row := range a.AllAttachments() {
		a.MarkVolumeAsDetached(row.VolumeName, row.NodeName)
	}
	a.verify(t)
	assert.Empty(t, a.table.nodes, "nodes that have gone leave nothing behind")
	assert.Empty(t, a.table.volumes)
	assert.Empty(t, a.table.unreported)
}

func (m *clusterModel) change(a *ActualStateOfWorld, random *rand.Rand) {
	node := types.NodeName(fmt.Sprint("n", random.IntN(3)))
	inner := fmt.Sprint("s", random.IntN(5))
	name := volume.GetUniqueVolumeName("example.com/any", inner)
	spec := exclusiveSpec(inner)
	if random.IntN(2) == 0 {
		spec = claimSpec(inner, v1.ReadWriteMany)
	}
	uid, _ := a.NodeUID(node)
	if random.IntN(2) == 0 {
		m.lives++
		uid = types.UID(fmt.Sprint("uid", m.lives)) // UIDs never come again.
	}
	switch random.IntN(20) {
	case 0:
		if uid != "" {
			a.AddNode(node, uid)
		}
	case 1:
		a.DeleteNode(node, uid)
	case 2, 3:
		if attempt, err := a.BeginAttach(AttachRequest{VolumeName: name, VolumeSpec: spec, NodeName: node, AttachLimit: 4}); err == nil {
			m.finish(attempt, random, name, spec, node)
		}
	case 4, 5, 6:
		_ = a.MarkVolumeAsAttached(name, spec, node, [...]string{"", "/dev/1", "/dev/2"}[random.IntN(3)])
	case 7:
		_ = a.MarkVolumeAsUncertain(name, nil, node)
	case 8:
		a.MarkVolumeAsDetached(name, node)
	case 9:
		_ = a.RemoveVolumeFromReportAsAttached(name, node)
	case 10:
		a.AddVolumeToReportAsAttached(name, node)
	case 11:
		_ = a.SetVolumesInUse(node, "", []v1.UniqueVolumeName{name})
	case 12:
		a.RequestDetach(name, node)
	case 13:
		a.CancelDetachRequest(name, node)
	case 14:
		a.AllowForcedDetach(name, node)
	case 15:
		_ = a.RecoverAttachment(operationexecutor.AttachedVolume{VolumeName: name, NodeName: node, DevicePath: "/dev/3"}, "")
	case 16:
		if r, ok := a.ReportChanges(node); ok {
			m.reports[node] = r
		}
	case 17, 18:
		m.write(a, node)
	default:
		m.recover(a, node)
	}
}

// finish ends an attempt: at once, with success, or in doubt.
func (m *clusterModel) finish(attempt *AttachAttempt, random *rand.Rand, name v1.UniqueVolumeName, spec *volume.Spec, node types.NodeName) {
	switch random.IntN(3) {
	case 0:
		_ = attempt.MarkVolumeAsAttached(name, spec, node, "/dev/4")
	case 1:
		_ = attempt.MarkVolumeAsUncertain(name, spec, node)
	}
	if random.IntN(4) > 0 {
		attempt.End()
	}
}

// write tells a node what the report says that was made some time ago.
func (m *clusterModel) write(a *ActualStateOfWorld, node types.NodeName) {
	r, ok := m.reports[node]
	if uid, there := a.NodeUID(node); !ok || !there || uid != r.NodeUID {
		return
	}
	if m.status[node] == nil {
		m.status[node], m.uids[node] = map[v1.UniqueVolumeName]string{}, r.NodeUID
	}
	for _, at := range r.Attached {
		m.status[node][at.Name] = at.DevicePath
	}
	for _, name := range r.Withdrawn {
		delete(m.status[node], name)
	}
	delete(m.reports, node)
	a.ReportWritten(r)
}

// recover reads the node's status anew.
func (m *clusterModel) recover(a *ActualStateOfWorld, node types.NodeName) {
	uid, there := a.NodeUID(node)
	if !there {
		return
	}
	object := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: string(node), UID: uid}}
	for name, path := range m.status[node] {
		object.Status.VolumesAttached = append(object.Status.VolumesAttached, v1.AttachedVolume{Name: name, DevicePath: path})
	}
	_ = a.RecoverNode(object)
}

// verify holds what a node was told, with what it is still to be told, against what it should be told.
func (m *clusterModel) verify(t *testing.T, a *ActualStateOfWorld) {
	t.Helper()
	for name := range m.status {
		uid, there := a.NodeUID(name)
		if !there || uid != m.uids[name] {
			delete(m.status, name) // A node that comes again has a status of its own.
			delete(m.reports, name)
			m.uids[name] = uid
			continue
		}
		told := map[v1.UniqueVolumeName]string{}
		maps.Copy(told, m.status[name])
		changes, _ := a.ReportChanges(name)
		for _, at := range changes.Attached {
			told[at.Name] = at.DevicePath
		}
		for _, volumeName := range changes.Withdrawn {
			delete(told, volumeName)
		}
		all, _ := a.Report(name)
		want := map[v1.UniqueVolumeName]string{}
		for _, at := range all.Attached {
			want[at.Name] = at.DevicePath
		}
		require.Equal(t, want, told)
	}
}

// verify holds every list and every rule against the rows of all attachments.
func (a *ActualStateOfWorld) verify(t *testing.T) {
	t.Helper()
	counts, sum := map[types.NodeName]int{}, 0
	for name, list := range a.table.volumes {
		require.NotEmpty(t, list)
		require.True(t, slices.IsSortedFunc(list, func(a, b *attachmentRow) int { return a.compareNode(b.NodeName) }))
		for _, row := range list {
			node := a.table.nodes[row.NodeName]
			require.Equal(t, name, row.VolumeName)
			require.Same(t, row, rows.Find(node.attachments, name, (*attachmentRow).compareVolume))
			require.NotEqual(t, NotAttached, row.AttachState)
			require.True(t, row.AttachState != Attached || row.Reported, "what is certain is told")
			require.False(t, row.Reported && row.AttachState != Attached && row.AttachState != AttachUncertain)
			require.False(t, row.Reported && !node.present, "a node that has gone has no report")
			require.False(t, row.AttachState == Attached && row.NodeUID != node.uid, "nothing is inherited")
			require.Equal(t, row.AttachState == Attaching, row.attempt != nil)
			counts[row.NodeName]++
			sum++
		}
	}
	require.Len(t, slices.Collect(a.AllAttachments()), sum)
	var unreported []types.NodeName
	for name, node := range a.table.nodes {
		require.True(t, node.present || len(node.attachments) > 0, "no node without a reason")
		require.True(t, slices.IsSortedFunc(node.attachments, func(a, b *attachmentRow) int { return a.compareVolume(b.VolumeName) }))
		require.Len(t, node.attachments, counts[name])
		require.Equal(t, counts[name], a.AttachCount(name, "example.com/any"))
		require.False(t, !node.present && len(node.changes) > 0)
		if len(node.changes) > 0 {
			unreported = append(unreported, name)
		}
	}
	slices.Sort(unreported)
	require.Equal(t, unreported, a.NodesToReport())
}
