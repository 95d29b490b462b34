package scheduling

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/fit"
	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/volume"
)

// need is one claim of a pod, with the facts that decide on which nodes the pod can have it.
type need struct {
	at    int // index in the pod's needs
	name  types.NamespacedName
	claim *v1.PersistentVolumeClaim

	bound  bool
	volume *pvState // the volume of a bound claim; nil if the volume is missing

	// The following fields are set only for a claim that waits for its consumer.
	request  int64
	modes    modes
	selector labels.Selector // nil: any labels
	group    *group          // nil if the group has no free volume
	class    *classState
	reserved *pvState // the volume that names the claim, or is reserved for it: the claim gets no other
	node     string   // the node for which the claim's volume is being made
	unmet    bool     // no volume can be made with the VolumeAttributesClass that the claim names
}

// volumeName returns the name of the volume, if it is known before a node is chosen, and "" otherwise.
func (n *need) volumeName() string {
	switch {
	case n.bound:
		return n.claim.Spec.VolumeName
	case n.reserved != nil:
		return n.reserved.object.Name
	}
	return ""
}

// isProvisionable reports whether the class can make a volume for the claim.
func (n *need) isProvisionable() bool { return provisions(n.class.object) }

// searches reports whether the claim may get an existing volume that names no claim. It may not if it has a data source, or
// while a volume is being made for it.
func (n *need) searches() bool {
	return n.reserved == nil && !fit.HasSource(n.claim) && (n.node == "" || !n.isProvisionable())
}

// suits reports whether the claim can have a volume of its group that is large enough. It does not check the node.
func (n *need) suits(v free) bool {
	if n.modes&otherMode != 0 || n.request == maxBytes {
		return fit.Usable(n.claim, v.object) && n.selects(v)
	}
	return v.modes&n.modes == n.modes && n.selects(v)
}

const maxBytes = 1<<63 - 1

func (n *need) selects(v free) bool {
	return n.selector == nil || n.selector.Matches(labels.Set(v.object.Labels))
}

// needsOf returns the needs of a pod in the order of compareNeeds.
func (x *index) needsOf(p *v1.Pod) ([]need, error) {
	needs := make([]need, 0, len(p.Spec.Volumes))
	for i := range p.Spec.Volumes {
		ref, refers := volume.ClaimOfVolume(p, &p.Spec.Volumes[i])
		if !refers || slices.ContainsFunc(needs, func(n need) bool { return n.name == ref.Name }) {
			continue
		}
		n, err := x.needOf(p, ref)
		if err != nil {
			return nil, err
		}
		needs = append(needs, n)
	}
	slices.SortStableFunc(needs, compareNeeds)
	for i := range needs {
		needs[i].at = i
	}
	return needs, nil
}

// compareNeeds orders bound claims first, then the others by rising request.
func compareNeeds(a, b need) int {
	switch {
	case a.bound != b.bound:
		if a.bound {
			return -1
		}
		return 1
	case a.bound:
		return 0
	}
	return cmp.Or(cmp.Compare(a.request, b.request), cmp.Compare(a.name.Name, b.name.Name))
}

func (x *index) needOf(p *v1.Pod, ref volume.PodClaim) (need, error) {
	claim := x.claims[ref.Name]
	n := need{name: ref.Name, claim: claim}
	fail := func(reason Reason, err error) (need, error) {
		e := &PodError{Reason: reason, Pod: keyOfPod(p).name, Claim: ref.Name, Err: err}
		if claim != nil {
			e.Volume = claim.Spec.VolumeName
		}
		return need{}, e
	}
	switch {
	case claim == nil && ref.Ephemeral:
		return fail(ClaimNotMade, nil)
	case claim == nil:
		return fail(ClaimMissing, nil)
	case !ref.OwnedBy(claim, p):
		return fail(ClaimNotOwned, nil)
	case claim.Status.Phase == v1.ClaimLost:
		return fail(ClaimLost, nil)
	case claim.DeletionTimestamp != nil:
		return fail(ClaimDeleted, nil)
	case isBound(claim):
		n.bound, n.volume = true, x.volumes[claim.Spec.VolumeName]
		return n, nil
	}
	n.class = x.classes[objects.ClassOf(claim)]
	if claim.Spec.VolumeName != "" || n.class == nil || !objects.WaitsForConsumer(n.class.object) {
		return fail(ClaimUnbound, nil)
	}
	if claim.Spec.Selector != nil {
		selector, err := metav1.LabelSelectorAsSelector(claim.Spec.Selector)
		if err != nil {
			return fail(SelectorMalformed, err)
		}
		n.selector = selector
	}
	x.wait(&n)
	return n, nil
}

// wait fills in the fields for a claim that waits for its consumer.
func (x *index) wait(n *need) {
	n.request = fit.RequestedBytes(n.claim)
	n.modes = modesOf(n.claim.Spec.AccessModes)
	n.group = x.groups[fit.GroupOfClaim(n.claim)]
	n.node = n.claim.Annotations[objects.AnnSelectedNode]
	n.unmet = x.lacksAttributes(n)
	if reserved := x.claimReservations[n.name]; reserved != nil {
		n.reserved, n.node = x.volumes[reserved.volume], reserved.node
		if n.reserved != nil {
			n.node = ""
			return
		}
	}
	if naming := x.naming[n.name]; len(naming) > 0 {
		n.reserved = bestReserved(n.claim, naming)
	}
}

// lacksAttributes reports whether the VolumeAttributesClass that a claim names does not exist, or is for another driver than that of its
// class. The persistent volume controller makes no volume for such a claim.
func (x *index) lacksAttributes(n *need) bool {
	name := objects.Deref(n.claim.Spec.VolumeAttributesClassName)
	if name == "" {
		return false
	}
	driver, there := x.attributeDrivers[name]
	return !there || !volume.IsDriverOfPlugin(driver, n.class.object.Provisioner)
}

// bestReserved chooses among the volumes that name a claim, in the same way as the persistent volume controller.
func bestReserved(claim *v1.PersistentVolumeClaim, naming []*pvState) *pvState {
	volumes := make([]*v1.PersistentVolume, 0, len(naming))
	for _, v := range naming {
		volumes = append(volumes, v.object)
	}
	best := fit.BestReserved(claim, volumes)
	if at := slices.Index(volumes, best); best != nil && at >= 0 {
		return naming[at]
	}
	return nil
}
