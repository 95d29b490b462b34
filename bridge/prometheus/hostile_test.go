package prometheus

import (
	"strings"
	"testing"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/attachdetach"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

// hostileAttachments has an attachment whose names are not UTF-8.
type hostileAttachments struct{ attachController }

func (hostileAttachments) Status() []attachdetach.AttachmentStatus {
	return []attachdetach.AttachmentStatus{{Volume: "\xff/\xff/a", Node: "\xff", Phase: attachdetach.PhaseInUse}}
}

// Prometheus refuses a whole scrape for one label that is not UTF-8, and its library panics: names from outside must not do that.
func TestNamesThatAreNotUTF8DoNotEndAScrape(t *testing.T) {
	bad := "\xff"
	abnormal := []volumemanager.Condition{{HealthCondition: volume.HealthCondition{Status: volume.HealthAbnormal, Reason: bad}}}
	n := node{
		status: volumemanager.NodeStatus{Volumes: []volumemanager.VolumeStatus{{Plugin: "example.com/disk", Conditions: abnormal}}},
		stats: []volumemanager.VolumeStats{
			{Claim: types.NamespacedName{Namespace: bad, Name: bad}},
			{Claim: types.NamespacedName{Namespace: bad, Name: bad + "\xfe"}}, // the same label
		},
	}
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: bad}}
	claim.Spec.StorageClassName, claim.Spec.VolumeAttributesClassName = &bad, &bad
	mode := v1.PersistentVolumeMode(bad)
	pv := &v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{StorageClassName: bad, VolumeMode: &mode}}
	registry := prom.NewPedanticRegistry()
	registry.MustRegister(NewNode(n, NodeOptions{}), NewAttachments(hostileAttachments{}), NewClaims(ClaimsOptions{
		Claims: list[*v1.PersistentVolumeClaim]{claim}, Volumes: list[*v1.PersistentVolume]{pv},
	}))
	_, err := registry.Gather()
	require.NoError(t, err)
}

// A plugin's reason is a label only if it is one word: else each path or message would make a series of its own.
func TestAReasonThatIsNotAWordIsNoLabel(t *testing.T) {
	var n node
	for _, reason := range []string{"Ext4Error", "", "/dev/sdb failed", "a\nb", "ä", strings.Repeat("x", 65), "1"} {
		condition := volumemanager.Condition{HealthCondition: volume.HealthCondition{Status: volume.HealthAbnormal, Reason: reason}}
		n.status.Volumes = append(n.status.Volumes, volumemanager.VolumeStatus{Plugin: "example.com/disk", Conditions: []volumemanager.Condition{condition}})
	}
	require.NoError(t, testutil.CollectAndCompare(NewNode(n, NodeOptions{}), strings.NewReader(`
# HELP volumekit_volume_conditions Conditions of volumes, by plugin and reason.
# TYPE volumekit_volume_conditions gauge
volumekit_volume_conditions{plugin_name="example.com/disk",reason=""} 1
volumekit_volume_conditions{plugin_name="example.com/disk",reason="1"} 1
volumekit_volume_conditions{plugin_name="example.com/disk",reason="Ext4Error"} 1
volumekit_volume_conditions{plugin_name="example.com/disk",reason="Other"} 4
`), "volumekit_volume_conditions"))
}

// A claim that several pods use has the latest figures of any pod, and is unhealthy if it is so for any pod.
func TestAClaimOfSeveralPodsHasOneSeries(t *testing.T) {
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	old, latest := uint64(100), uint64(200)
	data := types.NamespacedName{Namespace: "shop", Name: "data"}
	sick := []volumemanager.Condition{{HealthCondition: volume.HealthCondition{Status: volume.HealthAbnormal}}}
	degraded := []volumemanager.Condition{{HealthCondition: volume.HealthCondition{Status: volume.HealthDegraded}}}
	n := node{stats: []volumemanager.VolumeStats{
		{PodUID: "a", Claim: data}, // not measured
		{PodUID: "b", Claim: data, Time: began.Add(time.Minute), UsedBytes: &latest},
		{PodUID: "c", Claim: types.NamespacedName{Namespace: "shop", Name: "cache"}, Time: began, UsedBytes: &old, Conditions: degraded},
		{PodUID: "d", Claim: data, Time: began, UsedBytes: &old, Conditions: sick},
	}}
	require.NoError(t, testutil.CollectAndCompare(NewNode(n, NodeOptions{}), strings.NewReader(`
# HELP kubelet_volume_stats_health_status_abnormal 1 if the volume is unhealthy, 0 if it is not
# TYPE kubelet_volume_stats_health_status_abnormal gauge
kubelet_volume_stats_health_status_abnormal{namespace="shop",persistentvolumeclaim="cache"} 0
kubelet_volume_stats_health_status_abnormal{namespace="shop",persistentvolumeclaim="data"} 1
# HELP kubelet_volume_stats_used_bytes Number of used bytes in the volume
# TYPE kubelet_volume_stats_used_bytes gauge
kubelet_volume_stats_used_bytes{namespace="shop",persistentvolumeclaim="cache"} 100
kubelet_volume_stats_used_bytes{namespace="shop",persistentvolumeclaim="data"} 200
`), "kubelet_volume_stats_used_bytes", "kubelet_volume_stats_health_status_abnormal"))
}

// Two managers in one process have labels of their own, and one scrape.
func TestTwoManagersHaveTheirOwnLabels(t *testing.T) {
	used := uint64(100)
	n := node{stats: []volumemanager.VolumeStats{{Claim: types.NamespacedName{Namespace: "shop", Name: "data"}, UsedBytes: &used}}}
	registry := prom.NewPedanticRegistry()
	for _, root := range []string{"/a", "/b"} {
		prom.WrapRegistererWith(prom.Labels{"root": root, "zone": "z"}, registry).MustRegister(NewNode(n, NodeOptions{}))
	}
	found := gather(t, registry, "kubelet_volume_stats_used_bytes")
	assert.Contains(t, found, `namespace="shop",persistentvolumeclaim="data",root="/a",zone="z"`)
	assert.Contains(t, found, `namespace="shop",persistentvolumeclaim="data",root="/b",zone="z"`)
}
