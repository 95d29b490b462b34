package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/journal"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
	"github.com/volumekit/volumekit/volumemanager/internal/simulationtest"
	sim "github.com/volumekit/volumekit/volumemanager/internal/world"
)

// simulatedCluster is what outlives the managers of a simulated world.
type simulatedCluster struct {
	t     *testing.T
	store *store.Memory
	nodes map[string]*simulatedNode
	// statuses is of those who write the objects of nodes.
	statuses sync.Mutex
	// late is how many kicks the orchestrator takes after a start, when all pods have been added, to say so.
	late int
	// ownStatus says that the orchestrators write what is in use into the status of their nodes themselves.
	ownStatus bool
	// order is the seed of the order in which the goroutines of a reconciler go on; zero: as they like.
	order uint64
	bug   simulatedBug
}

// simulatedNode is what outlives the manager on a node.
type simulatedNode struct {
	*simulatedCluster
	disk *simulatedDisk
}

// simulated is the real manager as the program of a node, and the orchestrator that tells it of pods: those that were wanted
// when it started one at each kick.
type simulated struct {
	node   *simulatedNode
	p      *sim.Process
	m      *Manager
	status *simulatedStatus
	// reports holds what an orchestrator that writes the status itself has to write; nil: the manager writes.
	reports *simulatedReporter
	ctx     context.Context //nolint:containedctx // It is the one of Run.
	cancel  context.CancelFunc
	ended   chan error
	life    sim.Life
	belief  sim.Belief

	given    map[string]*v1.Pod
	held     []string // wanted when the program started, and not added yet
	late     int
	complete bool
	// catchingUp says that records are being written again.
	catchingUp atomic.Bool
}

var (
	_ sim.Engine   = (*simulated)(nil)
	_ sim.Resyncer = (*simulated)(nil)

	_ sim.StatusWriter = (*simulated)(nil)
	_ sim.Restarter    = (*simulated)(nil)
	_ sim.Remaker      = (*simulated)(nil)
)

// inTurn delays the begin of each operation until the goroutines that run are blocked: operations that end at once would
// otherwise race with the workers that begin others at the same time.
type inTurn struct {
	operationexecutor.Observer

	p *sim.Process
}

// OperationStarted implements operationexecutor.Observer. The time is the bubble's.
func (o inTurn) OperationStarted(info operationexecutor.OperationInfo) {
	time.Sleep(o.turn(info))
	o.Observer.OperationStarted(info)
}

// turn is another one for each operation that may run beside others.
func (o inTurn) turn(info operationexecutor.OperationInfo) time.Duration {
	turn := 1 + 8*slices.Index(o.p.Storages(), o.p.Inner(info.VolumeName))
	if pod := string(info.PodName); pod != "" {
		turn += int(pod[len(pod)-1] - '0')
	}
	return time.Duration(turn)
}

// comeToRest returns when everything has, operations that wait for their turn too.
func comeToRest() {
	pass(10 * time.Microsecond)
}

// simulatedOrchestrator says how the orchestrator behaves.
type simulatedOrchestrator struct {
	late      int
	ownStatus bool
	order     uint64
}

func newSimulatedCluster(t *testing.T, o simulatedOrchestrator, bug simulatedBug) *simulatedCluster {
	t.Helper()
	return &simulatedCluster{
		t: t, store: store.NewMemory(store.MemoryOptions{}), nodes: map[string]*simulatedNode{}, late: o.late, ownStatus: o.ownStatus, order: o.order, bug: bug,
	}
}

// start begins a life of the program on a node.
func (c *simulatedCluster) start(p *sim.Process) sim.Engine {
	c.t.Helper()
	if p.Node() == sim.Controller {
		return simulationtest.StartController(p, simulationtest.ControllerBug{})
	}
	if c.nodes[p.Node()] == nil {
		c.nodes[p.Node()] = &simulatedNode{simulatedCluster: c, disk: newSimulatedDisk(c.bug)}
	}
	return c.nodes[p.Node()].start(p)
}

// claim binds a claim to the volume of its name, once.
func (c *simulatedCluster) claim(spec *volume.Spec, grows bool) {
	c.t.Helper()
	name := spec.Name()
	pvc := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	pvc.Spec.VolumeName, pvc.Status.Phase = name, v1.ClaimBound
	pvc.Spec.VolumeMode, pvc.Spec.AccessModes = spec.PersistentVolume.Spec.VolumeMode, spec.PersistentVolume.Spec.AccessModes
	if grows {
		pvc.Status.Capacity = v1.ResourceList{v1.ResourceStorage: sim.Size(1)}
	}
	created, err := c.store.Create(c.t.Context(), pvc)
	if errors.Is(err, store.ErrAlreadyExists) {
		return
	}
	require.NoError(c.t, err)
	c.createVolume(spec, created.(*v1.PersistentVolumeClaim))
}

// createVolume makes the volume of a claim.
func (c *simulatedCluster) createVolume(spec *volume.Spec, claim *v1.PersistentVolumeClaim) {
	pv := spec.PersistentVolume.DeepCopy()
	pv.Spec.Capacity = claim.Status.Capacity
	pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
	_, err := c.store.Create(c.t.Context(), pv)
	must(err)
}

// start begins a life of the manager.
func (n *simulatedNode) start(p *sim.Process) sim.Engine {
	n.t.Helper()
	for _, v := range p.Volumes() {
		if !p.Volume(v).Inline {
			n.claim(p.Spec(v), p.Volume(v).Expands)
		}
	}
	s := &simulated{
		node: n, p: p, belief: sim.NewBelief(),
		status: &simulatedStatus{Store: n.store, p: p, turn: &n.statuses, blind: n.bug.blind, deaf: n.bug.deaf},
	}
	if n.ownStatus && p.HasController() {
		s.reports = &simulatedReporter{}
	}
	s.run(n.newManager(s))
	s.remember()
	return s
}

// run has the manager run.
func (s *simulated) run(m *Manager) {
	s.m, s.ended = m, make(chan error, 1)
	s.ctx, s.cancel = context.WithCancel(s.p.Context())
	if s.node.bug.completesEarly {
		m.PodsComplete()
	}
	go func(ctx context.Context, ended chan<- error) { ended <- m.Run(ctx) }(s.ctx, s.ended)
}

// remember has the pods that are wanted added one after the other.
func (s *simulated) remember() {
	s.given, s.held, s.late, s.complete = map[string]*v1.Pod{}, nil, s.node.late, false
	for _, pod := range s.p.Wanted(s.p.Node()) {
		s.held = append(s.held, pod.Name)
	}
}

// EndRun implements sim.Restarter.
func (s *simulated) EndRun() {
	s.cancel()
	s.life = sim.Ending
	s.given = map[string]*v1.Pod{}
}

// Life implements sim.Restarter.
func (s *simulated) Life() sim.Life { return s.life }

// succeed begins another manager when the one that was ended has returned, and its records can be had. Until then that one
// is asked what it believes.
func (s *simulated) succeed() {
	if s.life == sim.Ending {
		select {
		case err := <-s.ended:
			s.mustHaveEnded(err)
			s.life = sim.Ended
		default:
		}
	}
	if s.life != sim.Ended || s.catchingUp.Load() {
		return
	}
	old, next := s.m, s.node.newManager(s)
	s.run(next)
	comeToRest()
	select {
	case err := <-s.ended:
		require.ErrorIs(s.node.t, err, volume.ErrInUse)
		s.cancel()
		s.m = old
	default:
		s.life = sim.Running
		s.p.Forgets()
		s.remember()
		if s.node.bug.succeeds != nil {
			s.node.bug.succeeds(next)
		}
	}
}

// mustHaveEnded accepts how Run ends when its context does: it may leave calls behind.
func (s *simulated) mustHaveEnded(err error) {
	var left *operationexecutor.WaitError
	if !errors.As(err, &left) {
		require.NoError(s.node.t, err)
	}
}

func (n *simulatedNode) newManager(s *simulated) *Manager {
	n.t.Helper()
	p := s.p
	o := Options{
		Store: s.status, Mounter: p, Observer: inTurn{Observer: p.Observer(), p: p}, BlockMapper: p, DeviceUse: p, RuntimeDir: "/simulated/run", StateDir: "/simulated/state", Resync: -1,
		// What is left out of a wait at random would be another wait each time.
		Backoff: operationexecutor.Backoff{Max: sim.MaxBackoff, Infeasible: sim.MaxBackoff, Jitter: -1},
		Timeouts: operationexecutor.Timeouts{
			Attach: sim.Timeout, WaitForAttach: sim.Timeout, Detach: sim.Timeout, Mount: sim.Timeout, Unmount: sim.Timeout, UnmountDevice: sim.Timeout,
			Map: sim.Timeout, Unmap: sim.Timeout, UnmapDevice: sim.Timeout, NodeExpand: sim.Timeout,
		},
	}
	if p.HasController() {
		o.AttachedBy = AttachedByController
	}
	if s.reports != nil {
		o.VolumesInUse = s.reports
	}
	if n.bug.trusts {
		o.Mounter, o.NoMountChecks = nil, true
	}
	if hasReusable(p) {
		o.Mounter, o.NoMountChecks = simulatedTable{Process: p, stale: n.bug.stale}, false
	}
	m, err := New(p.Plugins(), o)
	require.NoError(n.t, err)
	m.root.Path = "" // Its disk is no directory.
	m.journal.Disk = journal.Disk{
		OpenDir: func(path string, _ record.Options) (journal.Dir, error) { return n.disk.open(p, path) },
		BootID:  func() (string, error) { return fmt.Sprintf("boot-%d", p.Boot()), nil },
	}
	if n.bug.change != nil {
		n.bug.change(m)
	}
	if n.order != 0 {
		(&simulatedOrder{p: p, seed: n.order, passed: map[string]int{}}).stopsAt(m.reconciler)
	}
	return m
}

// Expand implements sim.Expander.
func (s *simulated) Expand(name string, size int) {
	ctx, given := s.node.t.Context(), v1.ResourceList{v1.ResourceStorage: sim.Size(size)}
	claim, err := store.Get[*v1.PersistentVolumeClaim](ctx, s.node.store, "default", name)
	must(err)
	claim.Status.AllocatedResources = given
	claim.Status.AllocatedResourceStatuses = map[v1.ResourceName]v1.ClaimResourceStatus{v1.ResourceStorage: v1.PersistentVolumeClaimNodeResizePending}
	_, err = s.node.store.Update(ctx, claim)
	must(err)
	pv, err := store.Get[*v1.PersistentVolume](ctx, s.node.store, "", name)
	must(err)
	pv.Spec.Capacity = given
	_, err = s.node.store.Update(ctx, pv)
	must(err)
}

// DeleteVolume implements sim.Remaker.
func (s *simulated) DeleteVolume(name string) {
	must(s.node.store.Delete(s.node.t.Context(), store.Key{Kind: store.PersistentVolumes, Name: name}, store.Preconditions{}))
}

// CreateVolume implements sim.Remaker.
func (s *simulated) CreateVolume(name, storage string) {
	claim, err := store.Get[*v1.PersistentVolumeClaim](s.node.t.Context(), s.node.store, "default", name)
	must(err)
	s.node.createVolume(s.p.Spec(storage), claim)
}

// Kick implements sim.Engine: the orchestrator tells the manager what has changed.
func (s *simulated) Kick() {
	if s.life != sim.Running {
		s.succeed()
	}
	if s.life != sim.Running {
		return
	}
	select {
	case err := <-s.ended:
		panic(fmt.Sprintf("Run has returned: %v", err))
	default:
	}
	if s.p.HasController() {
		s.status.sync(s.p.Context(), s.p.Node())
	}
	wanted := s.p.Wanted(s.p.Node())
	s.removeAll(wanted)
	due := ""
	if len(s.held) > 0 {
		due, s.held = s.held[0], s.held[1:]
	}
	for _, pod := range wanted {
		_, has := s.given[pod.Name]
		if !has && (pod.Name == due || !slices.Contains(s.held, pod.Name)) {
			s.add(pod.Name)
		}
	}
	if due != "" || len(s.held) > 0 || s.complete {
		return
	}
	if s.late--; s.late < 0 {
		s.complete = true
		s.m.PodsComplete()
		comeToRest()
	}
}

// removeAll removes the pods that are not wanted any more, those that had not been added since the start too.
func (s *simulated) removeAll(wanted []sim.Pod) {
	var gone []string
	for _, name := range slices.Concat(s.held, s.names()) {
		if !slices.ContainsFunc(wanted, func(p sim.Pod) bool { return p.Name == name }) {
			gone = append(gone, name)
		}
	}
	for _, name := range gone {
		delete(s.given, name)
		s.held = slices.DeleteFunc(s.held, func(held string) bool { return held == name })
		s.p.Removed(name)
		require.NoError(s.node.t, s.m.RemovePod(s.p.Pod(name).UID))
		comeToRest()
	}
}

func (s *simulated) names() []string {
	names := make([]string, 0, len(s.given))
	for name := range s.given {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (s *simulated) add(name string) {
	pod := s.p.Pod(name)
	s.given[name] = pod
	s.p.Asks(name)
	require.NoError(s.node.t, s.m.AddPod(s.p.Context(), pod))
	comeToRest()
}

// PodUpdated implements sim.Engine.
func (s *simulated) PodUpdated(name string) {
	if s.given[name] == nil {
		return
	}
	pod := s.p.Pod(name)
	s.given[name] = pod
	s.p.Asks(name)
	require.NoError(s.node.t, s.m.UpdatePod(s.p.Context(), pod))
}

// Belief implements sim.Engine.
func (s *simulated) Belief() sim.Belief {
	b, node := s.belief, s.p.Node()
	clear(b.Attached)
	clear(b.Staged)
	clear(b.Mounted)
	clear(b.Ready)
	for _, row := range s.m.actual.GetAttachedVolumes() {
		at := sim.At{Node: node, Volume: s.p.Inner(row.VolumeName)}
		if row.PluginIsAttachable {
			b.Attached[at] = sim.State(row.AttachState)
		}
		if s.p.Volume(at.Volume).Stageable {
			b.Staged[at] = sim.State(row.DeviceMountState)
		}
	}
	for row := range s.m.actual.AllMountedVolumes() {
		b.Mounted[sim.At{Node: node, Volume: s.p.Inner(row.VolumeName), Pod: string(row.PodName)}] = sim.State(row.State)
	}
	for name, pod := range s.given {
		b.Ready[name] = s.isReady(pod)
	}
	return b
}

func (s *simulated) isReady(pod *v1.Pod) bool {
	if s.node.bug.readyTooSoon {
		return len(s.m.actual.GetMountedVolumesForPod(volume.GetUniquePodName(pod))) == len(pod.Spec.Volumes)
	}
	ready, err := s.m.view.isReady(pod.UID)
	return ready && err == nil
}

// WritesStatus implements sim.StatusWriter.
func (s *simulated) WritesStatus() bool { return s.reports == nil }

// InUse implements sim.Engine: it is for an orchestrator that writes the status of its node itself.
func (s *simulated) InUse() []v1.UniqueVolumeName {
	there, err := s.p.VolumesInUse(s.p.Context(), s.m.node())
	must(err)
	return s.reports.next(there)
}

// ReportedInUse implements sim.Engine.
func (s *simulated) ReportedInUse(names []v1.UniqueVolumeName) { s.m.MarkVolumesAsReportedInUse(names) }

// Verify implements sim.Engine: it is what the resync asks of the storage.
func (s *simulated) Verify() {
	if s.life != sim.Running {
		return
	}
	s.m.verifyAttached(s.ctx)
	comeToRest()
}

// Resync implements sim.Resyncer: it is what the resync does about records that could not be written. Each write waits for
// the driver.
func (s *simulated) Resync() {
	if s.life == sim.Running && s.m.journal.IsBehind() && s.catchingUp.CompareAndSwap(false, true) {
		m, ctx := s.m, s.ctx
		go func() {
			defer s.catchingUp.Store(false)
			m.journal.CatchUp(ctx)
		}()
	}
}

// MountLost implements sim.Engine: it is what the watch of the mount table says when it has looked.
func (s *simulated) MountLost(name, pod string) {
	if s.life != sim.Running {
		return
	}
	h := podvolume.Key{Volume: s.p.UniqueName(name, pod), Pod: volume.UniquePodName(pod)}
	if s.m.executor.IsOperationPending(operationexecutor.Key{Volume: h.Volume, Pod: h.Pod}) {
		return // Who changes it looks himself, and the watch looks again.
	}
	if s.m.actual.markUncertain(h) {
		s.m.reconciler.Add(h)
	}
}

// Stop implements sim.Engine.
func (s *simulated) Stop(ctx context.Context) error {
	s.cancel()
	select {
	case err := <-s.ended:
		return err
	case <-ctx.Done():
		return fmt.Errorf("run does not return: %w", context.Cause(ctx))
	}
}
