package persistentvolume

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
		"another class":               {claim: newClaim("c", ofClass("x")), volumes: pvs{newVolume("a", class("y"))}},
		"the same class":              {claim: newClaim("c", ofClass("x")), volumes: pvs{newVolume("a"), newVolume("b", class("x"))}, want: "b"},
		"no class does not take any":  {claim: newClaim("c"), volumes: pvs{newVolume("a", class("x"))}},
		"class by the old annotation": {claim: newClaim("c", ofClass("x")), volumes: pvs{newVolume("a", volumeAnnotation(v1.BetaStorageClassAnnotation, "x"))}, want: "a"},
		"another volume mode":         {claim: newClaim("c"), volumes: pvs{newVolume("a", block)}},
		"both block":                  {claim: newClaim("c", func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeMode = ptr(v1.PersistentVolumeBlock) }), volumes: pvs{newVolume("a", block)}, want: "a"},
		"empty mode is filesystem":    {claim: newClaim("c", func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeMode = ptr(v1.PersistentVolumeFilesystem) }), volumes: pvs{newVolume("a")}, want: "a"},
		"another attributes class":    {claim: newClaim("c"), volumes: pvs{newVolume("a", attributes)}},
		"selector matches":            {claim: newClaim("c", selects), volumes: pvs{newVolume("a"), newVolume("b", labelled)}, want: "b"},
		"selector does not match":     {claim: newClaim("c", selects), volumes: pvs{newVolume("a")}},
		"being deleted":               {claim: newClaim("c"), volumes: pvs{newVolume("a", deleted)}},
		"released":                    {claim: newClaim("c"), volumes: pvs{newVolume("a", phase(v1.VolumeReleased))}},
		"nobody has looked at it yet": {claim: newClaim("c"), volumes: pvs{newVolume("a", phase(""))}, want: "a"},
		"of another claim":            {claim: newClaim("c"), volumes: pvs{newVolume("a", refTo("d", ""))}},
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
			s := newStock(func(name string) (*v1.PersistentVolume, bool) { pv, ok := byName[name]; return pv, ok })
			for _, pv := range tt.volumes {
				byName[pv.Name] = pv
				s.refresh(pv.Name)
				if pv.Spec.ClaimRef != nil {
					reserved = append(reserved, pv)
				}
			}
			n, err := needOf(tt.claim, nil)
			require.NoError(t, err)
			got := bestReserved(tt.claim, reserved)
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
	_, err := needOf(claim, nil)
	require.Error(t, err)
}

func TestDefaultClass(t *testing.T) {
	now := metav1.Now()
	isDefault := func(age time.Duration) func(*storagev1.StorageClass) {
		return func(c *storagev1.StorageClass) {
			c.CreationTimestamp = metav1.NewTime(now.Add(-age))
			c.Annotations = map[string]string{AnnDefaultClass: "true"}
		}
	}
	type classes = []*storagev1.StorageClass
	assert.Nil(t, defaultClass(classes{newClass("a")}))
	assert.Equal(t, "b", defaultClass(classes{newClass("a"), newClass("b", isDefault(time.Hour))}).Name)
	assert.Equal(t, "c", defaultClass(classes{newClass("b", isDefault(time.Hour)), newClass("c", isDefault(0)), newClass("d", isDefault(time.Minute))}).Name)
	assert.Equal(t, "a", defaultClass(classes{newClass("b", isDefault(0)), newClass("a", isDefault(0))}).Name)
}
