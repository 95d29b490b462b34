package volumemanager

import (
	"errors"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// growth sees to it that volumes in use get the size that they are given: it watches the PersistentVolumes that the control
// plane has expanded, and the claims that ask this node to go on.
type growth struct {
	m *Manager

	mu sync.Mutex
	// readers is how many pods are being read, given the sizes of PersistentVolumes that have changed meanwhile: a pod may
	// have read them before.
	readers int
	given   map[string]resource.Quantity
	// growing are the volumes that are smaller here than they are meant to be, claims what they wait for.
	growing map[v1.UniqueVolumeName]store.Key
	claims  map[store.Key]*growingClaim
}

// growingClaim is a claim whose volumes are to grow here.
type growingClaim struct {
	volumes sets.Set[v1.UniqueVolumeName]
	// seen is what it said last; nil until it has changed.
	seen *claimRequest
}

// claimRequest is the part of a claim that says whether a node has to do something.
type claimRequest struct {
	status               v1.ClaimResourceStatus
	has, allocated, asks string
}

func newGrowth(m *Manager) *growth {
	return &growth{
		m: m, given: make(map[string]resource.Quantity),
		growing: make(map[v1.UniqueVolumeName]store.Key), claims: make(map[store.Key]*growingClaim),
	}
}

// MustGrow implements reconciler.Expansions. Where the plugin cannot make a volume grow while it is used, it is left alone.
func (g *growth) MustGrow(row *operationexecutor.VolumeToMount, has resource.Quantity) bool {
	if wants := row.DesiredPersistentVolumeSize; wants.Cmp(has) <= 0 {
		return false
	}
	return g.m.plugins.Capabilities(row.PluginName).Has(volume.CapNodeExpand) && !g.m.actual.HasInUseExpansionError(row.VolumeName)
}

// Watch implements reconciler.Expansions: it begins to watch the claim of a volume, before the claim is read, or ends it.
func (g *growth) Watch(name v1.UniqueVolumeName, claim v1.ObjectReference, grows bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	key, growing := g.growing[name]
	switch {
	case growing == grows:
	case !grows:
		delete(g.growing, name)
		if claim := g.claims[key]; claim.volumes.Delete(name).Len() == 0 {
			delete(g.claims, key)
		}
	default:
		key := claimKey(claim)
		g.growing[name] = key
		if g.claims[key] == nil {
			g.claims[key] = &growingClaim{volumes: sets.New[v1.UniqueVolumeName]()}
		}
		g.claims[key].volumes.Insert(name)
	}
}

func claimKey(ref v1.ObjectReference) store.Key {
	return store.Key{Kind: store.PersistentVolumeClaims, Namespace: ref.Namespace, Name: ref.Name}
}

// Awaits implements reconciler.Expansions. An expansion that failed is tried again when the claim or the PersistentVolume changes, and not
// after a while: the control plane has not asked for it yet, or it can never be had at this size.
func (g *growth) Awaits(name v1.UniqueVolumeName, err error) bool {
	if !errors.Is(err, operationexecutor.ErrExpansionNotRequested) && !errors.Is(err, volume.ErrInfeasible) {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	claim := g.claims[g.growing[name]]
	return claim != nil && (claim.seen == nil || !claim.seen.asksNode())
}

// changed is told of each claim and PersistentVolume that was listed or has changed.
func (g *growth) changed(obj runtime.Object) {
	switch obj := obj.(type) {
	case *v1.PersistentVolumeClaim:
		g.claimChanged(obj)
	case *v1.PersistentVolume:
		g.volumeChanged(obj)
	}
}

// claimChanged wakes the volumes of a claim that asks this node for something new. What this node writes while it works on
// the volume says nothing new.
func (g *growth) claimChanged(pvc *v1.PersistentVolumeClaim) {
	key := claimKey(v1.ObjectReference{Namespace: pvc.Namespace, Name: pvc.Name})
	now := requestOf(pvc)
	g.mu.Lock()
	claim := g.claims[key]
	if claim == nil || claim.seen != nil && *claim.seen == now {
		g.mu.Unlock()
		return
	}
	claim.seen = &now
	names := sets.List(claim.volumes)
	g.mu.Unlock()
	if now.asksNode() {
		g.m.retryAll(names)
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

// volumeChanged takes over the size of a PersistentVolume.
func (g *growth) volumeChanged(pv *v1.PersistentVolume) {
	size, ok := pv.Spec.Capacity[v1.ResourceStorage]
	if !ok {
		return
	}
	// It is noted first: a pod that has read it before looks at the note after its volume is in the desired state.
	g.note(pv.Name, size)
	for _, name := range g.namesOf(pv) {
		g.m.desired.UpdatePersistentVolumeSize(name, size)
	}
}

// note keeps the size of a PersistentVolume that somebody may have read before.
func (g *growth) note(name string, size resource.Quantity) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.readers > 0 {
		g.given[name] = size
	}
}

// reading is called before the volumes of a pod are read, and what it returns when they are in the desired state.
func (g *growth) reading() (done func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.readers++
	return g.read
}

func (g *growth) read() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.readers--; g.readers == 0 {
		clear(g.given)
	}
}

// settle takes over the sizes of the volumes of a pod that have changed while they were read.
func (g *growth) settle(answers []resolution) {
	for _, a := range answers {
		if a.spec == nil || a.spec.PersistentVolume == nil {
			continue
		}
		if size, ok := g.noted(a.spec.PersistentVolume.Name); ok {
			g.m.desired.UpdatePersistentVolumeSize(a.name, size)
		}
	}
}

func (g *growth) noted(name string) (resource.Quantity, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	size, ok := g.given[name]
	return size, ok
}

// namesOf returns the volumes that pods here want of a PersistentVolume that a node has to do something about when it grows.
func (g *growth) namesOf(pv *v1.PersistentVolume) []v1.UniqueVolumeName {
	r, err := g.m.plugins.Resolve(volume.NewSpecFromPersistentVolume(pv, false))
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
	return g.m.desired.GetVolumeNamesOfPersistentVolume(pv.Name) // Each pod has one of its own.
}

// IsGrowing implements reconciler.Expansions: it reports whether a volume is smaller here than it is meant to be.
func (g *growth) IsGrowing(name v1.UniqueVolumeName) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, ok := g.growing[name]
	return ok
}
