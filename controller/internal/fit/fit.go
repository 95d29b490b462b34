// Package fit has the rules by which a volume fits a claim, as functions without state. The persistent volume
// controller and the scheduler use the same rules.
package fit

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/volume"
)

// BestReserved returns the best of the volumes that name the claim, whatever their classes and labels, or nil: the one
// with the fewest access modes, then the smallest, then the first by name.
func BestReserved(claim *v1.PersistentVolumeClaim, volumes []*v1.PersistentVolume) *v1.PersistentVolume {
	var best *v1.PersistentVolume
	for _, pv := range volumes {
		if Usable(claim, pv) && objects.ReservedFor(pv, claim) && (best == nil || better(pv, best)) {
			best = pv
		}
	}
	return best
}

// UnfitReserved returns a volume that names the claim and does not fit it, with the reason; nil if there is none.
func UnfitReserved(claim *v1.PersistentVolumeClaim, volumes []*v1.PersistentVolume) (*v1.PersistentVolume, string) {
	for _, pv := range volumes {
		if !objects.ReservedFor(pv, claim) {
			continue
		}
		switch {
		case pv.DeletionTimestamp != nil:
			return pv, "it is being deleted"
		case objects.IsUnfilled(pv):
			return pv, unfilled
		case !large(claim, pv):
			return pv, "it is smaller than the claim asks for"
		case !sameMode(claim, pv):
			return pv, "its volume mode is another"
		case !sameAttributesClass(claim, pv):
			return pv, "its volume attributes class is another"
		case !HasModes(claim, pv.Spec.AccessModes):
			return pv, lacksMode
		}
	}
	return nil, ""
}

// Usable reports whether the volume fits the claim, whatever its class and labels.
func Usable(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) bool {
	return pv.DeletionTimestamp == nil && !objects.IsUnfilled(pv) &&
		(pv.Spec.ClaimRef == nil || objects.ReservedFor(pv, claim)) &&
		large(claim, pv) && sameMode(claim, pv) && sameAttributesClass(claim, pv) && HasModes(claim, pv.Spec.AccessModes)
}

// Free reports whether the claim may get an unused volume that names no claim: selector and class must match, and the
// claim must have no data source.
func Free(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, selector labels.Selector) bool {
	return Unused(pv) && !HasSource(claim) &&
		selector.Matches(labels.Set(pv.Labels)) &&
		objects.ClassOfVolume(pv) == objects.ClassOf(claim)
}

// Unused reports whether no claim has had the volume. A volume without a phase counts as unused: otherwise a claim that
// a worker syncs before the volume would get a new volume although one fits.
func Unused(pv *v1.PersistentVolume) bool {
	switch pv.Status.Phase {
	case v1.VolumeAvailable, v1.VolumePending, "":
		return true
	default:
		return false
	}
}

// better reports whether a is preferred to b.
func better(a, b *v1.PersistentVolume) bool {
	sizeA, sizeB := Capacity(a), Capacity(b)
	return cmp.Or(
		cmp.Compare(len(a.Spec.AccessModes), len(b.Spec.AccessModes)),
		sizeA.Cmp(sizeB),
		cmp.Compare(a.Name, b.Name),
	) < 0
}

// Unreachable is the reason why a volume does not fit: its node affinity excludes the claim's node.
const Unreachable = "its node affinity excludes the node of the claim"

const unfilled = "it was made to be filled from a data source, and is not full"

const lacksMode = "it lacks an access mode that the claim asks for"

// Misfit returns why the claim cannot have the volume that it names, or "". The volume names the claim or none. If both
// name each other, only the volume mode and the node matter.
func Misfit(claim *v1.PersistentVolumeClaim, node *v1.Node, pv *v1.PersistentVolume) string {
	switch {
	case !sameMode(claim, pv):
		return "its volume mode is another"
	case !Reachable(pv, node):
		return Unreachable
	case objects.IsUnfilled(pv):
		return unfilled
	case objects.ReservedFor(pv, claim):
		return ""
	case pv.DeletionTimestamp != nil:
		return "it is being deleted"
	case !large(claim, pv):
		return "it is smaller than the claim asks for"
	case objects.ClassOfVolume(pv) != objects.ClassOf(claim):
		return "its storage class is another"
	case !sameAttributesClass(claim, pv):
		return "its volume attributes class is another"
	case !HasModes(claim, pv.Spec.AccessModes):
		return lacksMode
	}
	return ""
}

// Capacity returns the capacity of a volume; zero if it has none.
func Capacity(pv *v1.PersistentVolume) resource.Quantity { return pv.Spec.Capacity[v1.ResourceStorage] }

func large(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) bool {
	have, want := Capacity(pv), claim.Spec.Resources.Requests[v1.ResourceStorage]
	return have.Cmp(want) >= 0
}

func sameMode(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) bool {
	return modeOf(claim.Spec.VolumeMode) == modeOf(pv.Spec.VolumeMode)
}

func modeOf(mode *v1.PersistentVolumeMode) v1.PersistentVolumeMode {
	if mode == nil {
		return v1.PersistentVolumeFilesystem
	}
	return *mode
}

func sameAttributesClass(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) bool {
	return objects.Deref(claim.Spec.VolumeAttributesClassName) == objects.Deref(pv.Spec.VolumeAttributesClassName)
}

// HasModes reports whether modes has all access modes that the claim requests.
func HasModes(claim *v1.PersistentVolumeClaim, modes []v1.PersistentVolumeAccessMode) bool {
	for _, mode := range claim.Spec.AccessModes {
		if !slices.Contains(modes, mode) {
			return false
		}
	}
	return true
}

// Reachable reports whether the node affinity of the volume allows the node. It allows an unknown node, nil. A
// malformed affinity allows none.
func Reachable(pv *v1.PersistentVolume, node *v1.Node) bool {
	return node == nil || volume.CheckNodeAffinity(pv, node) == nil
}

// HasSource reports whether a claim requests a volume with content. No existing volume has it.
func HasSource(claim *v1.PersistentVolumeClaim) bool {
	return claim.Spec.DataSource != nil || claim.Spec.DataSourceRef != nil
}

// CheckProvisioned checks that a provisioned volume fits its claim.
func CheckProvisioned(pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) error {
	size, want := Capacity(pv), claim.Spec.Resources.Requests[v1.ResourceStorage]
	switch {
	case pv.Name != objects.ProvisionedName(claim):
		return fmt.Errorf("the volume is named %q, not %q: %w", pv.Name, objects.ProvisionedName(claim), volume.ErrInvalid)
	case !large(claim, pv):
		return fmt.Errorf("the volume holds %s, not %s: %w", size.String(), want.String(), volume.ErrInvalid)
	case !sameMode(claim, pv):
		return fmt.Errorf("the volume's mode is %s: %w", modeOf(pv.Spec.VolumeMode), volume.ErrInvalid)
	case !HasModes(claim, pv.Spec.AccessModes):
		return fmt.Errorf("the volume's access modes are %v, not %v: %w", pv.Spec.AccessModes, claim.Spec.AccessModes, volume.ErrInvalid)
	}
	return nil
}

// Group is the class, the attributes class and the volume mode. A claim fits only volumes of its group.
type Group struct {
	// Class and Attributes are the names of the classes, "" for none.
	Class, Attributes string
	// Mode is the volume mode; never empty.
	Mode v1.PersistentVolumeMode
}

// GroupOfVolume returns the group of a volume.
func GroupOfVolume(pv *v1.PersistentVolume) Group {
	return Group{Class: objects.ClassOfVolume(pv), Attributes: objects.Deref(pv.Spec.VolumeAttributesClassName), Mode: modeOf(pv.Spec.VolumeMode)}
}

// GroupOfClaim returns the group of the volumes that a claim can have.
func GroupOfClaim(claim *v1.PersistentVolumeClaim) Group {
	return Group{Class: objects.ClassOf(claim), Attributes: objects.Deref(claim.Spec.VolumeAttributesClassName), Mode: modeOf(claim.Spec.VolumeMode)}
}

// RequestedBytes returns the requested size of a claim, as Bytes does.
func RequestedBytes(claim *v1.PersistentVolumeClaim) int64 {
	size := claim.Spec.Resources.Requests[v1.ResourceStorage]
	if size.Sign() < 0 {
		return math.MaxInt64
	}
	return Bytes(size)
}

// Bytes returns a size, rounded up to whole bytes; math.MaxInt64 for a larger size.
func Bytes(size resource.Quantity) int64 {
	if size.CmpInt64(math.MaxInt64) >= 0 {
		return math.MaxInt64
	}
	return size.Value()
}
