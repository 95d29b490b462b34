package volume

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// claimConditionBound is the type of the condition that says why a claim has no volume. A controller writes it. Its status is False,
// its reason is that of the event, its message a sentence for people. A bound claim does not have it.
const claimConditionBound v1.PersistentVolumeClaimConditionType = "volumekit.io/Bound"

// WhyUnbound returns the reason in a claim's status why the claim has no volume, as "reason: message". It is "" if there is none.
func WhyUnbound(claim *v1.PersistentVolumeClaim) string {
	for _, c := range claim.Status.Conditions {
		if c.Type == claimConditionBound && c.Status == v1.ConditionFalse {
			return c.Reason + ": " + c.Message
		}
	}
	return ""
}

// SetUnbound writes into a claim's status why the claim has no volume, and reports whether the status changed. The claim must not be
// shared.
func SetUnbound(claim *v1.PersistentVolumeClaim, reason, message string) (changed bool) {
	next := v1.PersistentVolumeClaimCondition{
		Type: claimConditionBound, Status: v1.ConditionFalse, Reason: reason, Message: message, LastTransitionTime: metav1.Now().Rfc3339Copy(),
	}
	at := slices.IndexFunc(claim.Status.Conditions, isBoundCondition)
	if at < 0 {
		claim.Status.Conditions = append(claim.Status.Conditions, next)
		return true
	}
	old := &claim.Status.Conditions[at]
	if old.Status == next.Status && old.Reason == reason && old.Message == message {
		return false
	}
	*old = next
	return true
}

// ClearUnbound removes the condition of SetUnbound from a claim's status, and reports whether there was one. The claim must not be
// shared.
func ClearUnbound(claim *v1.PersistentVolumeClaim) (changed bool) {
	if !slices.ContainsFunc(claim.Status.Conditions, isBoundCondition) {
		return false
	}
	claim.Status.Conditions = slices.DeleteFunc(claim.Status.Conditions, isBoundCondition)
	return true
}

func isBoundCondition(c v1.PersistentVolumeClaimCondition) bool { return c.Type == claimConditionBound }
