package snapshot

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/controller/internal/call"
	"github.com/volumekit/volumekit/controller/internal/work"
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
	// Events gets what happens to snapshots, for people to read; nil drops it.
	Events volume.EventRecorder
	// Logger gets what is tried again and why; nil discards it.
	Logger *slog.Logger
	// Workers is how many objects are worked on at once; 0 means 16.
	Workers int
	// CallTimeout bounds each call of a plugin; 0 means 10 minutes.
	CallTimeout time.Duration
	// InitialBackoff is the wait before what failed, or is not ready yet, is tried again; it doubles each time in a row. 0 means half a
	// second.
	InitialBackoff time.Duration
	// MaxBackoff bounds that wait; 0 means two minutes and two seconds.
	MaxBackoff time.Duration
	// Jitter is the greatest part of a wait that is left out at random, between 0 and 1; zero means 0.1, less than zero none.
	Jitter float64
}

// Controller makes, binds and deletes snapshots. Make one with [New] and start it with Run. Its methods may be called from several
// goroutines at once.
type Controller struct {
	options Options
	started atomic.Bool

	store   store.Store
	mirrors *mirrors
	queue   *work.Queue
	plugins *plugins

	waker         *waker
	claims        *protection
	snapshots     *snapshotSync
	contents      *contentSync
	groups        *groupSync
	groupContents *groupContentSync
}

// New returns a controller for the snapshots in s, which plugins make and delete. The store must keep [Kinds]. It starts nothing.
func New(mgr *volume.VolumePluginMgr, s store.Store, options Options) *Controller {
	options = options.withDefaults()
	c := &Controller{
		options: options, store: s, mirrors: newMirrors(s, options.mirrors()),
		queue:   work.New(backoff.Policy{Initial: options.InitialBackoff, Max: options.MaxBackoff, Jitter: options.Jitter}),
		plugins: &plugins{mgr: mgr, calls: call.New(options.CallTimeout)},
	}
	events, from := recorder{options.Events}, &sources{store: s, mirrors: c.mirrors, plugins: c.plugins}
	c.waker = &waker{mirrors: c.mirrors, queue: c.queue}
	c.claims = &protection{store: s, mirrors: c.mirrors, locks: newClaimLocks()}
	c.snapshots = &snapshotSync{store: s, mirrors: c.mirrors, queue: c.queue, events: events, sources: from, claims: c.claims,
		failures: failures[*snapshotv1.VolumeSnapshot]{s, c.mirrors.snapshots, events, "snapshot", snapshotFailure},
	}
	c.contents = &contentSync{store: s, mirrors: c.mirrors, queue: c.queue, plugins: c.plugins, events: events, sources: from,
		failures: failures[*snapshotv1.VolumeSnapshotContent]{s, c.mirrors.contents, events, "content", contentFailure},
	}
	c.groups = &groupSync{store: s, mirrors: c.mirrors, queue: c.queue, events: events, sources: from, claims: c.claims,
		failures: failures[*groupv1.VolumeGroupSnapshot]{s, c.mirrors.groups, events, "group", groupFailure},
	}
	c.groupContents = &groupContentSync{store: s, mirrors: c.mirrors, queue: c.queue, plugins: c.plugins, events: events, sources: from,
		failures: failures[*groupv1.VolumeGroupSnapshotContent]{s, c.mirrors.groupContents, events, "content of group", groupContentFailure},
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

func (o Options) mirrors() store.MirrorOptions {
	return store.MirrorOptions{Logger: o.Logger, InitialBackoff: o.InitialBackoff, MaxBackoff: o.MaxBackoff, Jitter: o.Jitter}
}

type noEvents struct{}

func (noEvents) Eventf(runtime.Object, string, string, string, ...any) {}

// Run works until ctx ends, and returns when every goroutine that it started has ended. It may be called once. It returns nil, or an
// [*AbandonedCallsError] that names the calls of plugins that did not return although their context had ended. A store that does not
// keep [Kinds] is an error that matches [store.ErrInvalid].
func (c *Controller) Run(ctx context.Context) error {
	if c.plugins.mgr == nil || c.store == nil {
		return fmt.Errorf("snapshot controller: give New plugins and a store: %w", volume.ErrInvalid)
	}
	for _, kind := range Kinds() {
		if _, err := store.KindsOf(c.store).Namespaced(kind.GroupVersionKind); err != nil {
			return fmt.Errorf("snapshot controller: make the store with a table of snapshot.Kinds: %w", err)
		}
	}
	if c.started.Swap(true) {
		return errors.New("snapshot controller: Run was called before: make a new controller")
	}
	c.run(ctx)
	return call.Abandoned(c.plugins.calls.Running())
}

// AbandonedCallsError names the calls of plugins that were still running when Run returned.
type AbandonedCallsError = call.AbandonedError

func (c *Controller) run(ctx context.Context) {
	var feeds sync.WaitGroup
	defer c.queue.Stop()
	c.waker.follow(ctx, &feeds)
	if c.mirrors.synced(ctx) {
		c.queue.RunWorkers(ctx, c.options.Workers, c.syncItem)
	}
	feeds.Wait()
}

// syncItem syncs an item. After an error it is synced again after a back-off.
func (c *Controller) syncItem(ctx context.Context, item work.Item) error {
	err := c.sync(ctx, item)
	work.LogRetry(ctx, c.options.Logger, item, err, errNotReady)
	return err
}

// sync does the next step for an item.
func (c *Controller) sync(ctx context.Context, item work.Item) error {
	if item.Kind == workSnapshot {
		return c.snapshots.sync(ctx, item.Name)
	}
	if item.Kind == workContent {
		return c.contents.sync(ctx, item)
	}
	if item.Kind == workGroup {
		return c.groups.sync(ctx, item.Name)
	}
	if item.Kind == workGroupContent {
		return c.groupContents.sync(ctx, item)
	}
	return c.claims.release(ctx, item.Name)
}

// recorder records what happens to objects.
type recorder struct{ events volume.EventRecorder }

// record records an event about an object.
func (r recorder) record(obj runtime.Object, eventType, reason string, err error) {
	r.events.Eventf(obj, eventType, reason, "%v", err)
}

// errNotReady says that a snapshot exists and cannot be used yet. It is no failure.
var errNotReady = errors.New("the snapshot is not ready to use yet")
