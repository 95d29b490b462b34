package attachdetach

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/cache"
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
	records  *attachmentRecords
	options  Options
	executor *operationexecutor.Executor
	desired  *cache.ClusterDesiredStateOfWorld
	actual   *cache.ClusterActualStateOfWorld

	objects objects
	foreign *foreignAttachments
	// dirty are attachments to be decided, dirtyPods pods whose volumes are to be found out, dirtyNodes nodes to be told what
	// is attached to them.
	dirty      *workqueue.Queue[attachment]
	dirtyPods  *workqueue.Queue[types.NamespacedName]
	dirtyNodes *workqueue.Queue[types.NodeName]
	// dirtyForeign are VolumeAttachments of others to be looked at, by their names.
	dirtyForeign *workqueue.Queue[string]
	started      atomic.Bool

	// recorded are the attachments that are on record as made. They belong to the goroutine of Run.
	recorded []attachment
	// wants is what pods want. It belongs to the goroutine that finds that out.
	wants map[types.NamespacedName]podWants
	// attempts are those to attach whose operations run, or have just ended. It belongs to the planner's goroutine.
	attempts map[attachment]*cache.AttachAttempt

	// mu guards what follows. No plugin, store or callback is called while it is held.
	mu       sync.Mutex
	troubles map[attachment]trouble
	// crowded are the volumes that wait for room on a node.
	crowded map[types.NodeName]map[v1.UniqueVolumeName]struct{}
	forced  map[ForceReason]uint64
	// sicknesses are those of nodes, for as long as they are sick.
	sicknesses map[types.NodeName]sickness
	// confirming are those of recorded of which a plugin has not answered yet.
	confirming map[attachment]struct{}
	// untold is how often in a row nodes could not be told what is attached to them.
	untold map[types.NodeName]int
}

// New returns a controller of the pods and nodes in s, whose volumes are attached by plugins. It starts nothing and does no
// I/O.
func New(plugins *volume.VolumePluginMgr, s store.Store, options Options) *Controller {
	options = options.withDefaults()
	c := &Controller{
		plugins:      plugins,
		store:        s,
		options:      options,
		objects:      newObjects(s, options),
		foreign:      newForeignAttachments(),
		dirty:        workqueue.New[attachment](),
		dirtyPods:    workqueue.New[types.NamespacedName](),
		dirtyNodes:   workqueue.New[types.NodeName](),
		dirtyForeign: workqueue.New[string](),
		wants:        map[types.NamespacedName]podWants{},
		attempts:     map[attachment]*cache.AttachAttempt{},
		troubles:     map[attachment]trouble{},
		crowded:      map[types.NodeName]map[v1.UniqueVolumeName]struct{}{},
		forced:       map[ForceReason]uint64{},
		sicknesses:   map[types.NodeName]sickness{},
		confirming:   map[attachment]struct{}{},
		untold:       map[types.NodeName]int{},
	}
	c.desired = cache.NewClusterDesiredStateOfWorld(plugins, cache.ClusterOptions{Changed: c.wish})
	c.actual = cache.NewClusterActualStateOfWorld(plugins, cache.ClusterOptions{Changed: c.moved, ReportChanged: c.dirtyNodes.Add})
	c.records = newAttachmentRecords(s, c.actual.NodeUID)
	c.executor = operationexecutor.NewOperationExecutor(
		operationexecutor.NewOperationGenerator(operationexecutor.GeneratorOptions{
			Plugins: plugins, Journal: c.records, NodeReader: useReader{store.NodeStatus{Store: s}, c.actual},
			Reporter: reporter{c}, Recorder: options.Recorder, Logger: options.Logger,
		}),
		operationexecutor.ExecutorOptions{
			Observer: options.Observer, Backoff: options.Backoff,
			Timeouts: options.Timeouts, PluginTimeouts: options.PluginTimeouts,
			WorkersPerPlugin: options.WorkersPerPlugin, HungPerPlugin: options.HungPerPlugin,
			KeyFreed: c.keyFreed, Logger: options.Logger,
		})
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

// Run works until ctx ends, and returns when every goroutine that it started has ended. What is attached stays so. Calls of
// plugins that do not return then are left behind: the error, a *operationexecutor.WaitError, names them. An error before
// ctx ends says that Run was called twice or that New was not given what it needs; it matches [volume.ErrInvalid].
func (c *Controller) Run(ctx context.Context) error {
	if c.plugins == nil || c.store == nil {
		return fmt.Errorf("attach/detach controller: give New plugins and a store: %w", volume.ErrInvalid)
	}
	if c.started.Swap(true) {
		return fmt.Errorf("attach/detach controller: Run was called twice: make another controller: %w", volume.ErrInvalid)
	}
	defer c.dirty.Stop()
	defer c.dirtyPods.Stop()
	defer c.dirtyNodes.Stop()
	defer c.dirtyForeign.Stop()
	defer c.records.queue.Stop()
	var feeds, workers sync.WaitGroup
	feeds.Go(func() { c.objects.csiNodes.Follow(ctx, c.csiNodeChanged) })
	feeds.Go(func() { c.objects.volumes.Follow(ctx, c.volumeChanged) })
	feeds.Go(func() { c.objects.attachments.Follow(ctx, c.volumeAttachmentChanged) })
	feeds.Go(func() { c.objects.claims.Follow(ctx, c.claimChanged) })
	feeds.Go(func() { c.objects.pods.Follow(ctx, c.podChanged) })
	feeds.Go(func() { c.objects.nodes.Follow(ctx, c.nodeChanged) })
	if c.recover(ctx) {
		for _, asked := range c.confirmRecorded(ctx) {
			workers.Go(func() { c.awaitConfirmation(ctx, asked) })
		}
		workers.Go(func() { c.populateAll(ctx) })
		workers.Go(func() { c.noteAllForeign(ctx) })
		workers.Go(func() { c.planAll(ctx) })
		for range reporters {
			workers.Go(func() { c.reportAll(ctx) })
		}
		workers.Go(func() { c.verifyAll(ctx) })
		workers.Go(func() { c.removeLeftovers(ctx) })
	}
	workers.Wait()
	feeds.Wait()
	return c.executor.Shutdown(context.WithoutCancel(ctx))
}
