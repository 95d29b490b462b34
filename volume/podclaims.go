package volume

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// PodClaim is how a volume of a pod refers to a claim.
type PodClaim struct {
	// Name is the claim's.
	Name types.NamespacedName
	// ReadOnly says that the pod asks for the volume read-only.
	ReadOnly bool
	// Ephemeral says that the claim is made for this pod alone, so that the pod must own it: see [PodClaim.OwnedBy].
	Ephemeral bool
}

// ClaimOfVolume returns the claim that a volume of a pod refers to, and false when it needs none.
func ClaimOfVolume(pod *v1.Pod, vol *v1.Volume) (PodClaim, bool) {
	switch {
	case vol.PersistentVolumeClaim != nil:
		name := types.NamespacedName{Namespace: pod.Namespace, Name: vol.PersistentVolumeClaim.ClaimName}
		return PodClaim{Name: name, ReadOnly: vol.PersistentVolumeClaim.ReadOnly}, true
	case vol.Ephemeral != nil:
		return PodClaim{Name: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name + "-" + vol.Name}, Ephemeral: true}, true
	}
	return PodClaim{}, false
}

// ClaimsOfPod returns the names of the claims that a pod refers to, generic ephemeral ones included.
func ClaimsOfPod(pod *v1.Pod) []types.NamespacedName {
	var claims []types.NamespacedName
	for i := range pod.Spec.Volumes {
		if claim, ok := ClaimOfVolume(pod, &pod.Spec.Volumes[i]); ok {
			claims = append(claims, claim.Name)
		}
	}
	return claims
}

// OwnedBy reports whether the pod may use the claim: one that is made for a pod alone must name that very pod as its owner.
func (c PodClaim) OwnedBy(claim *v1.PersistentVolumeClaim, pod *v1.Pod) bool {
	return !c.Ephemeral || metav1.IsControlledBy(claim, pod)
}

// IsPodTerminated reports whether no container of a pod will run again, as kubelet 1.36 says it: the pod has ended, or it is being
// deleted and none of its containers runs.
func IsPodTerminated(pod *v1.Pod) bool {
	if pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed {
		return true
	}
	if pod.DeletionTimestamp == nil {
		return false
	}
	runs := func(s v1.ContainerStatus) bool { return s.State.Running != nil }
	return !slices.ContainsFunc(pod.Status.InitContainerStatuses, runs) &&
		!slices.ContainsFunc(pod.Status.ContainerStatuses, runs) &&
		!slices.ContainsFunc(pod.Status.EphemeralContainerStatuses, runs)
}
