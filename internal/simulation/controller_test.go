package simulation_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/simulation/world"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// controller is the program under test that attaches and detaches for all nodes: the real executor, and the plainest state
// and reconciler that use it rightly.
type controller struct {
	p        *world.Process
	executor *operationexecutor.Executor
	bug      bug

	mu          sync.Mutex
	attachments map[attachment]*attached
}

// attachment is a volume and a node.
type attachment struct {
	name v1.UniqueVolumeName
	node types.NodeName
}

func (a attachment) compare(b attachment) int {
	return strings.Compare(string(a.name)+"@"+string(a.node), string(b.name)+"@"+string(b.node))
}

// attached is a volume that is, or may be, attached to a node.
type attached struct {
	spec      *volume.Spec
	state     world.State
	withdrawn bool
}

var (
	_ world.Engine                                        = (*controller)(nil)
	_ operationexecutor.ActualStateOfWorldAttacherUpdater = (*controller)(nil)
	_ operationexecutor.VolumeNodes                       = (*controller)(nil)
	_ operationexecutor.AttachmentReporter                = (*controller)(nil)
)

func startController(p *world.Process, b bug) *controller {
	c := &controller{p: p, bug: b, attachments: map[attachment]*attached{}}
	options := operationexecutor.GeneratorOptions{Plugins: p.Plugins(), Journal: p, NodeReader: p, Reporter: c}
	c.executor = operationexecutor.NewOperationExecutor(operationexecutor.NewOperationGenerator(options), executorOptions(p))
	for _, r := range p.Records() {
		c.attachments[attachment{r.Name, types.NodeName(r.Node)}] = &attached{spec: r.Spec, state: world.Uncertain}
	}
	return c
}

// Kick implements world.Engine. Operations are begun one after the other, so that those that wait for the same status wait
// in the same order each time.
func (c *controller) Kick() {
	wanted := c.wanted()
	for _, at := range c.known(wanted) {
		op, err := c.reconcile(at, wanted[at])
		var pending *volume.PendingError
		var backoff *volume.BackoffError
		if op == nil && err != nil && !errors.As(err, &pending) && !errors.As(err, &backoff) {
			panic(err)
		}
		synctest.Wait()
	}
	for _, node := range c.p.Nodes() {
		c.p.SetAttached(node, c.report(types.NodeName(node)))
	}
}

// wanted returns what should be attached.
func (c *controller) wanted() map[attachment]*volume.Spec {
	wanted := map[attachment]*volume.Spec{}
	for _, node := range c.p.Nodes() {
		for _, pod := range c.p.Wanted(node) {
			for _, v := range pod.Volumes {
				if c.p.Volume(v).Attachable {
					wanted[attachment{c.p.UniqueName(v, pod.Name), types.NodeName(node)}] = c.p.Spec(v)
				}
			}
		}
	}
	return wanted
}

// known returns all attachments that are wanted or known, sorted.
func (c *controller) known(wanted map[attachment]*volume.Spec) []attachment {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := slices.Concat(slices.Collect(maps.Keys(wanted)), slices.Collect(maps.Keys(c.attachments)))
	slices.SortFunc(all, attachment.compare)
	return slices.Compact(all)
}

func (c *controller) reconcile(at attachment, wanted *volume.Spec) (*operationexecutor.Operation, error) {
	c.mu.Lock()
	row, known := attached{}, false
	if a := c.attachments[at]; a != nil {
		row, known = *a, true
	}
	c.mu.Unlock()
	switch {
	case wanted != nil && row.state != world.Present:
		v := operationexecutor.VolumeToAttach{VolumeName: at.name, VolumeSpec: wanted, NodeName: at.node}
		return c.executor.AttachVolume(c.p.Context(), v, c)
	case wanted == nil && known:
		v := operationexecutor.AttachedVolume{
			VolumeName: at.name, VolumeSpec: row.spec, NodeName: at.node, PluginName: world.PluginName, PluginIsAttachable: true,
		}
		options := operationexecutor.DetachOptions{VerifySafeToDetach: !c.bug.detachesUnasked}
		return c.executor.DetachVolume(c.p.Context(), v, options, c)
	}
	return nil, nil
}

// report returns what a node is told is attached to it.
func (c *controller) report(node types.NodeName) map[v1.UniqueVolumeName]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	report := map[v1.UniqueVolumeName]string{}
	for at, row := range c.attachments {
		if at.node == node && row.state == world.Present && (!row.withdrawn || c.bug.withdrawsNothing) {
			report[at.name] = "/dev/" + row.spec.Name()
		}
	}
	return report
}

// ReportAttached implements operationexecutor.AttachmentReporter.
func (c *controller) ReportAttached(_ context.Context, node types.NodeName) error {
	return c.p.WriteAttached(string(node), func() map[v1.UniqueVolumeName]string { return c.report(node) })
}

func (c *controller) set(at attachment, spec *volume.Spec, state world.State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	row := c.attachments[at]
	if row == nil {
		row = &attached{spec: spec}
		c.attachments[at] = row
	}
	row.state = state
	if state == world.Present {
		row.withdrawn = false
	}
}

// MarkVolumeAsAttached implements the attacher updater.
func (c *controller) MarkVolumeAsAttached(name v1.UniqueVolumeName, spec *volume.Spec, node types.NodeName, _ string) error {
	c.set(attachment{name, node}, spec, world.Present)
	return nil
}

// MarkVolumeAsUncertain implements the attacher updater.
func (c *controller) MarkVolumeAsUncertain(name v1.UniqueVolumeName, spec *volume.Spec, node types.NodeName) error {
	c.set(attachment{name, node}, spec, world.Uncertain)
	return nil
}

// MarkVolumeAsDetached implements the attacher updater.
func (c *controller) MarkVolumeAsDetached(name v1.UniqueVolumeName, node types.NodeName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.attachments, attachment{name, node})
}

// RemoveVolumeFromReportAsAttached implements the attacher updater.
func (c *controller) RemoveVolumeFromReportAsAttached(name v1.UniqueVolumeName, node types.NodeName) error {
	c.withdraw(attachment{name, node}, true)
	return nil
}

// AddVolumeToReportAsAttached implements the attacher updater.
func (c *controller) AddVolumeToReportAsAttached(name v1.UniqueVolumeName, node types.NodeName) {
	c.withdraw(attachment{name, node}, false)
}

func (c *controller) withdraw(at attachment, withdrawn bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if row := c.attachments[at]; row != nil {
		row.withdrawn = withdrawn
	}
}

// NodesOfVolume implements operationexecutor.VolumeNodes.
func (c *controller) NodesOfVolume(name v1.UniqueVolumeName) []types.NodeName {
	c.mu.Lock()
	defer c.mu.Unlock()
	var nodes []types.NodeName
	for at, row := range c.attachments {
		if at.name == name && (row.state == world.Present || !c.bug.countsCertainNodes) {
			nodes = append(nodes, at.node)
		}
	}
	slices.Sort(nodes)
	return nodes
}

// Verify implements world.Engine.
func (c *controller) Verify() {
	byNode := map[types.NodeName][]operationexecutor.AttachedVolume{}
	for _, at := range c.known(nil) {
		c.mu.Lock()
		spec := c.attachments[at].spec
		c.mu.Unlock()
		byNode[at.node] = append(byNode[at.node], operationexecutor.AttachedVolume{
			VolumeName: at.name, VolumeSpec: spec, NodeName: at.node, PluginName: world.PluginName, PluginIsAttachable: true,
		})
	}
	_, err := c.executor.VerifyVolumesAreAttached(c.p.Context(), byNode, c)
	must(err)
}

// Belief implements world.Engine.
func (c *controller) Belief() world.Belief {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := world.Belief{Attached: map[world.At]world.State{}}
	for at, row := range c.attachments {
		b.Attached[world.At{Node: string(at.node), Volume: c.p.Inner(at.name)}] = row.state
	}
	return b
}

// InUse implements world.Engine: a controller has no status.
func (c *controller) InUse() []v1.UniqueVolumeName { return nil }

// ReportedInUse implements world.Engine.
func (c *controller) ReportedInUse([]v1.UniqueVolumeName) {}

// PodUpdated implements world.Engine.
func (c *controller) PodUpdated(string) {}

// MountLost implements world.Engine.
func (c *controller) MountLost(string, string) {}

// Stop implements world.Engine.
func (c *controller) Stop(ctx context.Context) error { return c.executor.Wait(ctx) }
