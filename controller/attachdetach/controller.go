package attachdetach

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/cluster"
	"github.com/volumekit/volumekit/internal/workqueue"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// attachment is one volume on one node.
type attachment struct {
	volume v1.UniqueVolumeName
	node   types.NodeName
}

// Controller attaches and detaches. Make it with [New] and start it with Run. Its methods may be called from several
// goroutines at once.
type Controller struct {
	plugins  *volume.VolumePluginMgr
	store    store.Store
	options  Options
	executor *operationexecutor.Executor
	desired  *cluster.DesiredStateOfWorld
	actual   *cluster.ActualStateOfWorld
	// dirty are attachments to be decided.
	dirty   *workqueue.Queue[attachment]
	started atomic.Bool

	objects   objects
	pods      *populator
	health    *nodesHealth
	foreign   *foreignAttachments
	records   *attachmentRecords
	reporter  *reporter
	failures  *failures
	events    *events
	confirmer *confirmer
	lister    *lister

	// recorded are the attachments that are on record as made. They belong to the goroutine of Run.
	recorded []attachment
	// attempts are those to attach whose operations run, or have just ended. It belongs to the planner's goroutine.
	attempts map[attachment]*cluster.AttachAttempt
}

// New returns a controller of the pods and nodes in s, whose volumes are attached by plugins. It starts nothing and does no
// I/O.
func New(plugins *volume.VolumePluginMgr, s store.Store, options Options) *Controller {
	options = options.withDefaults()
	c := &Controller{
		plugins: plugins, store: s, options: options,
		objects:  newObjects(s, options),
		dirty:    workqueue.New[attachment](),
		attempts: map[attachment]*cluster.AttachAttempt{},
	}
	c.failures = newFailures(c.dirty)
	c.reporter = newReporter(s, options)
	c.health = &nodesHealth{nodes: c.objects.nodes, manages: options.ManagesNode, notReady: map[types.NodeName]notReadySince{}}
	c.desired = cluster.NewDesiredStateOfWorld(plugins, cluster.Options{Changed: c.desiredChanged})
	c.actual = cluster.NewActualStateOfWorld(plugins, cluster.Options{Changed: c.actualChanged, ReportChanged: c.reporter.dirty.Add})
	c.reporter.actual = c.actual
	c.events = &events{recorder: options.Recorder, logger: options.Logger, desired: c.desired, nodes: c.objects.nodes, forced: map[ForceReason]uint64{}}
	c.records = newAttachmentRecords(s, c.actual.NodeUID)
	c.foreign = newForeignAttachments(plugins, c.objects, c.volumeFreed)
	c.pods = &populator{
		objects: c.objects, health: c.health, desired: c.desired, actual: c.actual, logger: options.Logger,
		dirty: workqueue.New[types.NamespacedName](), known: map[types.NamespacedName]podVolumes{}, names: map[types.UID][]types.NamespacedName{},
	}
	c.executor = operationexecutor.NewOperationExecutor(
		operationexecutor.NewOperationGenerator(operationexecutor.GeneratorOptions{
			Plugins: plugins, Journal: c.records, NodeReader: useReader{store.NodeStatus{Store: s}, c.actual},
			Reporter: c.reporter, Recorder: options.Recorder, Logger: options.Logger,
		}),
		operationexecutor.ExecutorOptions{
			Observer: options.Observer, Backoff: options.Backoff,
			Timeouts: options.Timeouts, PluginTimeouts: options.PluginTimeouts,
			WorkersPerPlugin: options.WorkersPerPlugin, HungPerPlugin: options.HungPerPlugin,
			KeyFreed: c.keyFreed, Logger: options.Logger,
		})
	c.confirmer = &confirmer{
		plugins: plugins, executor: c.executor, actual: c.actual, logger: options.Logger, dirty: c.dirty, unknown: map[attachment]struct{}{},
	}
	c.lister = &lister{
		plugins: plugins, executor: c.executor, actual: c.actual, records: c.records, foreign: c.foreign, volumes: c.objects.volumes,
		events: c.events, logger: options.Logger, running: map[string]*operationexecutor.Operation{},
	}
	return c
}

// objects is what was last seen in the store.
type objects struct {
	pods        *store.Mirror[*v1.Pod]
	podsOfNode  *store.Index[*v1.Pod, types.NodeName]
	podsOfClaim *store.Index[*v1.Pod, types.NamespacedName]
	nodes       *store.Mirror[*v1.Node]
	csiNodes    *store.Mirror[*storagev1.CSINode]
	claims      *store.Mirror[*v1.PersistentVolumeClaim]
	volumes     *store.Mirror[*v1.PersistentVolume]
	attachments *store.Mirror[*storagev1.VolumeAttachment]
	// attachmentsOf has the attachments that name a PersistentVolume by its name.
	attachmentsOf *store.Index[*storagev1.VolumeAttachment, string]
}

func newObjects(s store.Store, options Options) objects {
	mirrors := store.MirrorOptions{
		Logger: options.Logger, InitialBackoff: options.Backoff.Initial, MaxBackoff: options.Backoff.Max, Jitter: options.Backoff.Jitter,
	}
	o := objects{
		pods:        store.NewMirror[*v1.Pod](s, mirrors),
		nodes:       store.NewMirror[*v1.Node](s, mirrors),
		csiNodes:    store.NewMirror[*storagev1.CSINode](s, mirrors),
		claims:      store.NewMirror[*v1.PersistentVolumeClaim](s, mirrors),
		volumes:     store.NewMirror[*v1.PersistentVolume](s, mirrors),
		attachments: store.NewMirror[*storagev1.VolumeAttachment](s, mirrors),
	}
	o.attachmentsOf = store.NewIndex(o.attachments, func(at *storagev1.VolumeAttachment) []string {
		if at.Spec.Source.PersistentVolumeName == nil {
			return nil
		}
		return []string{*at.Spec.Source.PersistentVolumeName}
	})
	o.podsOfNode = store.NewIndex(o.pods, func(pod *v1.Pod) []types.NodeName { return []types.NodeName{types.NodeName(pod.Spec.NodeName)} })
	o.podsOfClaim = store.NewIndex(o.pods, volume.ClaimsOfPod)
	return o
}

// synced waits until everything has been listed once, and reports whether that was before ctx ended.
func (o objects) synced(ctx context.Context) bool {
	return o.csiNodes.WaitSynced(ctx) && o.volumes.WaitSynced(ctx) && o.attachments.WaitSynced(ctx) && o.claims.WaitSynced(ctx) &&
		o.pods.WaitSynced(ctx) && o.nodes.WaitSynced(ctx)
}

// Run works until ctx ends, and returns when every goroutine that it started has ended. What is attached stays so. Calls of
// plugins that do not return then are abandoned: the error, a *operationexecutor.WaitError, names them. An error before
// ctx ends says that Run was called twice or that New was not given what it needs; it matches [volume.ErrInvalid].
func (c *Controller) Run(ctx context.Context) error {
	if c.plugins == nil || c.store == nil {
		return fmt.Errorf("attach/detach controller: give New plugins and a store: %w", volume.ErrInvalid)
	}
	if c.started.Swap(true) {
		return fmt.Errorf("attach/detach controller: Run was called twice: make another controller: %w", volume.ErrInvalid)
	}
	defer c.dirty.Stop()
	defer c.pods.dirty.Stop()
	defer c.reporter.dirty.Stop()
	defer c.foreign.dirty.Stop()
	defer c.records.queue.Stop()
	var feeds, workers sync.WaitGroup
	feeds.Go(func() { c.objects.csiNodes.Follow(ctx, c.csiNodeChanged) })
	feeds.Go(func() { c.objects.volumes.Follow(ctx, c.volumeChanged) })
	feeds.Go(func() { c.objects.attachments.Follow(ctx, c.foreign.changed) })
	feeds.Go(func() {
		c.objects.claims.Follow(ctx, func(claim *v1.PersistentVolumeClaim) { c.pods.claimChanged(store.NameOf(claim)) })
	})
	feeds.Go(func() { c.objects.pods.Follow(ctx, c.pods.changed) })
	feeds.Go(func() { c.objects.nodes.Follow(ctx, c.nodeChanged) })
	if c.recover(ctx) {
		for _, asked := range c.confirmer.begin(ctx, c.recorded) {
			workers.Go(func() { c.confirmer.await(ctx, asked) })
		}
		c.recorded = nil
		workers.Go(func() { c.pods.run(ctx) })
		workers.Go(func() { c.foreign.run(ctx) })
		workers.Go(func() { c.planAll(ctx) })
		for range reporters {
			workers.Go(func() { c.reporter.run(ctx) })
		}
		workers.Go(func() { c.verifyAll(ctx) })
		remover := recordRemover{records: c.records, actual: c.actual, logger: c.options.Logger, delay: c.options.delay}
		workers.Go(func() { remover.run(ctx) })
	}
	workers.Wait()
	feeds.Wait()
	return c.executor.Shutdown(context.WithoutCancel(ctx))
}

// volumeChanged has the pods and the foreign attachments looked at that use a PersistentVolume.
func (c *Controller) volumeChanged(pv *v1.PersistentVolume) {
	c.foreign.volumeChanged(pv)
	if ref := pv.Spec.ClaimRef; ref != nil {
		c.pods.claimChanged(types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name})
	}
}
