package expand

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/workqueue"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// Options are the options of a [Controller]. The zero value is useful.
type Options struct {
	// Events gets what happens to claims, for people to read; nil drops it.
	Events volume.EventRecorder
	// Observer gets a report of every operation; nil drops it.
	Observer operationexecutor.Observer
	// Logger gets what happens beside operations. Nil: it is discarded.
	Logger *slog.Logger
	// Backoff is how long an expansion that failed waits before it is tried again, and one that cannot be before it is tried again
	// all the same (Infeasible). The zero value is that of Kubernetes, and an hour.
	Backoff operationexecutor.Backoff
	// Timeouts bounds operations, PluginTimeouts those of one plugin, by its name. Zero fields have the executor's defaults.
	Timeouts       operationexecutor.Timeouts
	PluginTimeouts map[string]operationexecutor.Timeouts
	// WorkersPerPlugin is how many expansions of one plugin run at once, HungPerPlugin how many of its calls may hang before
	// no more of them are made. Zero means the executor's defaults.
	WorkersPerPlugin, HungPerPlugin int
}

// Controller expands. Make it with [New] and start it with Run. Its methods may be called from several goroutines at once.
type Controller struct {
	plugins  *volume.VolumePluginMgr
	options  Options
	executor *operationexecutor.Executor
	claims   *store.Mirror[*v1.PersistentVolumeClaim]
	volumes  *store.Mirror[*v1.PersistentVolume]
	classes  *store.Mirror[*storagev1.StorageClass]
	dirty    *workqueue.Queue[types.NamespacedName]
	started  atomic.Bool

	// running are the operations that have begun, or have just ended, by claim. It belongs to the planner's goroutine.
	running map[types.NamespacedName]expansion

	claimOf     claimOf
	standstills *standstills
}

// claimOf has the claim of each volume on which an operation runs. Its methods may be called from several goroutines at once.
type claimOf struct {
	mu    sync.Mutex // no call that waits is made under it
	names map[v1.UniqueVolumeName]types.NamespacedName
}

func (c *claimOf) put(volumeName v1.UniqueVolumeName, name types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.names[volumeName] = name
}

// remove returns the claim of a volume, and false when there is none.
func (c *claimOf) remove(volumeName v1.UniqueVolumeName) (types.NamespacedName, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	name, known := c.names[volumeName]
	delete(c.names, volumeName)
	return name, known
}

// New returns a controller for the claims in s, whose volumes are expanded by plugins. It starts nothing and does no I/O.
func New(plugins *volume.VolumePluginMgr, s store.Store, options Options) *Controller {
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	if options.Backoff.Infeasible == 0 {
		options.Backoff.Infeasible = operationexecutor.DefaultInfeasible
	}
	mirrors := store.MirrorOptions{
		Logger: options.Logger, InitialBackoff: options.Backoff.Initial, MaxBackoff: options.Backoff.Max, Jitter: options.Backoff.Jitter,
	}
	c := &Controller{
		plugins: plugins,
		options: options,
		claims:  store.NewMirror[*v1.PersistentVolumeClaim](s, mirrors),
		volumes: store.NewMirror[*v1.PersistentVolume](s, mirrors),
		classes: store.NewMirror[*storagev1.StorageClass](s, mirrors),
		dirty:   workqueue.New[types.NamespacedName](),
		running: map[types.NamespacedName]expansion{},
	}
	c.claimOf.names = map[v1.UniqueVolumeName]types.NamespacedName{}
	c.standstills = newStandstills(c.dirty)
	account := account{store: s, claims: c.claims, volumes: c.volumes}
	c.executor = operationexecutor.NewOperationExecutor(
		operationexecutor.NewOperationGenerator(operationexecutor.GeneratorOptions{
			Plugins: plugins, Claims: account, Capacity: account, Recorder: options.Events, Logger: options.Logger,
		}),
		operationexecutor.ExecutorOptions{
			Observer: options.Observer, Backoff: options.Backoff,
			Timeouts: options.Timeouts, PluginTimeouts: options.PluginTimeouts,
			WorkersPerPlugin: options.WorkersPerPlugin, HungPerPlugin: options.HungPerPlugin,
			KeyFreed: c.keyFreed, Logger: options.Logger,
		})
	return c
}

// Run works until ctx ends, and returns when every goroutine that it started has ended. Calls of plugins that do not return then
// are abandoned: the error, a *operationexecutor.WaitError, names them. An error before ctx ends says that Run was called
// twice or that New was not given what it needs; it matches [volume.ErrInvalid].
func (c *Controller) Run(ctx context.Context) error {
	if c.plugins == nil {
		return fmt.Errorf("expand controller: give New plugins and a store: %w", volume.ErrInvalid)
	}
	if c.started.Swap(true) {
		return fmt.Errorf("expand controller: Run was called twice: make another controller: %w", volume.ErrInvalid)
	}
	defer c.dirty.Stop()
	var feeds, planner sync.WaitGroup
	feeds.Go(func() { c.classes.Follow(ctx, c.classChanged) })
	feeds.Go(func() { c.volumes.Follow(ctx, c.volumeChanged) })
	feeds.Go(func() { c.claims.Follow(ctx, c.claimChanged) })
	if c.classes.WaitSynced(ctx) && c.volumes.WaitSynced(ctx) && c.claims.WaitSynced(ctx) {
		planner.Go(func() { c.planAll(ctx) })
	}
	planner.Wait()
	feeds.Wait()
	return c.executor.Shutdown(context.WithoutCancel(ctx))
}

func (c *Controller) claimChanged(claim *v1.PersistentVolumeClaim) { c.dirty.Add(store.NameOf(claim)) }

func (c *Controller) volumeChanged(pv *v1.PersistentVolume) {
	if ref := pv.Spec.ClaimRef; ref != nil {
		c.dirty.Add(types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name})
	}
}

// classChanged has every claim of the class looked at: it may stand still for the class, or the planner may just be finding that out.
func (c *Controller) classChanged(class *storagev1.StorageClass) {
	for _, claim := range c.claims.All() {
		if classOf(claim) == class.Name {
			c.dirty.Add(store.NameOf(claim))
		}
	}
}

// keyFreed is called by the executor when an operation has ended and all of its calls have returned.
func (c *Controller) keyFreed(o operationexecutor.OperationInfo) {
	if name, known := c.claimOf.remove(o.VolumeName); known {
		c.dirty.Add(name)
	}
}

// Why returns why a claim that asks for more does not have it, and nil when nothing is known against it.
func (c *Controller) Why(claim types.NamespacedName) error {
	s, _ := c.standstills.of(claim)
	return s.err
}

// Hung returns the calls of plugins that were abandoned and still run, the oldest first.
func (c *Controller) Hung() []operationexecutor.HungCall { return c.executor.Hung() }
