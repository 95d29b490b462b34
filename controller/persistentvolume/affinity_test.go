package persistentvolume

import (
	"testing"

	"github.com/stretchr/testify/assert"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type requirements = []v1.NodeSelectorRequirement

func affinity(terms ...v1.NodeSelectorTerm) func(*v1.PersistentVolume) {
	return func(pv *v1.PersistentVolume) {
		pv.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: terms}}
	}
}

// A claim never gets a volume that its node cannot reach, however it would come to it.
func TestAClaimGetsNoVolumeOfAnotherNode(t *testing.T) {
	on := func(name string) func(*v1.PersistentVolume) {
		return affinity(v1.NodeSelectorTerm{MatchExpressions: requirements{
			{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{name}},
		}})
	}
	for name, tt := range map[string]struct {
		objects objectList
		bound   string
		reason  string
	}{
		"free":                    {objectList{newClaim("c"), newVolume("a", on("other")), newVolume("b", on("here"))}, "b", ""},
		"none":                    {objectList{newClaim("c"), newVolume("a", on("other"))}, "", ReasonFailedBinding},
		"reserved":                {objectList{newClaim("c"), newVolume("a", on("other"), refTo("c", ""))}, "", ReasonVolumeMismatch},
		"named":                   {objectList{newClaim("c", names("a")), newVolume("a", on("other"))}, "", ReasonVolumeMismatch},
		"of a selected node":      {objectList{newClaim("c", onNode("other")), newVolume("a", on("other")), newVolume("b", on("here"))}, "a", ""},
		"of what the store knows": {objectList{newClaim("c"), newVolume("a", on("alias")), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here", Labels: map[string]string{v1.LabelHostname: "alias"}}}}, "a", ""},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, tt.objects, func(t *testing.T, w *world) {
				c, _ := w.start(w.store, Options{NodeName: "here"})
				idle()
				if tt.bound != "" {
					w.requireBound("c", tt.bound)
					return
				}
				assert.Empty(t, w.claim("c").Annotations)
				if pending := c.Pending(); assert.Len(t, pending, 1) {
					assert.Equal(t, tt.reason, pending[0].Reason)
				}
			})
		})
	}
}
