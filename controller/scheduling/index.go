package scheduling

import (
	"log/slog"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/fit"
	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/volume"
)

// index is the input of all decisions: the last known state of the store, the facts derived from it, and the
// reservations. It does no I/O. The scheduler's lock guards it.
type index struct {
	logger *slog.Logger

	nodes     *nodes
	selectors *selectors
	drivers   map[string]*driver
	groups    map[fit.Group]*group

	volumes map[string]*pvState
	naming  map[types.NamespacedName][]*pvState // the volumes that name a claim
	claims  map[types.NamespacedName]*v1.PersistentVolumeClaim
	classes map[string]*classState

	claimsOf      map[string]map[types.NamespacedName]bool // the claims that name a volume
	unboundOf     map[string]map[types.NamespacedName]bool // the claims of a class that have no volume
	pods          map[types.NamespacedName]*pod
	podsOf        map[types.NamespacedName]map[podKey]*pod // the pods on nodes that use a claim
	attachments   map[string]*attachment
	attachmentsOf map[string]map[string]bool // by volume

	attributeDrivers map[string]string // by VolumeAttributesClass

	claimReservations map[types.NamespacedName]*claimReservation
	reservedBy        map[string]map[types.NamespacedName]bool // by volume
	reservations      map[types.NamespacedName]*Reservation    // by pod
	capacities        *capacities
}

func newIndex(logger *slog.Logger) *index {
	n := newNodes()
	selectors := newSelectors(n)
	return &index{
		logger: logger, nodes: n, selectors: selectors, drivers: map[string]*driver{}, groups: map[fit.Group]*group{},
		volumes: map[string]*pvState{}, naming: map[types.NamespacedName][]*pvState{},
		claims: map[types.NamespacedName]*v1.PersistentVolumeClaim{}, classes: map[string]*classState{},
		claimsOf: map[string]map[types.NamespacedName]bool{}, unboundOf: map[string]map[types.NamespacedName]bool{},
		pods: map[types.NamespacedName]*pod{}, podsOf: map[types.NamespacedName]map[podKey]*pod{},
		attachments: map[string]*attachment{}, attachmentsOf: map[string]map[string]bool{},
		attributeDrivers: map[string]string{}, capacities: newCapacities(logger, n, selectors),
		claimReservations: map[types.NamespacedName]*claimReservation{}, reservedBy: map[string]map[types.NamespacedName]bool{},
		reservations: map[types.NamespacedName]*Reservation{},
	}
}

// link and unlink keep maps of sets without empty ones.
func link[K, V comparable](m map[K]map[V]bool, key K, value V) {
	if m[key] == nil {
		m[key] = map[V]bool{}
	}
	m[key][value] = true
}

func unlink[K, V comparable](m map[K]map[V]bool, key K, value V) {
	delete(m[key], value)
	if len(m[key]) == 0 {
		delete(m, key)
	}
}

// classState is the last version of a class.
type classState struct {
	object     *storagev1.StorageClass
	topologies *selector
}

// refreshClass updates a class from its last version in the mirror.
func (x *index) refreshClass(name string, class *storagev1.StorageClass) {
	old := x.classes[name]
	delete(x.classes, name)
	if class != nil {
		x.classes[name] = &classState{object: class, topologies: x.selectors.ofTopologies(class.AllowedTopologies)}
	}
	if old != nil {
		x.selectors.release(old.topologies)
	}
	for claim := range x.unboundOf[name] {
		x.recountClaim(claim)
		x.updateAllocation(claim)
	}
}

// isBound reports whether a claim was bound completely.
func isBound(claim *v1.PersistentVolumeClaim) bool {
	_, completed := claim.Annotations[objects.AnnBindCompleted]
	return claim.Spec.VolumeName != "" && completed
}

// refreshClaim updates a claim from its last version in the mirror.
func (x *index) refreshClaim(name types.NamespacedName, claim *v1.PersistentVolumeClaim) {
	old := x.claims[name]
	if old != nil {
		x.unlinkClaim(name, old)
	}
	delete(x.claims, name)
	if claim != nil {
		x.claims[name] = claim
		x.linkClaim(name, claim)
	}
	x.checkReservation(name, claim)
	x.updateAllocation(name)
	x.recountClaim(name)
}

func (x *index) linkClaim(name types.NamespacedName, claim *v1.PersistentVolumeClaim) {
	if claim.Spec.VolumeName != "" {
		link(x.claimsOf, claim.Spec.VolumeName, name)
		return
	}
	link(x.unboundOf, objects.ClassOf(claim), name)
}

func (x *index) unlinkClaim(name types.NamespacedName, claim *v1.PersistentVolumeClaim) {
	if claim.Spec.VolumeName != "" {
		unlink(x.claimsOf, claim.Spec.VolumeName, name)
		return
	}
	unlink(x.unboundOf, objects.ClassOf(claim), name)
}

// handleOf returns the handle under which a claim without a volume counts. It differs from every handle of a volume.
func handleOf(claim types.NamespacedName) string { return "\x00" + claim.String() }

// attachedOf returns the volume as which a claim counts on a node; without a driver if it does not count. A claim
// without a volume counts under its own name for the driver of its class, or as the volume that is reserved for it.
func (x *index) attachedOf(name types.NamespacedName) attached {
	claim := x.claims[name]
	if claim == nil {
		return attached{}
	}
	if v := x.volumes[claim.Spec.VolumeName]; v != nil {
		return v.attached
	}
	if reserved := x.claimReservations[name]; reserved != nil && reserved.volume != "" {
		if v := x.volumes[reserved.volume]; v != nil {
			return v.attached
		}
	}
	class := x.classes[objects.ClassOf(claim)]
	if class == nil || class.object.Provisioner == "" || class.object.Provisioner == objects.NoProvisioner {
		return attached{}
	}
	return attached{driver: x.driver(volume.DriverOfPluginName(class.object.Provisioner)), handle: handleOf(name)}
}
