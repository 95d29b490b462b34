package persistentvolume

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func claimed(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "default", Name: name}
}

func asks(s string) func(*v1.PersistentVolumeClaim) {
	return func(claim *v1.PersistentVolumeClaim) { claim.Spec.Resources.Requests = size(s) }
}

func holds(s string) func(*v1.PersistentVolume) {
	return func(pv *v1.PersistentVolume) { pv.Spec.Capacity = size(s) }
}

// Claims that wait get volumes as they come, each one that it can have, and claims that go away in between hold none up.
func TestWaitingClaimsGetVolumesAsTheyCome(t *testing.T) {
	const n = 40
	fast := func(claim *v1.PersistentVolumeClaim) {
		claim.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"disk": "fast"}}
	}
	var claims objectList
	for i := range n {
		claims = append(claims, newClaim(fmt.Sprintf("c-%d", i), asks(fmt.Sprintf("%dGi", 1+i%4))))
	}
	claims = append(claims, newClaim("fast", fast), newClaim("gone"))
	inWorld(t, claims, func(_ *testing.T, w *world) {
		w.settle()
		w.delete(newClaim("gone"))
		for i := range n {
			w.create(newVolume(fmt.Sprintf("v-%d", i), holds(fmt.Sprintf("%dGi", 4-i%4))))
		}
		idle()
		w.requireAllBound(n)
		w.create(newVolume("quick", func(pv *v1.PersistentVolume) { pv.Labels = map[string]string{"disk": "fast"} }))
		idle()
		w.requireBound("fast", "quick")
	})
}

// requireAllBound fails unless the claims c-0 to c-n have each a volume that is large enough.
func (w *world) requireAllBound(n int) {
	w.t.Helper()
	for i := range n {
		claim := w.claim(fmt.Sprintf("c-%d", i))
		w.requireBound(claim.Name, claim.Spec.VolumeName)
		size, request := w.volume(claim.Spec.VolumeName).Spec.Capacity[v1.ResourceStorage], claim.Spec.Resources.Requests[v1.ResourceStorage]
		assert.GreaterOrEqual(w.t, size.Cmp(request), 0)
	}
}
