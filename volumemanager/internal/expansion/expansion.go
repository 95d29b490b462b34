// Package expansion sees to it that volumes in use get the size that they are given: it follows the PersistentVolumes that the
// control plane has expanded, and the claims that ask this node to go on.
package expansion

import (
	"errors"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// Options are what a tracker needs. All are required.
type Options struct {
	// Plugins are those of the manager.
	Plugins *volume.VolumePluginMgr
	// Desired and Actual are the states of the world of this node.
	Desired *cache.DesiredStateOfWorld
	Actual  *cache.ActualStateOfWorld
	// Retry has volumes looked at again as if nothing had failed before.
	Retry func(names []v1.UniqueVolumeName)
}

// Tracker knows which volumes are smaller on this node than they are meant to be, and which claims they wait for. All methods may
// be called from several goroutines at once.
type Tracker struct {
	options Options

	mu sync.Mutex
	// readers is how many pods are being read, given the sizes of PersistentVolumes that have changed meanwhile: a pod may
	// have read them before.
	readers int
	given   map[string]resource.Quantity
	// growing are the volumes that are smaller here than they are meant to be, claims what they wait for.
	growing map[v1.UniqueVolumeName]store.Key
	claims  map[store.Key]*trackedClaim
}

// trackedClaim is a claim whose volumes are to grow here.
type trackedClaim struct {
	volumes sets.Set[v1.UniqueVolumeName]
	// seen is what it said last; nil until it has changed.
	seen *claimRequest
}

// claimRequest is the part of a claim that says whether a node has to do something.
type claimRequest struct {
	status               v1.ClaimResourceStatus
	has, allocated, asks string
}

// New returns a tracker of no volumes.
func New(o Options) *Tracker {
	return &Tracker{
		options: o, given: make(map[string]resource.Quantity),
		growing: make(map[v1.UniqueVolumeName]store.Key), claims: make(map[store.Key]*trackedClaim),
	}
}

// MustGrow implements reconciler.Expansions. Where the plugin cannot expand a volume while it is used, it is left alone.
func (t *Tracker) MustGrow(wanted *operationexecutor.VolumeToMount, has resource.Quantity) bool {
	if wants := wanted.DesiredPersistentVolumeSize; wants.Cmp(has) <= 0 {
		return false
	}
	return t.options.Plugins.Capabilities(wanted.PluginName).Has(volume.CapNodeExpand) && !t.options.Actual.HasInUseExpansionError(wanted.VolumeName)
}

// Watch implements reconciler.Expansions: it begins to follow the claim of a volume, before the claim is read, or ends it.
func (t *Tracker) Watch(name v1.UniqueVolumeName, claim v1.ObjectReference, grows bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key, growing := t.growing[name]
	switch {
	case growing == grows:
	case !grows:
		delete(t.growing, name)
		if claim := t.claims[key]; claim.volumes.Delete(name).Len() == 0 {
			delete(t.claims, key)
		}
	default:
		key := claimKey(claim)
		t.growing[name] = key
		if t.claims[key] == nil {
			t.claims[key] = &trackedClaim{volumes: sets.New[v1.UniqueVolumeName]()}
		}
		t.claims[key].volumes.Insert(name)
	}
}

// IsGrowing implements reconciler.Expansions: it reports whether a volume is smaller here than it is meant to be.
func (t *Tracker) IsGrowing(name v1.UniqueVolumeName) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, ok := t.growing[name]
	return ok
}

// Tracked returns how many volumes and claims are followed, and how many sizes are kept for pods that are being read.
func (t *Tracker) Tracked() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.growing) + len(t.claims) + len(t.given)
}

func claimKey(ref v1.ObjectReference) store.Key {
	return store.Key{Kind: store.PersistentVolumeClaims, Namespace: ref.Namespace, Name: ref.Name}
}

// Awaits implements reconciler.Expansions. An expansion that failed is tried again when the claim or the PersistentVolume changes, and not
// after a while: the control plane has not asked for it yet, or it can never be had at this size.
func (t *Tracker) Awaits(name v1.UniqueVolumeName, err error) bool {
	if !errors.Is(err, operationexecutor.ErrExpansionNotRequested) && !errors.Is(err, volume.ErrInfeasible) {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	claim := t.claims[t.growing[name]]
	return claim != nil && (claim.seen == nil || !claim.seen.asksNode())
}

// ClaimChanged has the volumes of a claim looked at that asks this node for something new. What this node writes while it works on
// the volume says nothing new.
func (t *Tracker) ClaimChanged(pvc *v1.PersistentVolumeClaim) {
	key := claimKey(v1.ObjectReference{Namespace: pvc.Namespace, Name: pvc.Name})
	now := requestOf(pvc)
	t.mu.Lock()
	claim := t.claims[key]
	if claim == nil || claim.seen != nil && *claim.seen == now {
		t.mu.Unlock()
		return
	}
	claim.seen = &now
	names := sets.List(claim.volumes)
	t.mu.Unlock()
	if now.asksNode() {
		t.options.Retry(names)
	}
}

func requestOf(pvc *v1.PersistentVolumeClaim) claimRequest {
	storage := func(list v1.ResourceList) string {
		size := list[v1.ResourceStorage]
		return size.String()
	}
	status := pvc.Status.AllocatedResourceStatuses[v1.ResourceStorage]
	if status == v1.PersistentVolumeClaimNodeResizeInProgress {
		status = v1.PersistentVolumeClaimNodeResizePending // A node has begun with what it was asked for before.
	}
	return claimRequest{
		status: status,
		has:    storage(pvc.Status.Capacity), allocated: storage(pvc.Status.AllocatedResources), asks: storage(pvc.Spec.Resources.Requests),
	}
}

// asksNode reports whether a node may go on. A claim that tells nothing is one of a control plane that does not, or one
// that another node has finished with.
func (r claimRequest) asksNode() bool {
	switch r.status {
	case "", v1.PersistentVolumeClaimNodeResizePending:
		return true
	default:
		return false
	}
}

// VolumeChanged takes over the size of a PersistentVolume.
func (t *Tracker) VolumeChanged(pv *v1.PersistentVolume) {
	size, ok := pv.Spec.Capacity[v1.ResourceStorage]
	if !ok {
		return
	}
	// It is noted first: a pod that has read it before looks at the note after its volume is in the desired state.
	t.note(pv.Name, size)
	for _, name := range t.namesOf(pv) {
		t.options.Desired.UpdatePersistentVolumeSize(name, size)
	}
}

// note keeps the size of a PersistentVolume while pods are being read: one may have read the size before.
func (t *Tracker) note(name string, size resource.Quantity) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.readers > 0 {
		t.given[name] = size
	}
}

// Reading is called before the volumes of a pod are read, and what it returns when they are in the desired state.
func (t *Tracker) Reading() (done func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.readers++
	return t.read
}

func (t *Tracker) read() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.readers--; t.readers == 0 {
		clear(t.given)
	}
}

// Settle takes over the size of a volume whose PersistentVolume has changed while its pod was read.
func (t *Tracker) Settle(name v1.UniqueVolumeName, persistentVolume string) {
	t.mu.Lock()
	size, ok := t.given[persistentVolume]
	t.mu.Unlock()
	if ok {
		t.options.Desired.UpdatePersistentVolumeSize(name, size)
	}
}

// namesOf returns the volumes that pods here want of a PersistentVolume that a node has to do something about when it grows.
func (t *Tracker) namesOf(pv *v1.PersistentVolume) []v1.UniqueVolumeName {
	r, err := t.options.Plugins.Resolve(volume.NewSpecFromPersistentVolume(pv, false))
	if err != nil || !r.NodeExpandable {
		return nil // Nobody can want a volume without a plugin.
	}
	if r.Attachable || r.DeviceMountable {
		name, err := r.UniqueVolumeName("")
		if err != nil {
			return nil
		}
		return []v1.UniqueVolumeName{name}
	}
	return t.options.Desired.GetVolumeNamesOfPersistentVolume(pv.Name) // Each pod has one of its own.
}
