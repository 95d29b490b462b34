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

// IsPodTerminated reports whether the status of a pod says that none of its containers will run again: its phase is Succeeded or
// Failed, or it is being deleted and the status of each of its containers says that it does not run. A status that is missing says
// nothing. One that is there may be old or wrong, so that it never proves alone that a volume of the pod is not used.
func IsPodTerminated(pod *v1.Pod) bool {
	if pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed {
		return true
	}
	return pod.DeletionTimestamp != nil && isStopped(pod)
}

// isStopped reports whether the status of each container of a pod says that it does not run.
func isStopped(pod *v1.Pod) bool {
	stopped := map[string]bool{}
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses) {
		stopped[s.Name] = s.State.Running == nil && (s.State.Terminated != nil || s.State.Waiting != nil)
	}
	var names []string
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		names = append(names, c.Name)
	}
	for _, c := range pod.Spec.EphemeralContainers {
		names = append(names, c.Name)
	}
	return len(names) > 0 && !slices.ContainsFunc(names, func(name string) bool { return !stopped[name] })
}
