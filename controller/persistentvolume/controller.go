package persistentvolume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/backoff"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// The defaults of [Options].
const (
	DefaultWorkers     = 16
	DefaultCallTimeout = 10 * time.Minute
)

// Options are the options of a [Controller]. The zero value is useful.
type Options struct {
	// NodeName is the node on which everything runs, for an orchestrator of one node: a class that waits for its first
	// consumer then never waits, and provisions for this node. Empty means that such a claim waits until somebody, the
	// scheduler, puts the name of its node into the annotation [AnnSelectedNode].
	NodeName types.NodeName
	// Mounts knows what is mounted: a claim, and a volume whose claim is gone, stay as long as it reports a use. Give it the
	// volume manager where controller and manager are one process; nil asks nobody. It comes beside the pods, the attachments and
	// the volumesInUse of the nodes in the store.
	Mounts MountReporter
	// Events is told what happens to claims and volumes, for people to read; nil tells nobody.
	Events operationexecutor.EventRecorder
	// Logger gets what is tried again and why; nil discards it.
	Logger *slog.Logger
	// Workers is how many claims and volumes are worked on at once; 0 means [DefaultWorkers].
	Workers int
	// CallTimeout bounds each call of a plugin; 0 means [DefaultCallTimeout].
	CallTimeout time.Duration
	// InitialBackoff is the wait before what failed is tried again; it doubles with each failure in a row. 0 means half a
	// second.
	InitialBackoff time.Duration
	// MaxBackoff bounds that wait; 0 means two minutes and two seconds.
	MaxBackoff time.Duration
	// Jitter is the greatest part of a wait that is left out at random, between 0 and 1; zero means 0.1, less than zero none.
	Jitter float64
}

// Controller binds, provisions and reclaims. Make one with [New] and start it with Run. Its methods may be called from
// several goroutines at once.
type Controller struct {
	plugins *volume.VolumePluginMgr
	store   store.Store
	options Options

	claims      *store.Mirror[*v1.PersistentVolumeClaim]
	volumes     *store.Mirror[*v1.PersistentVolume]
	classes     *store.Mirror[*storagev1.StorageClass]
	pods        *store.Mirror[*v1.Pod]
	attachments *store.Mirror[*storagev1.VolumeAttachment]
	// podsOf are the pods that refer to a claim, attachmentsOf the attachments of a volume, each by its name.
	podsOf        *store.Index[*v1.Pod, types.NamespacedName]
	attachmentsOf *store.Index[*storagev1.VolumeAttachment, string]
	// volumesOf are the volumes that name a claim, by its name.
	volumesOf *store.Index[*v1.PersistentVolume, types.NamespacedName]
	// claimsNaming are the claims that name a volume, by its name.
	claimsNaming *store.Index[*v1.PersistentVolumeClaim, string]
	// liveAttachments and liveNodes are what the store has, for what would be destroyed.
	liveAttachments *lists[*storagev1.VolumeAttachment]
	liveNodes       *lists[*v1.Node]
	stock           *stock
	waiters         *waiters
	work            *work
	pending         *pendingClaims
	lost            *lostCalls
	users           *users
	started         atomic.Bool
}

// New returns a controller for the claims in s, whose volumes are made and deleted by plugins. It starts nothing.
func New(plugins *volume.VolumePluginMgr, s store.Store, options Options) *Controller {
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	if options.Events == nil {
		options.Events = noEvents{}
	}
	if options.Workers <= 0 {
		options.Workers = DefaultWorkers
	}
	if options.CallTimeout <= 0 {
		options.CallTimeout = DefaultCallTimeout
	}
	mirrors := store.MirrorOptions{Logger: options.Logger, InitialBackoff: options.InitialBackoff, MaxBackoff: options.MaxBackoff, Jitter: options.Jitter}
	c := &Controller{
		plugins:         plugins,
		store:           s,
		options:         options,
		claims:          store.NewMirror[*v1.PersistentVolumeClaim](s, mirrors),
		volumes:         store.NewMirror[*v1.PersistentVolume](s, mirrors),
		classes:         store.NewMirror[*storagev1.StorageClass](s, mirrors),
		pods:            store.NewMirror[*v1.Pod](s, mirrors),
		attachments:     store.NewMirror[*storagev1.VolumeAttachment](s, mirrors),
		liveAttachments: newLists[*storagev1.VolumeAttachment](s),
		liveNodes:       newLists[*v1.Node](s),
		waiters:         newWaiters(),
		work:            newWork(backoff.Policy{Initial: options.InitialBackoff, Max: options.MaxBackoff, Jitter: options.Jitter}),
		pending:         newPendingClaims(),
		lost:            newLostCalls(),
		users:           newUsers(),
	}
	c.volumesOf = store.NewIndex(c.volumes, func(pv *v1.PersistentVolume) []types.NamespacedName {
		if pv.Spec.ClaimRef == nil {
			return nil
		}
		return []types.NamespacedName{claimNameOf(pv)}
	})
	c.podsOf = store.NewIndex(c.pods, volume.ClaimsOfPod)
	c.attachmentsOf = store.NewIndex(c.attachments, func(at *storagev1.VolumeAttachment) []string {
		if at.Spec.Source.PersistentVolumeName == nil {
			return nil
		}
		return []string{*at.Spec.Source.PersistentVolumeName}
	})
	c.claimsNaming = store.NewIndex(c.claims, func(claim *v1.PersistentVolumeClaim) []string { return []string{claim.Spec.VolumeName} })
	c.stock = newStock(func(name string) (*v1.PersistentVolume, bool) { return c.volumes.Get(volumeKey(name)) })
	return c
}

// Run works until ctx ends, and returns when every goroutine that it started has ended. It may be called once. It
// returns nil, or a [*LostCallsError] that names the calls of plugins that did not return although their context had
// ended: those are left behind.
func (c *Controller) Run(ctx context.Context) error {
	if c.plugins == nil || c.store == nil {
		return fmt.Errorf("persistent volume controller: give New plugins and a store: %w", volume.ErrInvalid)
	}
	if c.started.Swap(true) {
		return errors.New("persistent volume controller: Run was called before: make a new controller")
	}
	c.run(ctx)
	return c.lost.error()
}

func (c *Controller) run(ctx context.Context) {
	var feeds, workers sync.WaitGroup
	defer c.work.stop()
	feeds.Go(func() { c.classes.Follow(ctx, c.classChanged) })
	feeds.Go(func() { c.volumes.Follow(ctx, c.volumeChanged) })
	feeds.Go(func() { c.claims.Follow(ctx, c.claimChanged) })
	feeds.Go(func() { c.pods.Follow(ctx, c.podChanged) })
	feeds.Go(func() { c.attachments.Follow(ctx, c.attachmentChanged) })
	if c.synced(ctx) {
		for range c.options.Workers {
			workers.Go(func() { c.work.run(ctx, c.sync) })
		}
	}
	workers.Wait()
	feeds.Wait()
}

// synced waits until everything has been listed once, and reports whether that was before ctx ended.
func (c *Controller) synced(ctx context.Context) bool {
	return c.classes.WaitSynced(ctx) && c.volumes.WaitSynced(ctx) && c.claims.WaitSynced(ctx) &&
		c.pods.WaitSynced(ctx) && c.attachments.WaitSynced(ctx)
}

// sync looks at what key names. An error means that it is looked at again after a while.
func (c *Controller) sync(ctx context.Context, key item) error {
	defer c.users.drop(key)
	var err error
	switch key.kind {
	case claimItem:
		err = c.syncClaim(ctx, key.name)
		// One that failed does not keep a volume from others until it is tried again.
		c.offerNext(key.name, c.waiters.answer(key.name))
	case volumeItem:
		err = c.syncVolume(ctx, key.name.Name)
	case podItem:
		err = c.syncPod(ctx, key.name)
	case usersItem:
		err = c.syncUsers(ctx, key.name.Namespace)
	}
	var held *heldError
	if err != nil && ctx.Err() == nil && !errors.As(err, &held) && !errors.Is(err, errAsked) {
		level := slog.LevelWarn
		if errors.Is(err, store.ErrConflict) {
			level = slog.LevelDebug
		}
		c.options.Logger.Log(ctx, level, "will be tried again", "kind", key.kind, "name", key.name.String(), "err", err)
	}
	return err
}
