package simulationtest

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/cluster"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/world"
)

// controller is the program under test that attaches and detaches for all nodes: the real executor and the real state
// of a cluster, with the simplest reconciler that uses them correctly.
type controller struct {
	p        *world.Process
	executor *operationexecutor.Executor
	actual   *cluster.ActualStateOfWorld
	bug      ControllerBug
	// attempts are the attempts to attach whose operations had not ended at the last check.
	attempts map[*cluster.AttachAttempt]*operationexecutor.Operation
}

// ControllerBug is a bug that is planted into the controller. The zero value is none.
type ControllerBug struct {
	// DetachesUnasked detaches without asking the node whether it uses the volume. WithdrawsNothing does not tell the
	// node before a detach. CountsCertainNodes forgets nodes that may have a volume.
	DetachesUnasked, WithdrawsNothing, CountsCertainNodes bool
}

// attachment is a volume and a node.
type attachment struct {
	name v1.UniqueVolumeName
	node types.NodeName
}

func (a attachment) compare(b attachment) int {
	return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.node, b.node))
}

var (
	_ world.Engine                         = (*controller)(nil)
	_ operationexecutor.AttachmentReporter = (*controller)(nil)
)

// StartController starts the controller of a world.
func StartController(p *world.Process, b ControllerBug) world.Engine {
	c := &controller{
		p: p, bug: b, actual: cluster.NewActualStateOfWorld(p.Plugins(), cluster.Options{}),
		attempts: map[*cluster.AttachAttempt]*operationexecutor.Operation{},
	}
	options := operationexecutor.GeneratorOptions{Plugins: p.Plugins(), Journal: p, NodeReader: p, Reporter: c}
	c.executor = operationexecutor.NewOperationExecutor(operationexecutor.NewOperationGenerator(options), ExecutorOptions(p))
	c.recover()
	return c
}

// recover enters the attachments of the nodes' status and of the records, as uncertain.
func (c *controller) recover() {
	for _, name := range c.p.Nodes() {
		node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
		attached, _ := c.p.VolumesAttached(c.p.Context(), types.NodeName(name))
		for volumeName, path := range attached {
			node.Status.VolumesAttached = append(node.Status.VolumesAttached, v1.AttachedVolume{Name: volumeName, DevicePath: path})
		}
		must(c.actual.RecoverNode(node))
		inUse, _ := c.p.VolumesInUse(c.p.Context(), types.NodeName(name))
		must(c.actual.SetVolumesInUse(types.NodeName(name), node.UID, inUse))
	}
	for _, r := range c.p.Records() {
		must(c.actual.RecoverAttachment(operationexecutor.AttachedVolume{
			VolumeName: r.Name, VolumeSpec: r.Spec, NodeName: types.NodeName(r.Node), PluginName: world.PluginName, PluginIsAttachable: true,
		}, ""))
	}
}

// ExecutorOptions returns the options of an executor in a world.
func ExecutorOptions(p *world.Process) operationexecutor.ExecutorOptions {
	return operationexecutor.ExecutorOptions{
		Observer: p.Observer(),
		// A random part of a wait would differ between runs of one seed.
		Backoff: operationexecutor.Backoff{Max: world.MaxBackoff, Jitter: -1},
		Timeouts: operationexecutor.Timeouts{
			Attach: world.Timeout, Detach: world.Timeout, Mount: world.Timeout, Unmount: world.Timeout, UnmountDevice: world.Timeout,
			Map: world.Timeout, Unmap: world.Timeout, UnmapDevice: world.Timeout,
		},
	}
}

// must panics on an error that cannot occur.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// Kick implements world.Engine. It starts operations one after the other: those that wait for the same status wait in
// the same order in each run.
func (c *controller) Kick() {
	for attempt, op := range c.attempts {
		select {
		case <-op.Done():
			attempt.End()
			delete(c.attempts, attempt)
		default:
		}
	}
	for _, node := range c.p.Nodes() {
		inUse, _ := c.p.VolumesInUse(c.p.Context(), types.NodeName(node))
		must(c.actual.SetVolumesInUse(types.NodeName(node), types.UID(node), inUse))
	}
	wanted := c.wanted()
	for _, at := range c.known(wanted) {
		c.reconcile(at, wanted[at])
		synctest.Wait()
	}
	for _, node := range c.p.Nodes() {
		report, attached := c.report(node)
		c.p.SetAttached(node, attached)
		c.actual.ReportWritten(report)
	}
}

// wanted returns the attachments that should exist.
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
	var all []attachment
	for at := range wanted {
		all = append(all, at)
	}
	for row := range c.actual.AllAttachments() {
		all = append(all, attachment{row.VolumeName, row.NodeName})
	}
	slices.SortFunc(all, attachment.compare)
	return slices.Compact(all)
}

func (c *controller) reconcile(at attachment, wanted *volume.Spec) {
	row, known := c.actual.Attachment(at.name, at.node)
	switch {
	case wanted != nil && row.AttachState != cluster.Attached:
		c.attach(operationexecutor.VolumeToAttach{VolumeName: at.name, VolumeSpec: wanted, NodeName: at.node})
	case wanted == nil && known && row.AttachState != cluster.Attaching:
		if c.bug.DetachesUnasked {
			c.actual.AllowForcedDetach(at.name, at.node)
		}
		options := operationexecutor.DetachOptions{VerifySafeToDetach: !c.bug.DetachesUnasked}
		_, err := c.executor.DetachVolume(c.p.Context(), row.AttachedVolume, options, c.actual)
		mayWait(err)
	}
}

// attach starts to attach a volume, if the node may have it.
func (c *controller) attach(v operationexecutor.VolumeToAttach) {
	if c.bug.CountsCertainNodes {
		_, err := c.executor.AttachVolume(c.p.Context(), v, countsCertainNodes{c.actual})
		mayWait(err)
		return
	}
	attempt, err := c.actual.BeginAttach(cluster.AttachRequest{VolumeName: v.VolumeName, VolumeSpec: v.VolumeSpec, NodeName: v.NodeName})
	if err != nil {
		return // Another node has it, or it is being attached or detached here.
	}
	op, err := c.executor.AttachVolume(c.p.Context(), v, attempt)
	if err != nil {
		mayWait(err)
		attempt.End()
		return
	}
	c.attempts[attempt] = op
}

// mayWait accepts the errors of operations that cannot start now.
func mayWait(err error) {
	var pending *volume.PendingError
	var backoff *volume.BackoffError
	if err != nil && !errors.As(err, &pending) && !errors.As(err, &backoff) {
		panic(err)
	}
}

// countsCertainNodes is a state that forgets nodes that may have a volume.
type countsCertainNodes struct {
	*cluster.ActualStateOfWorld
}

func (s countsCertainNodes) NodesOfVolume(name v1.UniqueVolumeName) []types.NodeName {
	return slices.DeleteFunc(s.ActualStateOfWorld.NodesOfVolume(name), func(node types.NodeName) bool {
		return s.AttachState(name, node) != cluster.Attached
	})
}

// report returns the attached volumes for a node's status.
func (c *controller) report(node string) (cluster.NodeReport, map[v1.UniqueVolumeName]string) {
	report, _ := c.actual.Report(types.NodeName(node))
	attached := map[v1.UniqueVolumeName]string{}
	for _, v := range report.Attached {
		attached[v.Name] = v.DevicePath
	}
	if c.bug.WithdrawsNothing {
		for row := range c.actual.AttachmentsOfNode(types.NodeName(node)) {
			attached[row.VolumeName] = row.DevicePath
		}
	}
	return report, attached
}

// ReportAttached implements operationexecutor.AttachmentReporter.
func (c *controller) ReportAttached(_ context.Context, node types.NodeName) error {
	var report cluster.NodeReport
	err := c.p.WriteAttached(string(node), func() (attached map[v1.UniqueVolumeName]string) {
		report, attached = c.report(string(node))
		return attached
	})
	if err == nil {
		c.actual.ReportWritten(report)
	}
	return err
}

// Verify implements world.Engine.
func (c *controller) Verify() {
	byNode := map[types.NodeName][]operationexecutor.AttachedVolume{}
	for _, at := range c.known(nil) {
		row, _ := c.actual.Attachment(at.name, at.node)
		byNode[at.node] = append(byNode[at.node], row.AttachedVolume)
	}
	_, err := c.executor.VerifyVolumesAreAttached(c.p.Context(), byNode, c.actual)
	must(err)
	synctest.Wait()
}

// Belief implements world.Engine. A volume that is being attached may be attached.
func (c *controller) Belief() world.Belief {
	b := world.Belief{Attached: map[world.At]world.State{}}
	for row := range c.actual.AllAttachments() {
		state := world.Uncertain
		if row.AttachState == cluster.Attached {
			state = world.Present
		}
		b.Attached[world.At{Node: string(row.NodeName), Volume: c.p.Inner(row.VolumeName)}] = state
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
