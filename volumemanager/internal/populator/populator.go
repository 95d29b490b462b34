// Package populator turns the pods of a node into what is wanted there: it checks pods, reads their claims and the volumes of these
// from the store, and enters each volume that a container uses into the desired state of the world. It follows the store, and the
// plugins that come and go, and resolves again what was not ready.
package populator

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/internal/workqueue"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/expansion"
	"github.com/volumekit/volumekit/volumemanager/internal/keylock"
	"github.com/volumekit/volumekit/volumemanager/internal/retry"
)

// Earlier knows what an earlier manager left, and which pods may still be added. A recovery.Recovery is one.
type Earlier interface {
	// PodAdded is called with each pod that was added, PodRemoved with each that was removed.
	PodAdded(pod volume.UniquePodName)
	PodRemoved(pod volume.UniquePodName)
	// Settle and Sweep are called when the volumes of a pod that was removed are wanted no more.
	Settle(pod volume.UniquePodName)
	Sweep(pod volume.UniquePodName)
	// MayUseVolumes reports whether a pod that is not known may still be added, MayBeWanted whether such a pod may want a volume.
	MayUseVolumes(pod volume.UniquePodName) bool
	MayBeWanted(name v1.UniqueVolumeName) bool
}

// Options are what a populator needs of the others. All are required, but for Store, Prober and SELinux.
type Options struct {
	// Plugins are those of the manager, which Prober adds to.
	Plugins *volume.VolumePluginMgr
	Prober  volume.DynamicPluginProber
	// Store has claims and PersistentVolumes.
	Store   store.Store
	SELinux Labels
	Logger  *slog.Logger
	// Desired is what is written. Actual is what is known to be here.
	Desired *cache.DesiredStateOfWorld
	Actual  *cache.ActualStateOfWorld
	// Expansion learns of claims and PersistentVolumes that have changed.
	Expansion *expansion.Tracker
	// Earlier knows what an earlier manager left. Orphans lists what of that is on no record.
	Earlier Earlier
	Orphans interface{ ForgetPod(uid types.UID) }
	// Look has volumes looked at for a pod, Retry as a whole and as if nothing had failed before.
	Look  func(pod volume.UniquePodName, names []v1.UniqueVolumeName)
	Retry func(names []v1.UniqueVolumeName)
	// ResetBackoff lets an operation that failed begin at once.
	ResetBackoff func(key operationexecutor.Key)
	// Notify wakes those who wait for a pod.
	Notify func(pod volume.UniquePodName)
}

// Populator knows the pods of the node. Make it with [New]. All methods may be called from several goroutines at once.
type Populator struct {
	options  Options
	resolver resolver
	// waits says which pods wait for which objects, dirty are the pods whose claims are to be resolved again.
	waits *waits
	dirty *workqueue.Queue[types.UID]
	// locks orders those who change what one pod wants.
	locks keylock.Locks[types.UID]

	// mu guards what follows. No plugin or store is called while it is held.
	mu   sync.Mutex
	pods map[types.UID]*Pod
	// reading holds the pods whose claims are being read, for which nothing is wanted yet.
	reading map[*v1.Pod]struct{}
}

// New returns a populator without pods. It starts nothing.
func New(o Options) *Populator {
	p := &Populator{
		options: o, waits: newWaits(), dirty: workqueue.New[types.UID](),
		pods: make(map[types.UID]*Pod), reading: make(map[*v1.Pod]struct{}),
	}
	p.resolver = resolver{plugins: o.Plugins, store: o.Store, seLinux: o.SELinux, dynamic: o.Prober != nil, reading: p.waits.add}
	return p
}

// Run starts the goroutines that resolve claims again, follow the store and probe for plugins, as part of wg. They end with ctx.
func (p *Populator) Run(ctx context.Context, wg *sync.WaitGroup) {
	wg.Go(func() { p.populateAll(ctx) })
	if p.options.Store != nil {
		options := store.MirrorOptions{Logger: p.options.Logger, InitialBackoff: retry.First, MaxBackoff: retry.Last}
		wg.Go(func() { store.Follow(ctx, p.options.Store, claims{p}, options) })
		wg.Go(func() { store.Follow(ctx, p.options.Store, persistentVolumes{p}, options) })
	}
	if p.options.Prober != nil {
		wg.Go(func() { p.probeAll(ctx) })
	}
}

// Stop ends the timers of pods that are to be resolved again.
func (p *Populator) Stop() { p.dirty.Stop() }

// Pod returns a pod that was added; nil when there is none of that UID.
func (p *Populator) Pod(uid types.UID) *Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pods[uid]
}

// IsKnown reports whether a pod was added.
func (p *Populator) IsKnown(pod volume.UniquePodName) bool { return p.Pod(types.UID(pod)) != nil }

// UIDs returns the pods that were added.
func (p *Populator) UIDs() []types.UID {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.pods))
}

// Uses reports whether a pod was added and uses a volume.
func (p *Populator) Uses(pod volume.UniquePodName, name v1.UniqueVolumeName) bool {
	return p.Pod(types.UID(pod)).Uses(name)
}

// MayUse reports whether it is not known which volumes a pod uses: some of its claims were never resolved, or the pod was not added
// yet.
func (p *Populator) MayUse(pod volume.UniquePodName) bool {
	if known := p.Pod(types.UID(pod)); known != nil {
		return !known.isComplete()
	}
	return p.options.Earlier.MayUseVolumes(pod)
}

// MayBeWanted reports whether a pod that is not known yet may want a volume.
func (p *Populator) MayBeWanted(name v1.UniqueVolumeName) bool {
	return p.options.Earlier.MayBeWanted(name)
}

// Readers returns the pods whose claims are being read and that refer to the claim of a PersistentVolume.
func (p *Populator) Readers(pv *v1.PersistentVolume) []volume.UniquePodName {
	if pv.Spec.ClaimRef == nil {
		return nil
	}
	claim := types.NamespacedName{Namespace: pv.Spec.ClaimRef.Namespace, Name: pv.Spec.ClaimRef.Name}
	p.mu.Lock()
	defer p.mu.Unlock()
	var pods []volume.UniquePodName
	for pod := range p.reading {
		if slices.Contains(volume.ClaimsOfPod(pod), claim) {
			pods = append(pods, volume.GetUniquePodName(pod))
		}
	}
	return pods
}

// read enters that the claims of a pod are being read, until end is called: the pod may be about to want what they are bound to. pod
// must not be one that is entered already.
func (p *Populator) read(pod *v1.Pod) (end func()) {
	sizes := p.options.Expansion.Reading()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reading[pod] = struct{}{}
	return func() {
		p.mu.Lock()
		delete(p.reading, pod)
		p.mu.Unlock()
		p.options.Notify(volume.GetUniquePodName(pod))
		sizes()
	}
}
