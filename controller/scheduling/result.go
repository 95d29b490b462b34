package scheduling

import (
	"errors"
	"fmt"
	"iter"
	"math/bits"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/store"
)

// Reason is the reason why a pod cannot have its volumes, on one node or anywhere.
type Reason uint8

// The reasons of a node. Only the last four can go away when pods go; see [RefusalError.Preemptable].
const (
	// VolumeMissing says that a claim is bound to a volume that does not exist.
	VolumeMissing Reason = iota + 1
	// NodeAffinity says that the node affinity of a claim's volume excludes the node.
	NodeAffinity
	// Zone says that a claim's volume is in another zone or region.
	Zone
	// SelectedElsewhere says that a claim's volume is being provisioned for another node.
	SelectedElsewhere
	// NoVolume says that no existing volume fits a claim on the node, and that its class provisions none for it.
	NoVolume
	// NoTopology says that the class of a claim allows no volumes on the node.
	NoTopology
	// NoCapacity says that the free capacity is too small for new volumes.
	NoCapacity
	// NoAttributesClass says that the VolumeAttributesClass that a claim names does not exist, or is for another driver, so no volume can
	// be made for it.
	NoAttributesClass
	// InUseByPod says that another pod uses a claim that is for one pod alone.
	InUseByPod
	// InUseOnOtherNode says that pods on another node use a volume that is for one node alone.
	InUseOnOtherNode
	// DiskConflict says that a pod on the node uses an inline disk that cannot be shared.
	DiskConflict
	// AttachLimit says that the pod's volumes exceed a driver's attach limit on the node.
	AttachLimit
	// NodeUnknown says that there was no such node.
	NodeUnknown
)

// The reasons of the pod as a whole.
const (
	// ClaimMissing says that a claim does not exist.
	ClaimMissing Reason = iota + 32
	// ClaimNotMade says that the claim of an ephemeral volume does not exist yet. That is usual for a new pod.
	ClaimNotMade
	// ClaimNotOwned says that the claim of an ephemeral volume was not made for the pod.
	ClaimNotOwned
	// ClaimLost says that the claim's volume is gone.
	ClaimLost
	// ClaimDeleted says that the claim is being deleted.
	ClaimDeleted
	// ClaimUnbound says that a claim is not bound, and does not wait for a consumer.
	ClaimUnbound
	// SelectorMalformed says that the selector of a claim is malformed.
	SelectorMalformed
)

var reasonNames = map[Reason]string{
	VolumeMissing: "VolumeMissing", NodeAffinity: "NodeAffinity", Zone: "Zone", SelectedElsewhere: "SelectedElsewhere",
	NoVolume: "NoVolume", NoTopology: "NoTopology", NoCapacity: "NoCapacity", NoAttributesClass: "NoAttributesClass", InUseByPod: "InUseByPod",
	InUseOnOtherNode: "InUseOnOtherNode", DiskConflict: "DiskConflict", AttachLimit: "AttachLimit", NodeUnknown: "NodeUnknown",
	ClaimMissing: "ClaimMissing", ClaimNotMade: "ClaimNotMade", ClaimNotOwned: "ClaimNotOwned", ClaimLost: "ClaimLost",
	ClaimDeleted: "ClaimDeleted", ClaimUnbound: "ClaimUnbound", SelectorMalformed: "SelectorMalformed",
}

// String returns the name of the reason.
func (r Reason) String() string {
	if name, ok := reasonNames[r]; ok {
		return name
	}
	return fmt.Sprintf("Reason(%d)", uint8(r))
}

// PodError says why a pod can have its volumes on no node until the claim changes.
type PodError struct {
	// Reason is a reason of the pod as a whole.
	Reason Reason
	// Pod and Claim are the names of the pod and the claim.
	Pod, Claim types.NamespacedName
	// Volume is the claim's volume; "" if it does not matter.
	Volume string
	// Err is the cause, nil for none.
	Err error
}

// Error names the fault and what to do.
func (e *PodError) Error() string {
	return fmt.Sprintf("pod %q: claim %q: %s", e.Pod, e.Claim, e.why())
}

func (e *PodError) why() string {
	switch e.Reason {
	case ClaimMissing:
		return "there is no such claim"
	case ClaimNotMade:
		return "the claim of the ephemeral volume has not been made yet"
	case ClaimNotOwned:
		return "the claim was not made for this pod: the pod does not own it"
	case ClaimLost:
		return fmt.Sprintf("the claim is bound to volume %q, which does not exist any more", e.Volume)
	case ClaimDeleted:
		return "the claim is being deleted"
	case ClaimUnbound:
		return "the claim is not bound, and its class does not wait for a consumer"
	default:
		return fmt.Sprintf("%s: %v", e.Reason, e.Err)
	}
}

// Unwrap returns the cause. A missing claim matches [store.ErrNotFound].
func (e *PodError) Unwrap() error {
	if e.Reason == ClaimMissing || e.Reason == ClaimNotMade {
		return store.ErrNotFound
	}
	return e.Err
}

// nodeResult is the result for one node.
type nodeResult struct {
	reasons uint16 // a bit for each reason of a node
	first   Reason // the first reason found; zero if the pod can have its volumes
	score   uint8
	never   bool  // the limit of AttachLimit is too small for the pod alone
	claim   int16 // the claim of first
	driver  int16 // of AttachLimit, like the next fields
	inUse   int32
	limit   int32
}

// endWithPods are the reasons that can go away when pods go.
const endWithPods = 1<<InUseByPod | 1<<InUseOnOtherNode | 1<<DiskConflict | 1<<AttachLimit

// preemptable reports whether all reasons so far can go away when pods go.
func (v *nodeResult) preemptable() bool { return v.reasons&^endWithPods == 0 }

func (v *nodeResult) refuse(reason Reason, claim int) {
	if v.first == 0 {
		v.first, v.claim = reason, int16(claim)
	}
	v.reasons |= 1 << reason
}

// Result holds the nodes on which a pod can have its volumes, at the time of Find. Its methods may be called from
// several goroutines at once.
type Result struct {
	scheduler *Scheduler
	pod       podKey
	names     []string // of the nodes; "" where there is none
	results   []nodeResult
	lo        int32 // the slot of the first
	claims    []claimName
	drivers   []*driver
	users     []types.NamespacedName // the pods of InUseByPod and InUseOnOtherNode
	disks     []v1.Volume
}

// claimName is a claim and the volume that it has, or that is reserved for it.
type claimName struct {
	name   types.NamespacedName
	volume string
	class  string
	// attributes is the VolumeAttributesClass that the claim names.
	attributes string
}

// Nodes returns the names of the nodes on which the pod can have its volumes.
func (r *Result) Nodes() iter.Seq[string] {
	return func(yield func(string) bool) {
		for slot, name := range r.names {
			if name != "" && r.results[slot].first == 0 && !yield(name) {
				return
			}
		}
	}
}

// Scores returns the nodes of Nodes, each with its score.
func (r *Result) Scores() iter.Seq2[string, int] {
	return func(yield func(string, int) bool) {
		for slot, name := range r.names {
			if v := &r.results[slot]; name != "" && v.first == 0 && !yield(name, int(v.score)) {
				return
			}
		}
	}
}

// Len returns the number of nodes that Nodes returns.
func (r *Result) Len() int {
	n := 0
	for range r.Nodes() {
		n++
	}
	return n
}

// Score returns the score of a node, from 0 to 100, by [Options.Score]; 0 for a node that cannot have the pod, and for
// all nodes if no claim waits to be bound.
func (r *Result) Score(node string) int {
	slot, there := r.slotOf(node)
	if !there || r.results[slot].first != 0 {
		return 0
	}
	return int(r.results[slot].score)
}

// slotOf returns the slot that a node had.
func (r *Result) slotOf(node string) (int, bool) {
	slot, there := r.scheduler.slotOf(node)
	if at := int(slot - r.lo); there && at >= 0 && at < len(r.names) && r.names[at] == node {
		return at, true
	}
	at := slices.Index(r.names, node)
	return at, at >= 0 && node != ""
}

// Why returns why the pod cannot have its volumes on a node; nil if it can.
func (r *Result) Why(node string) *RefusalError {
	slot, there := r.slotOf(node)
	if !there {
		return &RefusalError{Node: node, Pod: r.pod.name, Reason: NodeUnknown, Reasons: []Reason{NodeUnknown}}
	}
	v := r.results[slot]
	if v.first == 0 {
		return nil
	}
	why := &RefusalError{Node: node, Pod: r.pod.name, Reason: v.first}
	for rest := v.reasons; rest != 0; rest &= rest - 1 {
		why.Reasons = append(why.Reasons, Reason(bits.TrailingZeros16(rest)))
	}
	if int(v.claim) < len(r.claims) {
		c := r.claims[v.claim]
		why.Claim, why.Volume, why.Class, why.AttributesClass = c.name, c.volume, c.class, c.attributes
	}
	r.setPods(why, v)
	return why
}

// setPods sets the pods that cause the reasons, and the driver.
func (r *Result) setPods(why *RefusalError, v nodeResult) {
	for _, reason := range why.Reasons {
		switch reason {
		case AttachLimit:
			d := r.drivers[v.driver]
			why.Driver, why.InUse, why.Limit = d.name, int(v.inUse), int(v.limit)
			why.Pods = append(why.Pods, r.scheduler.podsWith(why.Node, d, r.pod)...)
			why.never = v.never
		case DiskConflict:
			why.Pods = append(why.Pods, r.scheduler.podsWithDisks(why.Node, r.disks, r.pod)...)
		case InUseByPod, InUseOnOtherNode:
			why.Pods = append(why.Pods, r.users...)
		default:
			why.never = true
		}
	}
	why.Pods = slices.Compact(sorted(why.Pods))
}

// RefusalError says why a pod cannot have its volumes on one node.
type RefusalError struct {
	// Node and Pod are the names of the node and the pod.
	Node string
	Pod  types.NamespacedName
	// Reason is the first reason found. Reasons are all reasons found; a check that no longer matters after another
	// reason is omitted.
	Reason  Reason
	Reasons []Reason
	// Claim, Volume and Class are the subject of Reason; empty if it has none.
	Claim         types.NamespacedName
	Volume, Class string
	// AttributesClass is the VolumeAttributesClass that Claim names; "" for none.
	AttributesClass string
	// Driver is the driver whose limit is exceeded, "" for none; InUse and Limit are its volumes on the node and its limit.
	Driver       string
	InUse, Limit int
	// Pods are the pods that cause the Reasons that end with pods, sorted by name. For AttachLimit, the removal of some of
	// them is enough.
	Pods []types.NamespacedName

	never bool // a reason does not end with pods
}

// Preemptable reports whether the pod could have its volumes on the node without Pods.
func (e *RefusalError) Preemptable() bool {
	return len(e.Pods) > 0 && !e.never
}

// Error explains the refusal for a user.
func (e *RefusalError) Error() string {
	return fmt.Sprintf("pod %q cannot run on node %q: %s", e.Pod, e.Node, e.why())
}

func (e *RefusalError) why() string {
	switch e.Reason {
	case VolumeMissing:
		return fmt.Sprintf("claim %q is bound to volume %q, which does not exist", e.Claim, e.Volume)
	case NodeAffinity:
		return fmt.Sprintf("volume %q of claim %q cannot be used there: its node affinity excludes the node", e.Volume, e.Claim)
	case Zone:
		return fmt.Sprintf("volume %q of claim %q is in another zone or region", e.Volume, e.Claim)
	case SelectedElsewhere:
		return fmt.Sprintf("the volume of claim %q is being made for another node", e.Claim)
	case NoVolume:
		return fmt.Sprintf("no available volume fits claim %q there, and class %q makes none", e.Claim, e.Class)
	case NoTopology:
		return fmt.Sprintf("no available volume fits claim %q there, and class %q does not make volumes for the node", e.Claim, e.Class)
	case NoCapacity:
		return fmt.Sprintf("too little storage of class %q is left for a new volume of claim %q", e.Class, e.Claim)
	case NoAttributesClass:
		return fmt.Sprintf("no available volume fits claim %q there, and a new one needs VolumeAttributesClass %q, which does not exist or is not "+
			"for the provisioner of class %q: create it", e.Claim, e.AttributesClass, e.Class)
	case InUseByPod:
		return fmt.Sprintf("claim %q is for one pod alone, and is used by %s", e.Claim, podNames(e.Pods))
	case InUseOnOtherNode:
		return fmt.Sprintf("volume %q of claim %q is for one node alone, and is used on another by %s", e.Volume, e.Claim, podNames(e.Pods))
	case DiskConflict:
		return "a disk of the pod is used there by " + podNames(e.Pods)
	case AttachLimit:
		return fmt.Sprintf("driver %q has %d of at most %d volumes there: too few are left", e.Driver, e.InUse, e.Limit)
	case NodeUnknown:
		return "there is no such node"
	default:
		return e.Reason.String()
	}
}

func podNames(pods []types.NamespacedName) string {
	names := make([]string, 0, len(pods))
	for _, p := range pods {
		names = append(names, fmt.Sprintf("%q", p))
	}
	return "pod " + strings.Join(names, ", ")
}

// ErrPlaceAnew says that a node must be chosen again for the pod.
var ErrPlaceAnew = errors.New("the pod must be placed anew")
