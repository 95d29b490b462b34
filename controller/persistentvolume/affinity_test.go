package persistentvolume

import (
	"strings"
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

func TestReachable(t *testing.T) {
	long := strings.Repeat("n", 100) // longer than a label's value may be
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: long, Labels: map[string]string{"zone": "a", "cores": "8"}}}
	label := func(key string, op v1.NodeSelectorOperator, values ...string) v1.NodeSelectorRequirement {
		return v1.NodeSelectorRequirement{Key: key, Operator: op, Values: values}
	}
	labels := func(r ...v1.NodeSelectorRequirement) v1.NodeSelectorTerm {
		return v1.NodeSelectorTerm{MatchExpressions: r}
	}
	fields := func(r ...v1.NodeSelectorRequirement) v1.NodeSelectorTerm { return v1.NodeSelectorTerm{MatchFields: r} }
	for name, tt := range map[string]struct {
		terms []v1.NodeSelectorTerm
		want  bool
	}{
		"in":                  {[]v1.NodeSelectorTerm{labels(label("zone", v1.NodeSelectorOpIn, "b", "a"))}, true},
		"in others":           {[]v1.NodeSelectorTerm{labels(label("zone", v1.NodeSelectorOpIn, "b"))}, false},
		"not in":              {[]v1.NodeSelectorTerm{labels(label("zone", v1.NodeSelectorOpNotIn, "a"))}, false},
		"exists":              {[]v1.NodeSelectorTerm{labels(label("zone", v1.NodeSelectorOpExists))}, true},
		"does not exist":      {[]v1.NodeSelectorTerm{labels(label("rack", v1.NodeSelectorOpDoesNotExist))}, true},
		"greater":             {[]v1.NodeSelectorTerm{labels(label("cores", v1.NodeSelectorOpGt, "4"))}, true},
		"less":                {[]v1.NodeSelectorTerm{labels(label("cores", v1.NodeSelectorOpLt, "4"))}, false},
		"malformed":           {[]v1.NodeSelectorTerm{labels(label("zone", "Like", "a"))}, false},
		"every expression":    {[]v1.NodeSelectorTerm{labels(label("zone", v1.NodeSelectorOpExists), label("rack", v1.NodeSelectorOpExists))}, false},
		"any term":            {[]v1.NodeSelectorTerm{labels(label("rack", v1.NodeSelectorOpExists)), labels(label("zone", v1.NodeSelectorOpExists))}, true},
		"no term":             {nil, false},
		"an empty term":       {[]v1.NodeSelectorTerm{{}}, false},
		"by name":             {[]v1.NodeSelectorTerm{fields(label(metav1.ObjectNameField, v1.NodeSelectorOpIn, long))}, true},
		"by another name":     {[]v1.NodeSelectorTerm{fields(label(metav1.ObjectNameField, v1.NodeSelectorOpIn, "other"))}, false},
		"not by name":         {[]v1.NodeSelectorTerm{fields(label(metav1.ObjectNameField, v1.NodeSelectorOpNotIn, long))}, false},
		"by an unknown field": {[]v1.NodeSelectorTerm{fields(label("spec.unschedulable", v1.NodeSelectorOpIn, "false"))}, false},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tt.want, reachable(newVolume("a", affinity(tt.terms...)), node))
		})
	}
	assert.True(t, reachable(newVolume("a"), node), "no affinity")
	assert.True(t, reachable(newVolume("a", affinity()), nil), "no node is known")
}

// A claim never gets a volume that its node cannot reach, however it would come to it.
func TestAClaimGetsNoVolumeOfAnotherNode(t *testing.T) {
	on := func(name string) func(*v1.PersistentVolume) {
		return affinity(v1.NodeSelectorTerm{MatchExpressions: requirements{
			{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{name}},
		}})
	}
	for name, tt := range map[string]struct {
		objects objects
		bound   string
		reason  string
	}{
		"free":                    {objects{newClaim("c"), newVolume("a", on("other")), newVolume("b", on("here"))}, "b", ""},
		"none":                    {objects{newClaim("c"), newVolume("a", on("other"))}, "", ReasonFailedBinding},
		"reserved":                {objects{newClaim("c"), newVolume("a", on("other"), refTo("c", ""))}, "", ReasonVolumeMismatch},
		"named":                   {objects{newClaim("c", names("a")), newVolume("a", on("other"))}, "", ReasonVolumeMismatch},
		"of a selected node":      {objects{newClaim("c", onNode("other")), newVolume("a", on("other")), newVolume("b", on("here"))}, "a", ""},
		"of what the store knows": {objects{newClaim("c"), newVolume("a", on("alias")), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here", Labels: map[string]string{v1.LabelHostname: "alias"}}}}, "a", ""},
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
