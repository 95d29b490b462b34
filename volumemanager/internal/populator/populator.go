// Package populator maintains the desired state of the world from the pods of a node. It checks pods, reads their claims and
// PersistentVolumes from the store, and enters each volume that a container uses. It follows the store and the plugins, and
// resolves again what could not be resolved before.
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

// Earlier knows which volumes an earlier manager left, and which pods may still be added. A recovery.Recovery implements it.
type Earlier interface {
	// PodAdded is called with each pod that is added; PodRemoved, with each pod that is removed.
	PodAdded(pod volume.UniquePodName)
	PodRemoved(pod volume.UniquePodName)
	// ForgetRemoval and RemoveDirsAfterRead are called when the desired state no longer holds the volumes of a removed pod.
	ForgetRemoval(pod volume.UniquePodName)
	RemoveDirsAfterRead(pod volume.UniquePodName)
	// MayUseVolumes reports whether an unknown pod may still be added. MayBeWanted reports whether such a pod may need
	// a volume.
	MayUseVolumes(pod volume.UniquePodName) bool
	MayBeWanted(name v1.UniqueVolumeName) bool
}

// Options are what a populator needs. All fields are required except Store, Prober and SELinux.
type Options struct {
	// Plugins are the plugins of the manager. Prober adds to them.
	Plugins *volume.VolumePluginMgr
	Prober  volume.DynamicPluginProber
	// Store has claims and PersistentVolumes.
	Store   store.Store
	SELinux Labels
	Logger  *slog.Logger
	// Desired is the state that the populator writes. Actual is the state of the volumes on this node.
	Desired *cache.DesiredStateOfWorld
	Actual  *cache.ActualStateOfWorld
	// Expansion gets changed claims and PersistentVolumes.
	Expansion *expansion.Tracker
	// Earlier knows which volumes an earlier manager left. Orphans lists what has no record.
	Earlier Earlier
	Orphans interface{ ForgetPod(uid types.UID) }
	// Plan plans volumes again for a pod. Retry plans volumes for all pods at once, without the backoff of earlier failures.
	Plan  func(pod volume.UniquePodName, names []v1.UniqueVolumeName)
	Retry func(names []v1.UniqueVolumeName)
	// ResetBackoff lets an operation that has failed begin at once.
	ResetBackoff func(key operationexecutor.Key)
	// Notify wakes the callers that wait for a pod.
	Notify func(pod volume.UniquePodName)
}

// Populator knows the pods of the node. Make it with [New]. All methods may be called from several goroutines at once.
type Populator struct {
	options  Options
	resolver resolver
	// waits says which pods wait for which objects. dirty queues the pods whose claims have to be resolved again.
	waits *waits
	dirty *workqueue.Queue[types.UID]
	// locks serializes changes of the volumes that one pod needs.
	locks keylock.Locks[types.UID]

	// mu guards the fields below. No plugin or store is called while it is held.
	mu   sync.Mutex
	pods map[types.UID]*Pod
	// reading holds the pods whose claims are being read. The desired state has none of their volumes yet.
	reading map[*v1.Pod]struct{}
}

// New returns a populator without pods. It starts no goroutine.
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
	wg.Go(func() { p.populateAll(ctx, wg) })
	if p.options.Store != nil {
		options := store.MirrorOptions{Logger: p.options.Logger, InitialBackoff: retry.First, MaxBackoff: retry.Last}
		wg.Go(func() { store.Follow(ctx, p.options.Store, claims{p}, options) })
		wg.Go(func() { store.Follow(ctx, p.options.Store, persistentVolumes{p}, options) })
	}
	if p.options.Prober != nil {
		wg.Go(func() { p.probeAll(ctx) })
	}
}

// Stop ends the timers after which pods would be resolved again.
func (p *Populator) Stop() { p.dirty.Stop() }

// Pod returns the pod with a UID that was added; nil if there is none.
func (p *Populator) Pod(uid types.UID) *Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pods[uid]
}

// IsKnown reports whether a pod was added.
func (p *Populator) IsKnown(pod volume.UniquePodName) bool { return p.Pod(types.UID(pod)) != nil }

// UIDs returns the UIDs of all pods that were added.
func (p *Populator) UIDs() []types.UID {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.pods))
}

// Uses reports whether a pod was added and uses a volume.
func (p *Populator) Uses(pod volume.UniquePodName, name v1.UniqueVolumeName) bool {
	return p.Pod(types.UID(pod)).Uses(name)
}

// MayUse reports whether a pod may use volumes that are not known: because a volume of the pod has never been resolved, or
// because the pod may still be added.
func (p *Populator) MayUse(pod volume.UniquePodName) bool {
	if known := p.Pod(types.UID(pod)); known != nil {
		return !known.isComplete()
	}
	return p.options.Earlier.MayUseVolumes(pod)
}

// MayBeWanted reports whether a pod that is not known yet may need a volume.
func (p *Populator) MayBeWanted(name v1.UniqueVolumeName) bool {
	return p.options.Earlier.MayBeWanted(name)
}

// Readers returns the pods that refer to the claim of a PersistentVolume and whose claims are being read.
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

// read notes that the claims of a pod are being read, until the caller calls end. Meanwhile the pod may be about to want the
// volumes of these claims. pod must not be noted already.
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
