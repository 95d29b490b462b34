package persistentvolume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/call"
	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/controller/internal/work"
	"github.com/volumekit/volumekit/controller/persistentvolume/internal/bind"
	"github.com/volumekit/volumekit/controller/persistentvolume/internal/ephemeral"
	"github.com/volumekit/volumekit/controller/persistentvolume/internal/inuse"
	"github.com/volumekit/volumekit/controller/persistentvolume/internal/match"
	"github.com/volumekit/volumekit/controller/persistentvolume/internal/populate"
	"github.com/volumekit/volumekit/controller/persistentvolume/internal/reclaim"
	"github.com/volumekit/volumekit/controller/persistentvolume/internal/storage"
	"github.com/volumekit/volumekit/internal/backoff"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// The defaults of Options.
const (
	defaultWorkers     = 16
	defaultCallTimeout = 10 * time.Minute
)

// Options are the options of a [Controller]. The zero value is useful.
type Options struct {
	// NodeName is the node on which everything runs, for an orchestrator of one node: a class that waits for its first
	// consumer then never waits, and provisions for this node. Empty means that such a claim waits until a
	// scheduler puts the name of its node into the annotation [AnnSelectedNode], or its pod has a node.
	NodeName types.NodeName
	// Mounts knows what is mounted: a claim, and a volume whose claim is gone, stay as long as it reports a use. Give it the
	// volume manager where controller and manager are one process; with nil, only the pods, the attachments and the volumesInUse of the
	// nodes in the store count.
	Mounts MountReporter
	// Snapshots finds the snapshots that claims name as their data source: the Controller of controller/snapshot. With nil such
	// a claim waits. If it is a [SnapshotWatcher], a claim is looked at again as soon as its snapshot is ready.
	Snapshots Snapshots
	// Populators fill new volumes, by the kind of the data source (dataSourceRef) that a claim names. A claim that names another kind
	// waits, except for PersistentVolumeClaim and VolumeSnapshot. At most one controller of a store may have populators at a
	// time: use controller/leader.
	Populators map[schema.GroupKind]Populator
	// Filesystems mounts the volumes that Populators fill. With nil, claims for populators wait.
	Filesystems Filesystems
	// Events gets what happens to claims and volumes, for people to read; nil drops it.
	Events volume.EventRecorder
	// Logger gets what is tried again and why; nil discards it.
	Logger *slog.Logger
	// Workers is how many claims and volumes are worked on at once; 0 means 16.
	Workers int
	// CallTimeout bounds each call of a plugin; 0 means 10 minutes.
	CallTimeout time.Duration
	// InitialBackoff is the wait before what failed is tried again; it doubles with each failure in a row. 0 means half a
	// second.
	InitialBackoff time.Duration
	// MaxBackoff bounds that wait; 0 means two minutes and two seconds.
	MaxBackoff time.Duration
	// Jitter is the greatest part of a wait that is left out at random, between 0 and 1; zero means 0.1, less than zero none.
	Jitter float64
}

// MountReporter knows what is mounted. A *volumemanager.Manager is one, for its node.
type MountReporter interface {
	// WaitForVolumeUnused returns nil when nothing uses the volume pv any more: nothing of it is, or may be, mounted, and no pod is
	// about to mount it. With a context that has ended it answers at once. Any error means that the volume is, or may be, used; a
	// [*volume.NotReadyError] names its users. It must return when ctx ends. pv must not be changed. It may be called from several
	// goroutines at once.
	WaitForVolumeUnused(ctx context.Context, pv *v1.PersistentVolume) error
}

type (
	// Snapshots finds the snapshots that claims name as their data source.
	Snapshots = storage.Snapshots
	// SnapshotWatcher is an optional interface of [Snapshots], which wakes the claims that wait for a snapshot.
	SnapshotWatcher = storage.SnapshotWatcher
)

// Controller binds, provisions and reclaims. Make one with [New] and start it with Run. Its methods may be called from
// several goroutines at once.
type Controller struct {
	plugins *volume.VolumePluginMgr
	store   store.Store
	options Options
	started atomic.Bool

	mirrors   *mirrors
	queue     *work.Queue
	matcher   *match.Matcher
	users     *inuse.Tracker
	storage   *storage.Plugins
	ephemeral *ephemeral.Controller
	pending   *pendingClaims
	fillings  *populate.Fillings
	claims    *claimSync
	volumes   *volumeSync
}

// New returns a controller for the claims in s, whose volumes are made and deleted by plugins. It starts nothing.
func New(plugins *volume.VolumePluginMgr, s store.Store, options Options) *Controller {
	options = options.withDefaults()
	c := &Controller{
		plugins: plugins, store: s, options: options,
		mirrors: newMirrors(s, store.MirrorOptions{Logger: options.Logger, InitialBackoff: options.InitialBackoff, MaxBackoff: options.MaxBackoff, Jitter: options.Jitter}),
		queue:   work.New(backoff.Policy{Initial: options.InitialBackoff, Max: options.MaxBackoff, Jitter: options.Jitter}),
		storage: storage.New(plugins, s, options.Events, options.CallTimeout).Restoring(options.Snapshots),
	}
	c.matcher = match.New(c.mirrors.volume, func(name string) { c.queue.Add(work.Volume, objects.Named(name)) })
	c.ephemeral = ephemeral.New(s, options.Events, c.mirrors.claims, c.mirrors.pods)
	c.users = inuse.New(inuse.Options{
		Store: s, Plugins: plugins, Queue: c.queue, Claims: c.mirrors.claims, Volumes: c.mirrors.volumes, VolumesIn: c.mirrors.volumesIn, Pods: c.mirrors.pods, PodsOf: c.mirrors.podsOf,
		Attachments: c.mirrors.attachments, AttachmentsOf: c.mirrors.attachmentsOf, Mounts: options.Mounts, NodeName: options.NodeName,
	})
	binder := bind.New(s, c.mirrors.claims, c.mirrors.volumes, c.matcher.Refresh)
	where := placement{store: s, podsOf: c.mirrors.podsOf, nodeName: options.NodeName}
	c.pending = newPendingClaims(binder, c.queue, where, options.Events)
	c.fillings = populate.New(options.Filesystems, options.CallTimeout)
	populating := &populating{
		store: s, queue: c.queue, binder: binder, pending: c.pending, events: options.Events, populators: options.Populators,
		fillings: c.fillings,
	}
	c.claims = &claimSync{
		store: s, mirrors: c.mirrors, queue: c.queue, placement: where, matcher: c.matcher, binder: binder, ephemeral: c.ephemeral,
		users: c.users, pending: c.pending, events: options.Events,
		populating: populating,
		provisioning: &provisioning{
			plugins: plugins, store: s, mirrors: c.mirrors, queue: c.queue, placement: where, binder: binder,
			storage: c.storage, pending: c.pending, events: options.Events, populating: populating,
		},
	}
	c.volumes = &volumeSync{
		store: s, mirrors: c.mirrors, queue: c.queue, matcher: c.matcher, binder: binder, populating: populating,
		reclaimer: reclaim.New(reclaim.Options{
			Store: s, Plugins: plugins, Claims: c.mirrors.claims, Events: options.Events, Queue: c.queue, Binder: binder,
			Storage: c.storage, Users: c.users,
		}),
	}
	return c
}

func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Events == nil {
		o.Events = noEvents{}
	}
	if o.Workers <= 0 {
		o.Workers = defaultWorkers
	}
	if o.CallTimeout <= 0 {
		o.CallTimeout = defaultCallTimeout
	}
	return o
}

// Run works until ctx ends, and returns when every goroutine that it started has ended. It may be called once. It
// returns nil, or an [*AbandonedCallsError] that names the calls of plugins that did not return although their context had
// ended.
func (c *Controller) Run(ctx context.Context) error {
	if c.plugins == nil || c.store == nil {
		return fmt.Errorf("persistent volume controller: give New plugins and a store: %w", volume.ErrInvalid)
	}
	if c.started.Swap(true) {
		return errors.New("persistent volume controller: Run was called before: make a new controller")
	}
	c.run(ctx)
	return call.Abandoned(append(c.storage.Abandoned(), c.fillings.Abandoned()...))
}

// AbandonedCallsError names the calls of plugins that were still running when Run returned.
type AbandonedCallsError = call.AbandonedError

func (c *Controller) run(ctx context.Context) {
	var feeds sync.WaitGroup
	defer c.queue.Stop()
	feeds.Go(func() { c.mirrors.classes.Follow(ctx, c.classChanged) })
	feeds.Go(func() { c.mirrors.attributes.Follow(ctx, c.attributesChanged) })
	feeds.Go(func() { c.mirrors.volumes.Follow(ctx, c.volumeChanged) })
	feeds.Go(func() { c.mirrors.claims.Follow(ctx, c.claimChanged) })
	feeds.Go(func() { c.mirrors.pods.Follow(ctx, c.podChanged) })
	feeds.Go(func() { c.mirrors.attachments.Follow(ctx, c.attachmentChanged) })
	if watcher, ok := c.options.Snapshots.(SnapshotWatcher); ok {
		feeds.Go(func() { watcher.WatchSnapshots(ctx, c.snapshotChanged) })
	}
	if c.mirrors.synced(ctx) {
		c.queue.RunWorkers(ctx, c.options.Workers, c.sync)
	}
	c.fillings.Wait()
	feeds.Wait()
}

// sync syncs an item. After an error it is synced again after a back-off.
func (c *Controller) sync(ctx context.Context, item work.Item) error {
	var err error
	switch item.Kind {
	case work.Claim:
		err = c.claims.sync(ctx, item.Name)
		c.matcher.EndOffer(item.Name) // A claim that failed does not keep a volume from others until it is tried again.
	case work.Volume:
		err = c.volumes.sync(ctx, item.Name.Name)
	case work.Pod:
		err = c.ephemeral.MakeClaims(ctx, item.Name)
	case work.Namespace:
		err = c.users.ReadPods(ctx, item.Name.Namespace)
	case work.Volumes:
		err = c.users.ReadVolumes(ctx)
	}
	if !errors.Is(err, work.ErrAwaited) {
		c.users.DropAnswers(item)
	}
	work.LogRetry(ctx, c.options.Logger, item, err)
	return err
}

// Why returns why a claim is not bound, and false when nothing is known against it: it is bound, gone, or was not looked
// at yet. It is known here before the event that says it to people is recorded.
func (c *Controller) Why(claim types.NamespacedName) (PendingClaim, bool) {
	return c.pending.get(claim)
}

// Pending returns every claim that was found to have no volume, and why, sorted by name.
func (c *Controller) Pending() []PendingClaim {
	all := c.pending.all()
	slices.SortFunc(all, func(a, b PendingClaim) int { return strings.Compare(a.Claim.String(), b.Claim.String()) })
	return all
}
