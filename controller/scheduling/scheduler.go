package scheduling

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// ScorePolicy decides which nodes get a higher score.
type ScorePolicy uint8

// The policies. Both compare how much of the storage the pod's claims use: the part of each existing volume that its claim
// requests, and the part of the segment's capacity that new volumes take.
const (
	// LeastCapacityLeft prefers nodes where the claims use the largest part, so large volumes and empty segments stay free.
	LeastCapacityLeft ScorePolicy = iota
	// MostCapacityLeft prefers nodes where the claims use the smallest part, so volumes have room to be expanded.
	MostCapacityLeft
)

// defaultBindTimeout is the default for [Options].BindTimeout.
const defaultBindTimeout = 10 * time.Minute

// Options are the options of a [Scheduler]. The zero value is useful.
type Options struct {
	// Score decides which nodes get a higher score.
	Score ScorePolicy
	// BindTimeout is how long Bind waits for claims to be bound; zero means ten minutes.
	BindTimeout time.Duration
	// Changed is called for each change that may make a refused pod possible: see [Waits]. It must return soon, may call
	// the Scheduler, and is called from several goroutines at once. Nil drops the changes.
	Changed func(ClusterEvent)
	// Logger logs faulty objects, and reasons for reading the store again; nil discards.
	Logger *slog.Logger
	// Mirrors are the options of the mirrors of the store. Their Logger is Logger unless set.
	Mirrors store.MirrorOptions
}

// Scheduler finds the nodes on which pods can have their volumes. Make it with [New] and start it with Run. Its methods may
// be called from several goroutines at once.
type Scheduler struct {
	store   store.Store
	options Options
	started atomic.Bool

	nodes       *store.Mirror[*v1.Node]
	pods        *store.Mirror[*v1.Pod]
	claims      *store.Mirror[*v1.PersistentVolumeClaim]
	volumes     *store.Mirror[*v1.PersistentVolume]
	classes     *store.Mirror[*storagev1.StorageClass]
	csiNodes    *store.Mirror[*storagev1.CSINode]
	csiDrivers  *store.Mirror[*storagev1.CSIDriver]
	capacities  *store.Mirror[*storagev1.CSIStorageCapacity]
	attachments *store.Mirror[*storagev1.VolumeAttachment]
	// attributes mirrors VolumeAttributesClasses. A store may not have this kind, so WaitSynced does not wait for it.
	attributes *store.Mirror[*storagev1.VolumeAttributesClass]

	mu    sync.RWMutex // not held during I/O or callbacks
	index *index
	waits map[types.NamespacedName]map[*Reservation]bool // the reservations that wait for each claim
}

// New returns a scheduler for the objects in s. It starts nothing and does no I/O.
func New(s store.Store, options Options) *Scheduler {
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	if options.BindTimeout == 0 {
		options.BindTimeout = defaultBindTimeout
	}
	if options.Mirrors.Logger == nil {
		options.Mirrors.Logger = options.Logger
	}
	m := options.Mirrors
	return &Scheduler{
		store: s, options: options, index: newIndex(options.Logger), waits: map[types.NamespacedName]map[*Reservation]bool{},
		nodes:       store.NewMirror[*v1.Node](s, m),
		pods:        store.NewMirror[*v1.Pod](s, m),
		claims:      store.NewMirror[*v1.PersistentVolumeClaim](s, m),
		volumes:     store.NewMirror[*v1.PersistentVolume](s, m),
		classes:     store.NewMirror[*storagev1.StorageClass](s, m),
		csiNodes:    store.NewMirror[*storagev1.CSINode](s, m),
		csiDrivers:  store.NewMirror[*storagev1.CSIDriver](s, m),
		capacities:  store.NewMirror[*storagev1.CSIStorageCapacity](s, m),
		attachments: store.NewMirror[*storagev1.VolumeAttachment](s, m),
		attributes:  store.NewMirror[*storagev1.VolumeAttributesClass](s, m),
	}
}

// Run follows the store until ctx ends, and returns when every goroutine that it started has ended. If Run was called
// twice, or the options are wrong, the error matches [volume.ErrInvalid].
func (s *Scheduler) Run(ctx context.Context) error {
	if s.options.BindTimeout < 0 {
		return fmt.Errorf("scheduler: BindTimeout %s is negative: %w", s.options.BindTimeout, volume.ErrInvalid)
	}
	if s.started.Swap(true) {
		return fmt.Errorf("scheduler: Run was called twice: make another scheduler: %w", volume.ErrInvalid)
	}
	var feeds sync.WaitGroup
	feeds.Go(func() { s.nodes.Follow(ctx, s.nodeChanged) })
	feeds.Go(func() { s.pods.Follow(ctx, s.podChanged) })
	feeds.Go(func() { s.claims.Follow(ctx, s.claimChanged) })
	feeds.Go(func() { s.volumes.Follow(ctx, s.volumeChanged) })
	feeds.Go(func() { s.classes.Follow(ctx, s.classChanged) })
	feeds.Go(func() { s.csiNodes.Follow(ctx, s.csiNodeChanged) })
	feeds.Go(func() { s.csiDrivers.Follow(ctx, s.csiDriverChanged) })
	feeds.Go(func() { s.capacities.Follow(ctx, s.capacityChanged) })
	feeds.Go(func() { s.attachments.Follow(ctx, s.attachmentChanged) })
	feeds.Go(func() { s.attributes.Follow(ctx, s.attributesChanged) })
	feeds.Go(func() { s.reportExpired(ctx) })
	feeds.Wait()
	return nil
}

// WaitSynced waits until every kind of object was read once. It returns false if ctx ends before. It does not wait for
// VolumeAttributesClasses, which a store may not have: until they are read, Find refuses claims that need one.
func (s *Scheduler) WaitSynced(ctx context.Context) bool {
	return s.nodes.WaitSynced(ctx) && s.pods.WaitSynced(ctx) && s.claims.WaitSynced(ctx) && s.volumes.WaitSynced(ctx) &&
		s.classes.WaitSynced(ctx) && s.csiNodes.WaitSynced(ctx) && s.csiDrivers.WaitSynced(ctx) &&
		s.capacities.WaitSynced(ctx) && s.attachments.WaitSynced(ctx)
}

// Find returns where a pod can have its volumes, with a result for each node. It does no I/O. An error is a *[PodError]:
// the pod can have its volumes on no node until the claim in the error changes. For a nil pod the error matches
// [volume.ErrInvalid].
func (s *Scheduler) Find(p *v1.Pod) (*Result, error) {
	if p == nil {
		return nil, fmt.Errorf("find nodes: no pod: %w", volume.ErrInvalid)
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	x := s.index
	search, err := x.newSearch(p, 0, int32(len(x.nodes.entries)), s.options.Score)
	if err != nil {
		return nil, err
	}
	defer search.release()
	search.run()
	return s.resultOf(search), nil
}

// resultOf returns the result of a search. The caller holds s.mu.
func (s *Scheduler) resultOf(p *search) *Result {
	return &Result{
		scheduler: s, pod: p.key, names: p.index.nodes.share()[p.lo:p.hi], results: p.results, claims: p.claimNames(), lo: p.lo,
		drivers: slices.Clone(p.drivers), users: p.users, disks: p.disks,
	}
}

// slotOf returns the slot of an existing node, and false for a missing one.
func (s *Scheduler) slotOf(node string) (int32, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.index.nodes.find(node)
}

// podsWith returns the pods on a node that use volumes of a driver now, without except.
func (s *Scheduler) podsWith(node string, d *driver, except podKey) []types.NamespacedName {
	s.mu.RLock()
	defer s.mu.RUnlock()
	slot, there := s.index.nodes.find(node)
	if !there {
		return nil
	}
	return sorted(s.index.podsWith(slot, d, except))
}

// podsWithDisks returns the pods on a node that use one of the disks now, without except.
func (s *Scheduler) podsWithDisks(node string, disks []v1.Volume, except podKey) []types.NamespacedName {
	s.mu.RLock()
	defer s.mu.RUnlock()
	slot, there := s.index.nodes.find(node)
	if !there {
		return nil
	}
	return sorted(s.index.diskConflicts(slot, disks, except))
}

func sorted(names []types.NamespacedName) []types.NamespacedName {
	slices.SortFunc(names, func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) })
	return names
}
