package cluster

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/cachetest"
	"github.com/volumekit/volumekit/volume"
)

const perNode = 20

// filledCluster returns a desired and an actual state with nodes of which each has twenty volumes of its own, attached, told
// and not in use.
func filledCluster(t testing.TB, nodes int) (*DesiredStateOfWorld, *ActualStateOfWorld) {
	t.Helper()
	plugins := cachetest.NewAnyPlugins(t)
	d, a := NewDesiredStateOfWorld(plugins, Options{}), NewActualStateOfWorld(plugins, Options{})
	for i := range nodes {
		name := types.NodeName(fmt.Sprint("n", i))
		a.AddNode(name, "uid")
		for j := range perNode {
			spec := exclusiveSpec(fmt.Sprintf("s%d-%d", i, j))
			unique, err := d.AddPod(podOn(fmt.Sprint("pod", i, "-", j%2), string(name)), spec)
			require.NoError(t, err)
			require.NoError(t, a.MarkVolumeAsAttached(unique, spec, name, "/dev/x"))
		}
		r, _ := a.ReportChanges(name)
		a.ReportWritten(r)
		require.NoError(t, a.SetVolumesInUse(name, "uid", nil))
	}
	return d, a
}

// clusterWork is one kind of work on a state with at least one node.
type clusterWork struct {
	name string
	f    func()
}

// clusterWorks returns the work that a controller does for each change, and what it asks.
func clusterWorks(t testing.TB, d *DesiredStateOfWorld, a *ActualStateOfWorld) []clusterWork {
	t.Helper()
	spec, pod := exclusiveSpec("s-new"), podOn("new", "n0")
	name := volume.GetUniqueVolumeName("example.com/any", "s-new")
	first := volume.GetUniqueVolumeName("example.com/any", "s0-0")
	inUse := []v1.UniqueVolumeName{first}
	request := AttachRequest{VolumeName: name, VolumeSpec: spec, NodeName: "n0", NodeUID: "uid", AttachLimit: 100}
	seen := 0
	return []clusterWork{
		{"add and delete a pod", func() {
			_, _ = d.AddPod(pod, spec)
			d.DeletePod("new")
		}},
		{"attach, report, detach, report", func() {
			attempt, err := a.BeginAttach(request)
			if err != nil {
				t.Fatal(err)
			}
			_ = attempt.MarkVolumeAsAttached(name, spec, "n0", "/dev/new")
			attempt.End()
			reportAllOf(a)
			a.AllowForcedDetach(name, "n0")
			_ = a.RemoveVolumeFromReportAsAttached(name, "n0")
			reportAllOf(a)
			a.MarkVolumeAsDetached(name, "n0")
		}},
		{"doubt and certainty, report", func() {
			_ = a.MarkVolumeAsUncertain(first, nil, "n0")
			_ = a.MarkVolumeAsAttached(first, nil, "n0", "")
			reportAllOf(a)
		}},
		{"in use and not", func() {
			_ = a.SetVolumesInUse("n0", "uid", inUse)
			_ = a.SetVolumesInUse("n0", "uid", nil)
		}},
		{"in use as before", func() { _ = a.SetVolumesInUse("n0", "uid", nil) }},
		{"who else", func() { seen += len(a.OtherNodesOfVolume(first, "n0")) }},
		{"attachment", func() { _, _ = a.Attachment(first, "n0") }},
		{"nodes to report", func() { seen += len(a.NodesToReport()) }},
		{"count", func() { seen += a.AttachCount("n0", "example.com/any") }},
		{"of a node", func() {
			for row := range a.AttachmentsOfNode("n0") {
				seen += len(row.VolumeName)
			}
			for row := range d.VolumesOfNode("n0") {
				seen += len(row.VolumeName)
			}
		}},
		{"of a volume", func() {
			for row := range a.AttachmentsOfVolume(first) {
				seen += len(row.NodeName)
			}
			for row := range d.NodesOfVolume(first) {
				seen += len(row.NodeName)
			}
		}},
		{"of a pod", func() {
			for row := range d.VolumesOfPod("pod0-1") {
				seen += len(row.NodeName)
			}
		}},
		{"to attach", func() { _, _ = d.VolumeToAttach(first, "n0") }},
	}
}

// reportAllOf tells all nodes what has changed.
func reportAllOf(a *ActualStateOfWorld) {
	for _, name := range a.NodesToReport() {
		r, _ := a.ReportChanges(name)
		a.ReportWritten(r)
	}
}

// TestTheCostOfAChangeInAClusterDoesNotGrowWithIt counts what each change and each question allocates, with one node and
// with two hundred.
func TestTheCostOfAChangeInAClusterDoesNotGrowWithIt(t *testing.T) {
	cost := func(nodes int) map[string]float64 {
		d, a := filledCluster(t, nodes)
		costs := map[string]float64{}
		for _, w := range clusterWorks(t, d, a) {
			costs[w.name] = testing.AllocsPerRun(50, w.f)
		}
		return costs
	}
	assert.Equal(t, cost(1), cost(200))
}

// BenchmarkCluster does each work on a small cluster and on one with 5,000 nodes and 100,000 attachments.
func BenchmarkCluster(b *testing.B) {
	for _, nodes := range []int{50, 5000} {
		d, a := filledCluster(b, nodes)
		for _, w := range clusterWorks(b, d, a) {
			b.Run(fmt.Sprintf("%s/nodes=%d", w.name, nodes), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					w.f()
				}
			})
		}
		b.Run(fmt.Sprintf("all attachments/nodes=%d", nodes), func(b *testing.B) {
			b.ReportAllocs()
			seen := 0
			for b.Loop() {
				for row := range a.AllAttachments() {
					seen += len(row.VolumeName)
				}
			}
		})
	}
}
