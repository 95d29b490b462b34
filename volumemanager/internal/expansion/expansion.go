// Package expansion finds volumes in use that the node has to expand: it follows the PersistentVolumes that the control
// plane has expanded, and the claims that ask the node to finish an expansion.
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
	// Plugins are the plugins of the manager.
	Plugins *volume.VolumePluginMgr
	// Desired and Actual are the states of the world of this node.
	Desired *cache.DesiredStateOfWorld
	Actual  *cache.ActualStateOfWorld
	// Retry plans volumes again at once, without the backoff of earlier failures.
	Retry func(names []v1.UniqueVolumeName)
}

// Tracker knows which volumes are smaller on this node than their PersistentVolumes, and which claims they belong to. All
// methods may be called from several goroutines at once.
type Tracker struct {
	options Options

	mu sync.Mutex
	// readers counts the pods that are being read. changedSizes holds the sizes of PersistentVolumes that have changed since: a pod
	// may have read the old size.
	readers      int
	changedSizes map[string]resource.Quantity
	// expanding holds the volumes that are smaller on this node than they should be, each with its claim. claims holds these
	// claims.
	expanding map[v1.UniqueVolumeName]store.Key
	claims    map[store.Key]*trackedClaim
}

// trackedClaim is a claim that has volumes to expand on this node.
type trackedClaim struct {
	volumes sets.Set[v1.UniqueVolumeName]
	// seen is the latest request of the claim; nil until the claim changes for the first time.
	seen *claimRequest
}

// claimRequest holds the fields of a claim that show whether a node has to act.
type claimRequest struct {
	status               v1.ClaimResourceStatus
	has, allocated, asks string
}

// New returns a tracker that tracks no volumes.
func New(o Options) *Tracker {
	return &Tracker{
		options: o, changedSizes: make(map[string]resource.Quantity),
		expanding: make(map[v1.UniqueVolumeName]store.Key), claims: make(map[store.Key]*trackedClaim),
	}
}

// MustExpand implements reconciler.Expansions. It is false for a volume whose plugin cannot expand it while it is in use.
func (t *Tracker) MustExpand(wanted *operationexecutor.VolumeToMount, has resource.Quantity) bool {
	if wants := wanted.DesiredPersistentVolumeSize; wants.Cmp(has) <= 0 {
		return false
	}
	return t.options.Plugins.Capabilities(wanted.PluginName).Has(volume.CapNodeExpand) && !t.options.Actual.HasInUseExpansionError(wanted.VolumeName)
}

// Watch implements reconciler.Expansions. If the volume is smaller on this node than it should be, it starts to follow the
// volume's claim; otherwise it stops that. Call it before the claim is read.
func (t *Tracker) Watch(name v1.UniqueVolumeName, claim v1.ObjectReference, smaller bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key, expanding := t.expanding[name]
	switch {
	case expanding == smaller:
	case !smaller:
		delete(t.expanding, name)
		if claim := t.claims[key]; claim.volumes.Delete(name).Len() == 0 {
			delete(t.claims, key)
		}
	default:
		key := claimKey(claim)
		t.expanding[name] = key
		if t.claims[key] == nil {
			t.claims[key] = &trackedClaim{volumes: sets.New[v1.UniqueVolumeName]()}
		}
		t.claims[key].volumes.Insert(name)
	}
}

// IsExpanding implements reconciler.Expansions. It reports whether a volume is smaller on this node than it should be.
func (t *Tracker) IsExpanding(name v1.UniqueVolumeName) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, ok := t.expanding[name]
	return ok
}

// Tracked returns how many volumes, claims and changed sizes the tracker holds, added up.
func (t *Tracker) Tracked() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.expanding) + len(t.claims) + len(t.changedSizes)
}

func claimKey(ref v1.ObjectReference) store.Key {
	return store.Key{Kind: store.PersistentVolumeClaims, Namespace: ref.Namespace, Name: ref.Name}
}

// Awaits implements reconciler.Expansions. It reports whether a failed expansion waits for a change of the claim or the
// PersistentVolume. A later retry would not help: the control plane has not asked for the expansion yet, or this size is
// infeasible.
func (t *Tracker) Awaits(name v1.UniqueVolumeName, err error) bool {
	if !errors.Is(err, operationexecutor.ErrExpansionNotRequested) && !errors.Is(err, volume.ErrInfeasible) {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	claim := t.claims[t.expanding[name]]
	return claim != nil && (claim.seen == nil || !claim.seen.asksNode())
}

// ClaimChanged retries the volumes of a claim when the claim asks this node for something new. The node's own writes during
// an expansion are nothing new.
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
		status = v1.PersistentVolumeClaimNodeResizePending // It continues a pending request: it is no new one.
	}
	return claimRequest{
		status: status,
		has:    storage(pvc.Status.Capacity), allocated: storage(pvc.Status.AllocatedResources), asks: storage(pvc.Spec.Resources.Requests),
	}
}

// asksNode reports whether a node may expand the volume. An empty status allows it: the control plane does not use the
// status, or another node has finished its part.
func (r claimRequest) asksNode() bool {
	switch r.status {
	case "", v1.PersistentVolumeClaimNodeResizePending:
		return true
	default:
		return false
	}
}

// VolumeChanged enters the changed size of a PersistentVolume into the desired state.
func (t *Tracker) VolumeChanged(pv *v1.PersistentVolume) {
	size, ok := pv.Spec.Capacity[v1.ResourceStorage]
	if !ok {
		return
	}
	// The note comes first. A pod that has read the old size calls ApplyChangedSize after its volume is in the desired state, and
	// finds the note.
	t.note(pv.Name, size)
	for _, name := range t.namesOf(pv) {
		t.options.Desired.UpdatePersistentVolumeSize(name, size)
	}
}

// note keeps the size of a PersistentVolume while pods are being read, because one of them may have read the old size.
func (t *Tracker) note(name string, size resource.Quantity) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.readers > 0 {
		t.changedSizes[name] = size
	}
}

// Reading must be called before the volumes of a pod are read. The caller calls done when they are in the desired state.
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
		clear(t.changedSizes)
	}
}

// ApplyChangedSize enters the size of a PersistentVolume that has changed while the pod of this volume was read.
func (t *Tracker) ApplyChangedSize(name v1.UniqueVolumeName, persistentVolume string) {
	t.mu.Lock()
	size, ok := t.changedSizes[persistentVolume]
	t.mu.Unlock()
	if ok {
		t.options.Desired.UpdatePersistentVolumeSize(name, size)
	}
}

// namesOf returns the volumes of a PersistentVolume that pods on this node want and that the node can expand.
func (t *Tracker) namesOf(pv *v1.PersistentVolume) []v1.UniqueVolumeName {
	r, err := t.options.Plugins.Resolve(volume.NewSpecFromPersistentVolume(pv, false))
	if err != nil || !r.NodeExpandable {
		return nil // Without a plugin no pod can want the volume.
	}
	if r.Attachable || r.DeviceMountable {
		name, err := r.UniqueVolumeName("")
		if err != nil {
			return nil
		}
		return []v1.UniqueVolumeName{name}
	}
	return t.options.Desired.GetVolumeNamesOfPersistentVolume(pv.Name) // Each pod has a volume of its own.
}
