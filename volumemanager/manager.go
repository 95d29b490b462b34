package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/changes"
	"github.com/volumekit/volumekit/volumemanager/internal/containers"
	"github.com/volumekit/volumekit/volumemanager/internal/expansion"
	"github.com/volumekit/volumekit/volumemanager/internal/health"
	"github.com/volumekit/volumekit/volumemanager/internal/journal"
	"github.com/volumekit/volumekit/volumemanager/internal/mountwatch"
	"github.com/volumekit/volumekit/volumemanager/internal/nodestatus"
	"github.com/volumekit/volumekit/volumemanager/internal/orphans"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
	"github.com/volumekit/volumekit/volumemanager/internal/populator"
	"github.com/volumekit/volumekit/volumemanager/internal/reconciler"
	"github.com/volumekit/volumekit/volumemanager/internal/recovery"
	"github.com/volumekit/volumekit/volumemanager/internal/retry"
	"github.com/volumekit/volumekit/volumemanager/internal/rootlock"
	"github.com/volumekit/volumekit/volumemanager/internal/stats"
)

// These are the sentinel errors of this package, beside [ErrClaimNotReady]. Match them with errors.Is.
var (
	// ErrStopped matches the error of a wait that ended because Run has ended. If Run could not begin, the error also matches
	// the error of Run.
	ErrStopped = errors.New("the volume manager has stopped")
	// ErrPodRemoved matches the error of a wait for a pod that was removed meanwhile.
	ErrPodRemoved = errors.New("the pod was removed")
	// ErrNotRecorded matches the error of an operation that did not begin because its intent could not be recorded: the
	// directory of records is full, is read-only or fails. Teardowns run all the same.
	ErrNotRecorded = journal.ErrNotRecorded
	// ErrRootReplaced matches the error of an operation, or of [Manager.ContainerMounts], if another directory than the one that
	// Run has locked, or none, is at the path of the root: it was moved or removed, or a mount hides it. Nothing is set up or torn
	// down then. When the directory is at its path again, all goes on by itself.
	ErrRootReplaced = rootlock.ErrReplaced
)

// Manager makes the volumes of pods available on one node. Make it with [New] and start it with Run. All methods may be
// called from several goroutines at once, before, during and after Run. The manager works on volumes only while Run runs.
type Manager struct {
	plugins    *volume.VolumePluginMgr
	options    Options
	desired    *cache.DesiredStateOfWorld
	actual     *actualState
	executor   *operationexecutor.Executor
	journal    *journal.Journal // nil: the manager keeps no records
	recovery   *recovery.Recovery
	root       *rootlock.Lock
	populator  *populator.Populator
	nodeStatus *nodestatus.Status // nil: this node attaches volumes itself
	expansion  *expansion.Tracker
	health     *health.Table
	watch      *mountwatch.Watch
	subpaths   *containers.Subpaths
	idMapper   idMapper
	orphans    *orphans.List
	stats      *stats.Collector

	reconciler *reconciler.Reconciler
	view       nodeView
	changes    changes.Hub
	run        *lifecycle
}

// New returns a manager that works with these plugins. It starts no goroutine and does no I/O. If the options are wrong, the
// error matches [volume.ErrInvalid].
func New(plugins *volume.VolumePluginMgr, o Options) (*Manager, error) {
	o = o.withMounter()
	binder := o.binder()
	o, err := o.withDefaults(binder)
	if err != nil {
		return nil, fmt.Errorf("volume manager: %w", err)
	}
	if plugins == nil || plugins.Host() == nil {
		return nil, fmt.Errorf("volume manager: give it plugins with a host: %w", volume.ErrInvalid)
	}
	o = o.withRecords(plugins.Host())
	m := &Manager{
		plugins: plugins,
		options: o,
		run:     newLifecycle(),
	}
	m.root = newRootLock(plugins.Host(), o)
	m.health = health.New(health.Options{Logger: o.Logger, Recorder: o.Recorder, Target: m.view.eventTarget, Changed: healthChanged(&m.changes)})
	m.desired = cache.NewDesiredStateOfWorld(plugins, cache.Options{
		Changed: func(name v1.UniqueVolumeName) { m.reconciler.Add(podvolume.Key{Volume: name}) },
		// The populator marks the volumes of a pod itself, once it knows the pod with them.
		PodChanged:   func(v1.UniqueVolumeName, volume.UniquePodName) {},
		SELinuxMount: o.SELinuxMount,
	})
	m.actual = &actualState{
		ActualStateOfWorld: cache.NewActualStateOfWorld(m.node(), plugins, cache.Options{
			Changed: m.changes.NotifyVolume,
		}),
		changes: &m.changes,
		forgot:  func(name v1.UniqueVolumeName, err error) { m.reconciler.Forgot(name, err) },
		made:    func(h podvolume.Key, path string) { m.watch.Made(h, path) },
		gone:    func(key podvolume.Key) { m.stats.Drop(key) },
	}
	m.stats = stats.New(stats.Options{
		Logger: o.Logger, Volumes: m.actual, PublicKeys: plugins.PublicKeys, Health: m.health,
		IsMount: func(path string) bool { return m.watch.IsMount(path) }, Measured: func(path string) { m.watch.Measured(path) },
	})
	m.journal = m.newJournal()
	m.orphans = orphans.New(m.orphanOptions())
	m.watch = mountwatch.New(m.watchOptions())
	m.expansion = expansion.New(expansion.Options{Plugins: plugins, Desired: m.desired, Actual: m.actual.ActualStateOfWorld, Retry: func(names []v1.UniqueVolumeName) { m.reconciler.RetryAll(names) }})
	m.nodeStatus = m.newNodeStatus()
	m.idMapper = o.idMapper(binder)
	m.subpaths = containers.NewSubpaths(binder, plugins.Host().GetPodsDir(), m.root.Check)
	m.recovery = recovery.New(m.recoveryOptions())
	m.populator = populator.New(m.populatorOptions())
	m.reconciler = m.newReconciler()
	m.executor = operationexecutor.NewOperationExecutor(operationexecutor.NewOperationGenerator(m.generatorOptions()), m.executorOptions())
	m.view = newView(m)
	return m, nil
}

func (m *Manager) watchOptions() mountwatch.Options {
	return mountwatch.Options{
		Mounter: m.options.Mounter, Host: m.plugins.Host(), CheckRoot: m.root.Check, Logger: m.options.Logger, Health: m.health,
		FilesystemCheckInterval: m.options.FilesystemCheckInterval, HungUnmount: mountwatch.HungUnmount(m.options.HungUnmount), Records: m.options.RuntimeDir != "",
		Orphans: m.orphans, Hung: m.Hung, MarkUncertain: m.actual.markUncertain, Plan: func(h podvolume.Key) { m.reconciler.Add(h) }, Retry: func(h podvolume.Key) { m.reconciler.Retry(h) },
		Probe: m.stats.Probe, Released: func(h podvolume.Key) { m.changes.Notify(h.Pod) },
	}
}

// newJournal returns the journal; nil if the manager keeps no records.
func (m *Manager) newJournal() *journal.Journal {
	if m.options.RuntimeDir == "" {
		return nil
	}
	o := journal.Options{
		RuntimeDir: m.options.RuntimeDir, StateDir: m.options.StateDir, Plugins: m.plugins, Logger: m.options.Logger, Root: m.root, Mounts: m.options.mountTable(),
	}
	if mountwatch.IsKernel(m.options.Mounter) {
		o.Learned = func(path string) *mountwatch.Mount { return m.watch.MountAt(path) }
	}
	return journal.New(o)
}

// mountTable returns the mount table; nil if the mounter has none.
func (o Options) mountTable() journal.Table {
	table, _ := o.Mounter.(MountTable)
	return table
}

func (m *Manager) recoveryOptions() recovery.Options {
	return recovery.Options{
		Plugins: m.plugins, Logger: m.options.Logger, Journal: m.journal, Mounts: m.options.mountTable(), Watch: m.watch,
		Orphans: m.orphans, RemoveOrphans: m.options.Orphans == OrphansAreRemoved,
		Actual: m.actual.ActualStateOfWorld, AttachesItself: m.options.AttachedBy == AttachedByNode,
		Reconstruct: func(ctx context.Context, ask operationexecutor.VolumeToReconstruct) (volume.ReconstructedVolume, error) {
			return m.executor.ReconstructVolume(ctx, ask)
		},
		IsKnown: func(pod volume.UniquePodName) bool { return m.populator.IsKnown(pod) }, IsBusy: func(pod volume.UniquePodName) bool { return len(m.reconciler.VolumesOfOperations(pod)) > 0 },
		Plan: func(names []v1.UniqueVolumeName) { m.reconciler.AddAll(names) }, PlanAll: func() { m.reconciler.AddAll(m.view.allVolumes()) },
		Notify: m.changes.Notify, InUseChanged: func() { m.nodeStatus.Recheck() },
	}
}

func (m *Manager) generatorOptions() operationexecutor.GeneratorOptions {
	generator := operationexecutor.GeneratorOptions{
		Plugins: m.plugins, DeviceUse: m.options.DeviceUse, Mounts: m.watch.MountPoints(m.options.Mounter), Recorder: m.options.Recorder, Logger: m.options.Logger,
		BlockMapper: m.options.BlockMapper,
		Subpaths:    m.subpaths,
	}
	if m.journal != nil {
		generator.Journal = m.journal
	}
	generator.Journal = m.watch.Guard(generator.Journal)
	if m.options.Store != nil {
		generator.Claims = populator.ClaimStatus{Store: m.options.Store}
		if m.nodeStatus != nil {
			generator.NodeReader = m.nodeStatus.Object
		}
		generator.NodeLabels = nodestatus.Labels{Store: m.options.Store, Node: m.node()}
	}
	return generator
}

func (m *Manager) executorOptions() operationexecutor.ExecutorOptions {
	return operationexecutor.ExecutorOptions{
		Observer: m.options.Observer, Backoff: m.options.Backoff,
		Timeouts: m.options.Timeouts, PluginTimeouts: m.options.PluginTimeouts,
		WorkersPerPlugin: m.options.WorkersPerPlugin, HungPerPlugin: m.options.HungPerPlugin, Logger: m.options.Logger,
		KeyFreed: m.reconciler.KeyFreed, CallsAbandoned: m.watch.CallsAbandoned,
	}
}

func (m *Manager) node() types.NodeName { return m.plugins.Host().GetNodeName() }

// Run does all the work until [Manager.Stop] has finished or ctx ends, and returns when every goroutine that it started has
// ended. When ctx ends, running operations are cancelled; mounts stay. Calls of plugins that do not return then are
// abandoned: the error, a *operationexecutor.WaitError, names them. The root and the directories of records stay locked
// until the last of these calls has returned, or the process ends. Until then no other manager can begin, in the same
// process neither.
//
// An error before ctx ends says that Run could not begin. It matches [volume.ErrInUse] if another manager has the root or
// the records, and [volume.ErrInvalid] if other users may write the records. Run also fails if it was called before, or if
// the records cannot be read. While Run runs it locks the root, the directory above the pods' directory, with or without
// records. It makes a missing root, unless Options.Mounter is a fake.
func (m *Manager) Run(ctx context.Context) error {
	if !m.run.started.CompareAndSwap(false, true) {
		return fmt.Errorf("volume manager: Run was called twice: make another manager: %w", volume.ErrInvalid)
	}
	defer m.changes.Publish(changes.Topic{})
	defer close(m.run.stopped)
	defer m.reconciler.Stop()
	defer m.populator.Stop()
	defer m.watch.Stop()
	defer m.stats.Stop()
	var ending sync.WaitGroup
	defer ending.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if isOpen(m.run.ending.given) {
		return nil
	}
	ending.Go(func() { m.run.cancelAtEnd(ctx, cancel) })
	if m.run.failed = m.begin(ctx); m.run.failed != nil {
		return fmt.Errorf("volume manager: %w", m.run.failed)
	}
	m.doWork(ctx)
	return m.end(context.WithoutCancel(ctx))
}

// begin locks the root and reads the records of an earlier manager.
func (m *Manager) begin(ctx context.Context) error {
	if err := m.root.Take(ctx); err != nil {
		return err
	}
	if err := m.recovery.Read(ctx); err != nil {
		return errors.Join(err, m.root.Release())
	}
	return nil
}

// doWork starts the goroutines of Run. It returns after ctx has ended, when all of them have ended.
func (m *Manager) doWork(ctx context.Context) {
	m.run.running.Store(true)
	defer m.run.running.Store(false)
	var wg sync.WaitGroup
	m.reconciler.Start(ctx, m.executor)
	defer m.reconciler.Stop()
	m.populator.Run(ctx, &wg)
	m.watch.Run(ctx, &wg)
	m.stats.Run(ctx, &wg)
	if m.journal != nil {
		wg.Go(func() { m.recovery.Run(ctx) })
		wg.Go(func() { m.journal.WriteLate(ctx) })
	}
	if m.options.Resync > 0 {
		wg.Go(func() { m.resync(ctx) })
	}
	if m.nodeStatus != nil {
		m.nodeStatus.Run(ctx, &wg)
	}
	wg.Wait()
}

// populatorOptions connects the populator with the other parts of the manager.
func (m *Manager) populatorOptions() populator.Options {
	return populator.Options{
		Plugins: m.plugins, Prober: m.options.Prober, Store: m.options.Store, SELinux: m.options.SELinux, Logger: m.options.Logger,
		Desired: m.desired, Actual: m.actual.ActualStateOfWorld, Expansion: m.expansion, Earlier: m.recovery, Orphans: m.orphans,
		Plan:         func(pod volume.UniquePodName, names []v1.UniqueVolumeName) { m.reconciler.AddPod(pod, names) },
		Retry:        func(names []v1.UniqueVolumeName) { m.reconciler.RetryAll(names) },
		ResetBackoff: func(key operationexecutor.Key) { m.executor.ResetBackoff(key) },
		Notify:       m.changes.Notify,
	}
}

// newNodeStatus returns the node's status; nil if this node attaches volumes itself.
func (m *Manager) newNodeStatus() *nodestatus.Status {
	if m.options.AttachedBy != AttachedByController {
		return nil
	}
	s := nodestatus.New(nodestatus.Options{
		Store: m.options.Store, Node: m.node(), Desired: m.desired, Actual: m.actual.ActualStateOfWorld,
		IsAttachedHere: func(name v1.UniqueVolumeName) bool { return m.journal.HasAttachment(name) },
		// A volume that could not be rebuilt may be any volume of an earlier manager.
		MayUseMore: func(ctx context.Context) bool { return !m.recovery.IsComplete() || len(m.orphans.Live(ctx)) > 0 },
		Plan:       func(names []v1.UniqueVolumeName) { m.reconciler.AddAll(names) }, Retry: func(names []v1.UniqueVolumeName) { m.reconciler.RetryAll(names) },
		Notify: m.changes.Notify, Logger: m.options.Logger, Recorder: m.options.Recorder,
	})
	if m.options.VolumesInUse != nil {
		s.Reporter = m.options.VolumesInUse
	}
	return s
}

// end waits for the running operations, and unlocks the root and the records.
func (m *Manager) end(ctx context.Context) error {
	err := m.executor.Shutdown(ctx)
	m.reconciler.Wait()
	if err != nil {
		m.unlockLater(ctx)
		return err
	}
	if m.run.isStopping() {
		m.nodeStatus.Report(ctx) // The controller learns of the last teardowns without waiting for the next manager.
	} else {
		m.warnOfRest()
	}
	<-m.executor.Returned() // A call may have returned just now, and the manager still gets its result.
	return m.unlock(ctx)
}

// warnOfRest logs what remains if the program has ended Run by its context, not by Stop.
func (m *Manager) warnOfRest() {
	if name := m.view.firstUnwanted(); name != "" {
		m.options.Logger.Warn("Run ended before volumes were gone that no pod uses: call Stop, or WaitForNodeEmpty when all pods were removed, before the context of Run ends", "volume", name)
	}
}

// unlock unlocks the directories of records and the root.
func (m *Manager) unlock(ctx context.Context) error {
	if m.journal == nil {
		return m.root.Release()
	}
	return errors.Join(m.journal.Close(ctx), m.root.Release())
}

// unlockLater unlocks the directories when the calls that Run has abandoned have returned. If it unlocked them earlier,
// another manager could call plugins for the same volumes, and rely on a state that these calls still change.
func (m *Manager) unlockLater(ctx context.Context) {
	go func() {
		<-m.executor.Returned()
		if err := m.unlock(ctx); err != nil {
			m.options.Logger.Error("the root and the directories of records could not be unlocked", "error", err)
		}
	}()
}

// resync marks everything to be planned at long intervals.
func (m *Manager) resync(ctx context.Context) {
	for {
		tenth := int64(m.options.Resync / 10)
		retry.Pause(ctx, m.options.Resync-time.Duration(tenth)+time.Duration(rand.Int64N(2*tenth+1)))
		if ctx.Err() != nil {
			return
		}
		if err := m.root.Check(ctx); err != nil && ctx.Err() == nil {
			m.options.Logger.Error("nothing is done to volumes", "error", err)
		}
		m.reconciler.AddAll(m.view.allVolumes())
		m.populator.Recheck()
		if m.recovery.AwaitsPods() {
			m.options.Logger.Warn("volumes of an earlier manager stay until all pods have been added: call PodsComplete after the last AddPod")
		}
		m.verifyAttached(ctx)
		m.watch.Resync()
		if m.journal != nil {
			m.journal.CatchUp(ctx)
		}
	}
}

// PodsComplete says that the program has added every pod that it wants on this node. From then on the manager tears down
// everything that it found after a restart and that belongs to no pod. This holds after a reboot, too: the data of a pod in
// a directory of the node (emptyDir) is then deleted if the pod was not added. Call it once, after the last AddPod of the
// start. A pod whose AddPod has failed counts as not added.
func (m *Manager) PodsComplete() {
	m.recovery.PodsComplete()
	m.reconciler.AddAll(m.view.allVolumes())
	m.nodeStatus.Recheck()
}
