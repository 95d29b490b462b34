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
	// Events gets the events of claims; nil drops them.
	Events volume.EventRecorder
	// Observer gets a report of every operation; nil drops it.
	Observer operationexecutor.Observer
	// Logger gets what happens outside of operations; nil discards it.
	Logger *slog.Logger
	// Backoff is the wait before a failed change is tried again. Its field Infeasible is the wait before an infeasible size
	// or class is tried again. The zero value means the back-off of Kubernetes, and an hour for what is infeasible.
	Backoff operationexecutor.Backoff
	// Timeouts bounds operations, PluginTimeouts those of one plugin, by its name. Zero fields have the executor's defaults.
	Timeouts       operationexecutor.Timeouts
	PluginTimeouts map[string]operationexecutor.Timeouts
	// WorkersPerPlugin is how many changes by one plugin run at once. HungPerPlugin is how many calls of a plugin may
	// hang before the executor makes no more. Zero means the executor's defaults.
	WorkersPerPlugin, HungPerPlugin int
}

// Controller expands and modifies the storage of claims. Make it with [New] and start it with Run. Its methods may be called from
// several goroutines at once.
type Controller struct {
	plugins  *volume.VolumePluginMgr
	options  Options
	executor *operationexecutor.Executor
	claims   *store.Mirror[*v1.PersistentVolumeClaim]
	volumes  *store.Mirror[*v1.PersistentVolume]
	classes  *store.Mirror[*storagev1.StorageClass]
	// attributes are the classes of attributes. A store may not know them: nothing waits until they are read.
	attributes *store.Mirror[*storagev1.VolumeAttributesClass]
	dirty      *workqueue.Queue[types.NamespacedName]
	started    atomic.Bool

	// running holds the operations that run, or have ended without being handled yet, by claim. Only the planner's
	// goroutine uses it.
	running map[types.NamespacedName]running

	claimOf       claimOf
	expansions    *expansions
	modifications *modifications
}

// claimOf maps each volume with a running operation to its claim. Its methods may be called from several goroutines at
// once.
type claimOf struct {
	mu    sync.Mutex // no call that waits is made under it
	names map[v1.UniqueVolumeName]types.NamespacedName
}

func (c *claimOf) put(volumeName v1.UniqueVolumeName, name types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.names[volumeName] = name
}

// remove removes a volume and returns its claim, and false if it had none.
func (c *claimOf) remove(volumeName v1.UniqueVolumeName) (types.NamespacedName, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	name, known := c.names[volumeName]
	delete(c.names, volumeName)
	return name, known
}

// New returns a controller that expands and modifies the volumes of the claims in s, by plugins. It starts nothing and does no I/O.
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
		plugins:    plugins,
		options:    options,
		claims:     store.NewMirror[*v1.PersistentVolumeClaim](s, mirrors),
		volumes:    store.NewMirror[*v1.PersistentVolume](s, mirrors),
		classes:    store.NewMirror[*storagev1.StorageClass](s, mirrors),
		attributes: store.NewMirror[*storagev1.VolumeAttributesClass](s, mirrors),
		dirty:      workqueue.New[types.NamespacedName](),
		running:    map[types.NamespacedName]running{},
	}
	c.claimOf.names = map[v1.UniqueVolumeName]types.NamespacedName{}
	account := statusWriter{store: s, claims: c.claims, volumes: c.volumes}
	c.executor = operationexecutor.NewOperationExecutor(
		operationexecutor.NewOperationGenerator(operationexecutor.GeneratorOptions{
			Plugins: plugins, Claims: account, Capacity: account, Attributes: account, Recorder: options.Events, Logger: options.Logger,
		}),
		operationexecutor.ExecutorOptions{
			Observer: options.Observer, Backoff: options.Backoff,
			Timeouts: options.Timeouts, PluginTimeouts: options.PluginTimeouts,
			WorkersPerPlugin: options.WorkersPerPlugin, HungPerPlugin: options.HungPerPlugin,
			KeyFreed: c.keyFreed, Logger: options.Logger,
		})
	c.expansions = &expansions{
		plugins: plugins, executor: c.executor, classes: c.classes, blocked: newBlockedClaims(c.dirty), infeasible: options.Backoff.Infeasible,
	}
	c.modifications = &modifications{plugins: plugins, executor: c.executor, classes: c.attributes, blocked: newBlockedClaims(c.dirty)}
	return c
}

// Run works until ctx ends, and returns when every goroutine that it started has ended. It abandons calls of plugins that
// do not return by then, and the error, a *operationexecutor.WaitError, names them. If Run was called twice, or New lacked
// what it needs, Run returns at once with an error that matches [volume.ErrInvalid].
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
	feeds.Go(func() { c.attributes.Follow(ctx, c.attributesChanged) })
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

// classChanged makes every claim of the class dirty. Such a claim may wait for the class, or the planner may be about to
// find that it does.
func (c *Controller) classChanged(class *storagev1.StorageClass) {
	for _, claim := range c.claims.All() {
		if classOf(claim) == class.Name {
			c.dirty.Add(store.NameOf(claim))
		}
	}
}

// attributesChanged makes every claim dirty that names the class of attributes, or whose volume is to have it.
func (c *Controller) attributesChanged(class *storagev1.VolumeAttributesClass) {
	for _, claim := range c.claims.All() {
		target := claim.Status.ModifyVolumeStatus
		if named(claim.Spec.VolumeAttributesClassName) == class.Name || target != nil && target.TargetVolumeAttributesClassName == class.Name {
			c.dirty.Add(store.NameOf(claim))
		}
	}
}

// keyFreed is called by the executor after an operation and all of its calls have ended.
func (c *Controller) keyFreed(o operationexecutor.OperationInfo) {
	if name, known := c.claimOf.remove(o.VolumeName); known {
		c.dirty.Add(name)
	}
}

// Why returns why a claim does not have the size that it requests, and nil if no reason is known.
func (c *Controller) Why(claim types.NamespacedName) error {
	s, _ := c.expansions.blocked.get(claim)
	return s.err
}

// WhyNotModified returns why the volume of a claim does not have the attributes of the class that the claim names, and nil if
// no reason is known.
func (c *Controller) WhyNotModified(claim types.NamespacedName) error {
	s, _ := c.modifications.blocked.get(claim)
	return s.err
}

// Hung returns the calls of plugins that were abandoned and still run, the oldest first.
func (c *Controller) Hung() []operationexecutor.HungCall { return c.executor.Hung() }
