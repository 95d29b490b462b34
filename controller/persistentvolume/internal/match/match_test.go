package match

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/controller/internal/fit"
	"github.com/volumekit/volumekit/volume"
)

func TestFindMatch(t *testing.T) {
	sized := func(s string) func(*v1.PersistentVolume) {
		return func(pv *v1.PersistentVolume) { pv.Spec.Capacity = size(s) }
	}
	modes := func(m ...v1.PersistentVolumeAccessMode) func(*v1.PersistentVolume) {
		return func(pv *v1.PersistentVolume) { pv.Spec.AccessModes = m }
	}
	class := func(name string) func(*v1.PersistentVolume) {
		return func(pv *v1.PersistentVolume) { pv.Spec.StorageClassName = name }
	}
	block := func(pv *v1.PersistentVolume) { pv.Spec.VolumeMode = ptr(v1.PersistentVolumeBlock) }
	deleted := func(pv *v1.PersistentVolume) { pv.DeletionTimestamp = ptr(metav1.Now()) }
	phase := func(p v1.PersistentVolumePhase) func(*v1.PersistentVolume) {
		return func(pv *v1.PersistentVolume) { pv.Status.Phase = p }
	}
	labelled := func(pv *v1.PersistentVolume) { pv.Labels = map[string]string{"disk": "fast"} }
	attributes := func(pv *v1.PersistentVolume) { pv.Spec.VolumeAttributesClassName = ptr("gold") }
	selects := func(c *v1.PersistentVolumeClaim) {
		c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"disk": "fast"}}
	}
	type pvs = []*v1.PersistentVolume

	tests := map[string]struct {
		claim        *v1.PersistentVolumeClaim
		volumes      pvs
		reservedOnly bool
		want         string
	}{
		"no volume":             {claim: newClaim("c"), want: ""},
		"one that fits":         {claim: newClaim("c"), volumes: pvs{newVolume("a")}, want: "a"},
		"too small":             {claim: newClaim("c"), volumes: pvs{newVolume("a", sized("1023Mi"))}},
		"the smallest that fit": {claim: newClaim("c"), volumes: pvs{newVolume("a", sized("4Gi")), newVolume("b", sized("2Gi")), newVolume("c", sized("3Gi"))}, want: "b"},
		"equal ones by name":    {claim: newClaim("c"), volumes: pvs{newVolume("b"), newVolume("a")}, want: "a"},
		"lacks an access mode":  {claim: newClaim("c"), volumes: pvs{newVolume("a", modes(v1.ReadOnlyMany))}},
		"modes are a superset":  {claim: newClaim("c"), volumes: pvs{newVolume("a", modes(v1.ReadOnlyMany, v1.ReadWriteOnce))}, want: "a"},
		"fewest modes before smallest": {claim: newClaim("c"), volumes: pvs{
			newVolume("a", modes(v1.ReadWriteOnce, v1.ReadWriteMany)), newVolume("b", sized("9Gi")),
		}, want: "b"},
		"another class":                   {claim: newClaim("c", ofClass("x")), volumes: pvs{newVolume("a", class("y"))}},
		"the same class":                  {claim: newClaim("c", ofClass("x")), volumes: pvs{newVolume("a"), newVolume("b", class("x"))}, want: "b"},
		"no class does not take any":      {claim: newClaim("c"), volumes: pvs{newVolume("a", class("x"))}},
		"class by the old annotation":     {claim: newClaim("c", ofClass("x")), volumes: pvs{newVolume("a", volumeAnnotation(v1.BetaStorageClassAnnotation, "x"))}, want: "a"},
		"another volume mode":             {claim: newClaim("c"), volumes: pvs{newVolume("a", block)}},
		"both block":                      {claim: newClaim("c", func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeMode = ptr(v1.PersistentVolumeBlock) }), volumes: pvs{newVolume("a", block)}, want: "a"},
		"empty mode is filesystem":        {claim: newClaim("c", func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeMode = ptr(v1.PersistentVolumeFilesystem) }), volumes: pvs{newVolume("a")}, want: "a"},
		"another attributes class":        {claim: newClaim("c"), volumes: pvs{newVolume("a", attributes)}},
		"selector matches":                {claim: newClaim("c", selects), volumes: pvs{newVolume("a"), newVolume("b", labelled)}, want: "b"},
		"selector does not match":         {claim: newClaim("c", selects), volumes: pvs{newVolume("a")}},
		"being deleted":                   {claim: newClaim("c"), volumes: pvs{newVolume("a", deleted)}},
		"released":                        {claim: newClaim("c"), volumes: pvs{newVolume("a", phase(v1.VolumeReleased))}},
		"no controller has synced it yet": {claim: newClaim("c"), volumes: pvs{newVolume("a", phase(""))}, want: "a"},
		"of another claim":                {claim: newClaim("c"), volumes: pvs{newVolume("a", refTo("d", ""))}},
		"of an older claim of its name": {
			claim: newClaim("c"), volumes: pvs{newVolume("a", refTo("c", "older"))},
		},
		"reserved wins over a better one": {claim: newClaim("c"), volumes: pvs{
			newVolume("a"), newVolume("b", sized("9Gi"), refTo("c", "")), newVolume("d"),
		}, want: "b"},
		"reserved by UID":                   {claim: newClaim("c"), volumes: pvs{newVolume("a", refTo("c", "uid-c"))}, want: "a"},
		"reserved, whatever class or label": {claim: newClaim("c", selects), volumes: pvs{newVolume("a", class("x"), refTo("c", ""))}, want: "a"},
		"reserved, whatever phase":          {claim: newClaim("c"), volumes: pvs{newVolume("a", phase(""), refTo("c", ""))}, want: "a"},
		"reserved but too small":            {claim: newClaim("c"), volumes: pvs{newVolume("a", sized("1Mi"), refTo("c", ""))}},
		"reserved but block":                {claim: newClaim("c"), volumes: pvs{newVolume("a", block, refTo("c", ""))}},
		"late binding takes no free one":    {claim: newClaim("c"), volumes: pvs{newVolume("a")}, reservedOnly: true},
		"late binding takes a reserved one": {claim: newClaim("c"), volumes: pvs{newVolume("a"), newVolume("b", refTo("c", ""))}, reservedOnly: true, want: "b"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			byName := map[string]*v1.PersistentVolume{}
			var reserved pvs
			s := newAvailable(func(name string) (*v1.PersistentVolume, bool) { pv, ok := byName[name]; return pv, ok })
			for _, pv := range tt.volumes {
				byName[pv.Name] = pv
				s.refresh(pv.Name)
				if pv.Spec.ClaimRef != nil {
					reserved = append(reserved, pv)
				}
			}
			n, err := NewNeed(tt.claim, nil)
			require.NoError(t, err)
			got := fit.BestReserved(tt.claim, reserved)
			if got == nil && !tt.reservedOnly {
				got = s.take(n)
			}
			if tt.want == "" {
				assert.Nil(t, got)
				return
			}
			require.NotNil(t, got)
			assert.Equal(t, tt.want, got.Name)
		})
	}
}

func TestFindMatchRefusesAMalformedSelector(t *testing.T) {
	claim := newClaim("c")
	claim.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}}
	_, err := NewNeed(claim, nil)
	require.Error(t, err)
}

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
			assert.Equal(t, tt.want, fit.Reachable(newVolume("a", affinity(tt.terms...)), node))
		})
	}
	assert.True(t, fit.Reachable(newVolume("a"), node), "no affinity")
	assert.True(t, fit.Reachable(newVolume("a", affinity()), nil), "no node is known")
}

// What a plugin returns is not believed.
func TestWhatAPluginMadeIsChecked(t *testing.T) {
	claim := newClaim("c")
	claim.Spec.VolumeMode = ptr(v1.PersistentVolumeBlock)
	good := func() *v1.PersistentVolume {
		pv := newVolume("pvc-uid-c")
		pv.Spec.VolumeMode = ptr(v1.PersistentVolumeBlock)
		return pv
	}
	require.NoError(t, fit.CheckProvisioned(good(), claim))
	for name, spoil := range map[string]func(*v1.PersistentVolume){
		"name":         func(pv *v1.PersistentVolume) { pv.Name = "other" },
		"size":         func(pv *v1.PersistentVolume) { pv.Spec.Capacity = size("1Mi") },
		"volume mode":  func(pv *v1.PersistentVolume) { pv.Spec.VolumeMode = nil },
		"access modes": func(pv *v1.PersistentVolume) { pv.Spec.AccessModes = nil },
	} {
		t.Run(name, func(t *testing.T) {
			pv := good()
			spoil(pv)
			require.ErrorIs(t, fit.CheckProvisioned(pv, claim), volume.ErrInvalid)
		})
	}
}
