package prometheus

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/attachdetach"
	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

var (
	_ Manager                           = (*volumemanager.Manager)(nil)
	_ AttachController                  = (*attachdetach.Controller)(nil)
	_ ClaimController                   = (*persistentvolume.Controller)(nil)
	_ Lister[*v1.PersistentVolumeClaim] = (*store.Mirror[*v1.PersistentVolumeClaim])(nil)
	_ PluginFinder                      = (*volume.VolumePluginMgr)(nil)
)

// startManager returns a manager that runs on fakes until the test ends. It makes no records.
func startManager(t testing.TB, options volumemanager.Options) *volumemanager.Manager {
	t.Helper()
	mounter := fake.NewMounter(fake.MounterOptions{})
	plugins := volume.NewVolumePluginMgr(fake.NewHost("node-1"))
	require.NoError(t, plugins.InitPlugins(t.Context(), fake.NewPlugin(fake.PluginOptions{Mounter: mounter})))
	options.Mounter, options.NoRecords = mounter, true
	manager, err := volumemanager.New(plugins, options)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- manager.Run(context.WithoutCancel(t.Context())) }()
	t.Cleanup(func() {
		require.NoError(t, manager.Stop(context.Background()))
		require.NoError(t, <-ended)
	})
	return manager
}

// podWithVolume returns a pod with one volume of the fake plugin.
func podWithVolume() *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "web-1"}}
	pod.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "fake.example.com"}}}}
	pod.Spec.Containers = []v1.Container{{Name: "main", VolumeMounts: []v1.VolumeMount{{Name: "data", MountPath: "/data"}}}}
	return pod
}

// TestARealManagerIsScraped scrapes while a pod's volume is mounted, and after it has gone.
func TestARealManagerIsScraped(t *testing.T) {
	ctx := t.Context()
	observer := NewObserver()
	manager, pod := startManager(t, volumemanager.Options{Observer: observer}), podWithVolume()
	registry := prom.NewPedanticRegistry()
	require.NoError(t, registry.Register(observer))
	require.NoError(t, registry.Register(NewNode(manager, NodeOptions{})))

	require.NoError(t, manager.AddPod(ctx, pod))
	manager.PodsComplete()
	require.NoError(t, manager.WaitForAttachAndMount(ctx, pod))
	_, err := manager.WaitForStats(ctx, time.Hour)
	require.NoError(t, err)
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP volume_manager_total_volumes Number of volumes in Volume Manager
# TYPE volume_manager_total_volumes gauge
volume_manager_total_volumes{plugin_name="`+fake.DefaultPluginName+`",state="actual_state_of_world"} 1
volume_manager_total_volumes{plugin_name="`+fake.DefaultPluginName+`",state="desired_state_of_world"} 1
# HELP volumekit_volumes Volumes of pods, by plugin and phase. A volume of two pods counts twice.
# TYPE volumekit_volumes gauge
volumekit_volumes{phase="mounted",plugin_name="`+fake.DefaultPluginName+`"} 1
# HELP volumekit_manager_pods_complete 1 once all pods of the node have been added.
# TYPE volumekit_manager_pods_complete gauge
volumekit_manager_pods_complete 1
`), "volume_manager_total_volumes", "volumekit_volumes", "volumekit_manager_pods_complete"))
	assert.Equal(t, 1, operations(t, registry, "volume_mount", "success"))

	require.NoError(t, manager.RemovePod(pod.UID))
	require.NoError(t, manager.WaitForNodeEmpty(ctx))
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(""), "volume_manager_total_volumes", "volumekit_volumes"))
	assert.Equal(t, 1, operations(t, registry, "volume_unmount", "success"))
	assert.Equal(t, 0, operationsRunning(t, registry))
}

// operations returns how many operations of a kind ended with a status.
func operations(t *testing.T, registry prom.Gatherer, kind, status string) int {
	t.Helper()
	n := 0
	for labels, m := range gather(t, registry, "storage_operation_duration_seconds") {
		if strings.Contains(labels, `operation_name="`+kind+`"`) && strings.Contains(labels, `status="`+status+`"`) {
			n += int(m.GetHistogram().GetSampleCount())
		}
	}
	return n
}

// operationsRunning returns how many operations run.
func operationsRunning(t *testing.T, registry prom.Gatherer) int {
	t.Helper()
	n := 0
	for _, m := range gather(t, registry, "volumekit_operations_running") {
		n += int(m.GetGauge().GetValue())
	}
	return n
}

// gather returns the metrics of one name by their labels, as text.
func gather(t *testing.T, registry prom.Gatherer, name string) map[string]*dto.Metric {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	found := map[string]*dto.Metric{}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			found[strings.Join(labels, ",")] = m
		}
	}
	return found
}

// node is a manager that stands still.
type node struct {
	status volumemanager.NodeStatus
	stats  []volumemanager.VolumeStats
	hung   []operationexecutor.HungCall
}

func (n node) Status() volumemanager.NodeStatus                { return n.status }
func (n node) Stats(time.Duration) []volumemanager.VolumeStats { return n.stats }
func (n node) Hung() []operationexecutor.HungCall              { return n.hung }

func TestStatsOfClaimsHaveKubeletsNames(t *testing.T) {
	capacity, used := uint64(1000), uint64(250)
	claim := types.NamespacedName{Namespace: "shop", Name: "data"}
	sick := []volumemanager.Condition{{HealthCondition: volume.HealthCondition{Status: volume.HealthAbnormal, Reason: "ReadOnlyFilesystem"}}}
	n := node{stats: []volumemanager.VolumeStats{
		{PodUID: "a", Claim: claim, Plugin: "example.com/disk", CapacityBytes: &capacity, UsedBytes: &used, Conditions: sick},
		{PodUID: "b", Claim: claim, Plugin: "example.com/disk", CapacityBytes: &capacity, UsedBytes: &used}, // another pod of the claim
		{PodUID: "a", OuterName: "scratch", Plugin: "example.com/disk", CapacityBytes: &capacity},           // no claim: no series
		{PodUID: "c", Plugin: "example.com/nfs", Err: errors.New("stale file handle")},
	}}
	require.NoError(t, testutil.CollectAndCompare(NewNode(n, NodeOptions{}), strings.NewReader(`
# HELP kubelet_volume_stats_capacity_bytes Capacity in bytes of the volume
# TYPE kubelet_volume_stats_capacity_bytes gauge
kubelet_volume_stats_capacity_bytes{namespace="shop",persistentvolumeclaim="data"} 1000
# HELP kubelet_volume_stats_used_bytes Number of used bytes in the volume
# TYPE kubelet_volume_stats_used_bytes gauge
kubelet_volume_stats_used_bytes{namespace="shop",persistentvolumeclaim="data"} 250
# HELP kubelet_volume_stats_health_status_abnormal 1 if the volume is unhealthy, 0 if it is not
# TYPE kubelet_volume_stats_health_status_abnormal gauge
kubelet_volume_stats_health_status_abnormal{namespace="shop",persistentvolumeclaim="data"} 1
# HELP volumekit_volume_stats_failing Volumes whose last measurement failed.
# TYPE volumekit_volume_stats_failing gauge
volumekit_volume_stats_failing{plugin_name="example.com/nfs"} 1
`), "kubelet_volume_stats_capacity_bytes", "kubelet_volume_stats_available_bytes", "kubelet_volume_stats_used_bytes",
		"kubelet_volume_stats_health_status_abnormal", "volumekit_volume_stats_failing"))
}

func TestWhatIsWrongOnANodeIsCounted(t *testing.T) {
	n := node{
		status: volumemanager.NodeStatus{
			Running: true,
			Volumes: []volumemanager.VolumeStatus{
				{Plugin: "example.com/disk", Phase: volumemanager.PhaseWaiting, Wanted: true, Err: errors.New("no space left")},
				{Plugin: "example.com/disk", Phase: volumemanager.PhaseUncertain, Conditions: []volumemanager.Condition{{HealthCondition: volume.HealthCondition{Reason: "Hung"}}}},
			},
			Orphans: make([]volumemanager.Orphan, 2), Damaged: make([]volumemanager.DamagedRecord, 1), LostData: make([]volumemanager.LostData, 3), Reused: 7,
		},
		hung: []operationexecutor.HungCall{{Operation: operationexecutor.OperationInfo{PluginName: "example.com/nfs"}}},
	}
	require.NoError(t, testutil.CollectAndCompare(NewNode(n, NodeOptions{}), strings.NewReader(`
# HELP volume_manager_total_volumes Number of volumes in Volume Manager
# TYPE volume_manager_total_volumes gauge
volume_manager_total_volumes{plugin_name="example.com/disk",state="actual_state_of_world"} 1
volume_manager_total_volumes{plugin_name="example.com/disk",state="desired_state_of_world"} 1
# HELP volumekit_damaged_records Records that could not be used, at this start or an earlier one.
# TYPE volumekit_damaged_records gauge
volumekit_damaged_records 1
# HELP volumekit_hung_calls Calls of plugins that have outlived their deadlines and still run.
# TYPE volumekit_hung_calls gauge
volumekit_hung_calls{plugin_name="example.com/nfs"} 1
# HELP volumekit_lost_data Unmounts after which written data may be lost.
# TYPE volumekit_lost_data gauge
volumekit_lost_data 3
# HELP volumekit_manager_pods_complete 1 once all pods of the node have been added.
# TYPE volumekit_manager_pods_complete gauge
volumekit_manager_pods_complete 0
# HELP volumekit_manager_running 1 while the manager works, 0 before and after.
# TYPE volumekit_manager_running gauge
volumekit_manager_running 1
# HELP volumekit_orphans Mounts, directories and devices below the root that no record explains.
# TYPE volumekit_orphans gauge
volumekit_orphans 2
# HELP volumekit_reused_volumes_total Set-ups of an earlier manager that pods use as they were found.
# TYPE volumekit_reused_volumes_total counter
volumekit_reused_volumes_total 7
# HELP volumekit_volume_conditions Conditions of volumes, by plugin and reason.
# TYPE volumekit_volume_conditions gauge
volumekit_volume_conditions{plugin_name="example.com/disk",reason="Hung"} 1
# HELP volumekit_volumes Volumes of pods, by plugin and phase. A volume of two pods counts twice.
# TYPE volumekit_volumes gauge
volumekit_volumes{phase="uncertain",plugin_name="example.com/disk"} 1
volumekit_volumes{phase="waiting",plugin_name="example.com/disk"} 1
# HELP volumekit_volumes_failing Volumes of pods whose last operation failed.
# TYPE volumekit_volumes_failing gauge
volumekit_volumes_failing{plugin_name="example.com/disk"} 1
`)))
}

// attachController is a controller that stands still.
type attachController struct{}

func (attachController) Status() []attachdetach.AttachmentStatus {
	return []attachdetach.AttachmentStatus{
		{Volume: "example.com/disk/a", Node: "n1", Phase: attachdetach.PhaseInUse, Wanted: true},
		{Volume: "example.com/disk/b", Node: "n1", Phase: attachdetach.PhaseDetaching},
		{Volume: "example.com/disk/c", Node: "n2", Phase: attachdetach.PhaseRequested, Wanted: true, Err: errors.New("held by n1")},
	}
}

func (attachController) ForcedDetaches() map[attachdetach.ForceReason]uint64 {
	return map[attachdetach.ForceReason]uint64{attachdetach.ForcedByFence: 2}
}
func (attachController) Hung() []operationexecutor.HungCall { return nil }

func TestAttachmentsHaveKubernetesNames(t *testing.T) {
	require.NoError(t, testutil.CollectAndCompare(NewAttachments(attachController{}), strings.NewReader(`
# HELP attachdetach_controller_forced_detaches Number of times the A/D Controller performed a forced detach
# TYPE attachdetach_controller_forced_detaches counter
attachdetach_controller_forced_detaches{reason="out-of-service"} 2
attachdetach_controller_forced_detaches{reason="timeout"} 0
# HELP attachdetach_controller_total_volumes Number of volumes in A/D Controller
# TYPE attachdetach_controller_total_volumes gauge
attachdetach_controller_total_volumes{plugin_name="example.com/disk",state="actual_state_of_world"} 2
attachdetach_controller_total_volumes{plugin_name="example.com/disk",state="desired_state_of_world"} 2
# HELP storage_count_attachable_volumes_in_use Measure number of volumes in use
# TYPE storage_count_attachable_volumes_in_use gauge
storage_count_attachable_volumes_in_use{node="n1",volume_plugin="example.com/disk"} 2
# HELP volumekit_attachments Attachments, by plugin and phase.
# TYPE volumekit_attachments gauge
volumekit_attachments{phase="detaching",plugin_name="example.com/disk"} 1
volumekit_attachments{phase="in use",plugin_name="example.com/disk"} 1
volumekit_attachments{phase="requested",plugin_name="example.com/disk"} 1
# HELP volumekit_attachments_failing Attachments whose last operation failed.
# TYPE volumekit_attachments_failing gauge
volumekit_attachments_failing{plugin_name="example.com/disk"} 1
`)))
}

// list is a lister of what does not change.
type list[T any] []T

func (l list[T]) All() []T { return l }

// pending is a controller with one claim that waits.
type pending struct{}

func (pending) Pending() []persistentvolume.PendingClaim {
	return []persistentvolume.PendingClaim{{Reason: persistentvolume.ReasonFailedBinding}}
}

func TestClaimsAndVolumesHaveKubernetesNames(t *testing.T) {
	class := "fast"
	bound := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "a"}}
	bound.Spec.StorageClassName, bound.Status.Phase = &class, v1.ClaimBound
	waits := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "b"}} // no class, no status
	pv := &v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{StorageClassName: class}, Status: v1.PersistentVolumeStatus{Phase: v1.VolumeBound}}
	claims := NewClaims(ClaimsOptions{Claims: list[*v1.PersistentVolumeClaim]{bound, waits}, Volumes: list[*v1.PersistentVolume]{pv}, Controller: pending{}})
	require.NoError(t, testutil.CollectAndCompare(claims, strings.NewReader(`
# HELP pv_collector_bound_pv_count Gauge measuring number of persistent volume currently bound
# TYPE pv_collector_bound_pv_count gauge
pv_collector_bound_pv_count{storage_class="fast"} 1
# HELP pv_collector_bound_pvc_count Gauge measuring number of persistent volume claim currently bound
# TYPE pv_collector_bound_pvc_count gauge
pv_collector_bound_pvc_count{namespace="shop",storage_class="fast",volume_attributes_class=""} 1
# HELP pv_collector_total_pv_count Gauge measuring total number of persistent volumes
# TYPE pv_collector_total_pv_count gauge
pv_collector_total_pv_count{plugin_name="N/A",volume_mode="Filesystem"} 1
# HELP pv_collector_unbound_pvc_count Gauge measuring number of persistent volume claim currently unbound
# TYPE pv_collector_unbound_pvc_count gauge
pv_collector_unbound_pvc_count{namespace="shop",storage_class="",volume_attributes_class=""} 1
# HELP volumekit_pending_claims Claims that have no volume, by reason.
# TYPE volumekit_pending_claims gauge
volumekit_pending_claims{reason="FailedBinding"} 1
`)))
	assert.Zero(t, testutil.CollectAndCount(NewClaims(ClaimsOptions{})))
}

func TestAFailureIsCountedWithItsClass(t *testing.T) {
	o := NewObserver()
	info := operationexecutor.OperationInfo{Kind: operationexecutor.OpMount, PluginName: "example.com/disk", VolumeName: "example.com/disk/a"}
	o.OperationStarted(info)
	assert.Equal(t, 1, int(testutil.ToFloat64(o.running)))
	o.OperationStepped(info, operationexecutor.Step{Name: "SetUp", Duration: time.Second})
	o.OperationFinished(info, operationexecutor.Result{Class: operationexecutor.Uncertain, Err: errors.New("timeout"), Duration: time.Second})
	assert.Equal(t, 0, int(testutil.ToFloat64(o.running)))
	assert.Equal(t, 1, int(testutil.ToFloat64(o.failures.WithLabelValues("example.com/disk", "volume_mount", "uncertain"))))
	assert.Equal(t, 1, testutil.CollectAndCount(o, "volumekit_operation_step_duration_seconds"))
}

// BenchmarkObserver is what an observer adds to an operation with six steps.
func BenchmarkObserver(b *testing.B) {
	o := NewObserver()
	info := operationexecutor.OperationInfo{Kind: operationexecutor.OpMount, PluginName: "example.com/disk", VolumeName: "example.com/disk/a"}
	step := operationexecutor.Step{Name: "SetUp", Duration: time.Millisecond}
	b.ReportAllocs()
	for b.Loop() {
		o.OperationStarted(info)
		for range 6 {
			o.OperationStepped(info, step)
		}
		o.OperationFinished(info, operationexecutor.Result{Duration: time.Millisecond})
	}
}

// BenchmarkScrape is one scrape of a node with 10,000 volumes of claims.
func BenchmarkScrape(b *testing.B) {
	figure := uint64(1 << 30)
	var n node
	for i := range 10000 {
		plugin := fmt.Sprintf("example.com/disk%d", i%3)
		n.status.Volumes = append(n.status.Volumes, volumemanager.VolumeStatus{Plugin: plugin, Phase: volumemanager.PhaseMounted, Wanted: true})
		n.stats = append(n.stats, volumemanager.VolumeStats{
			Claim: types.NamespacedName{Namespace: "shop", Name: fmt.Sprint("data-", i)}, Plugin: plugin,
			CapacityBytes: &figure, AvailableBytes: &figure, UsedBytes: &figure, Inodes: &figure, InodesFree: &figure, InodesUsed: &figure,
		})
	}
	registry := prom.NewRegistry()
	registry.MustRegister(NewNode(n, NodeOptions{}))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := registry.Gather(); err != nil {
			b.Fatal(err)
		}
	}
}

// claimed returns a pod with claims of a number, and adds the claims and their volumes to a store.
func claimed(t testing.TB, objects store.Store, number, claims int) *v1.Pod {
	t.Helper()
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprint("web-", number), UID: types.UID(fmt.Sprint("web-", number))}}
	pod.Spec.Containers = []v1.Container{{Name: "main"}}
	for i := range claims {
		name := fmt.Sprint("data-", number, "-", i)
		pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name}, Spec: v1.PersistentVolumeSpec{
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "fake.example.com", VolumeHandle: name}},
			ClaimRef:               &v1.ObjectReference{Namespace: "shop", Name: name, UID: types.UID(name)},
		}}
		claim := &v1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)},
			Spec:       v1.PersistentVolumeClaimSpec{VolumeName: pv.Name}, Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound},
		}
		for _, o := range []store.Object{pv, claim} {
			_, err := objects.Create(t.Context(), o)
			require.NoError(t, err)
		}
		source := v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}}
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: name, VolumeSource: source})
		pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, v1.VolumeMount{Name: name, MountPath: "/" + name})
	}
	return pod
}

// BenchmarkScrapeOfAManager is one scrape of a manager with 10,000 volumes of claims in 1,000 pods, which have been measured.
func BenchmarkScrapeOfAManager(b *testing.B) {
	objects := store.NewMemory(store.MemoryOptions{})
	manager := startManager(b, volumemanager.Options{Store: objects})
	manager.PodsComplete()
	for i := range 1000 {
		pod := claimed(b, objects, i, 10)
		require.NoError(b, manager.AddPod(b.Context(), pod))
		require.NoError(b, manager.WaitForAttachAndMount(b.Context(), pod))
	}
	_, err := manager.WaitForStats(b.Context(), time.Hour)
	require.NoError(b, err)
	registry := prom.NewRegistry()
	registry.MustRegister(NewNode(manager, NodeOptions{MaxAge: time.Hour}))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := registry.Gather(); err != nil {
			b.Fatal(err)
		}
	}
}

// TestThePageNamesEveryMetric compares docs/metrics.md with the descriptions of all collectors.
func TestThePageNamesEveryMetric(t *testing.T) {
	page, err := os.ReadFile("../../docs/metrics.md")
	require.NoError(t, err)
	described := make(chan *prom.Desc, 100)
	for _, c := range []prom.Collector{NewObserver(), NewNode(node{}, NodeOptions{}), NewAttachments(attachController{}), NewClaims(ClaimsOptions{})} {
		c.Describe(described)
	}
	close(described)
	names := regexp.MustCompile(`fqName: "([^"]+)"`)
	for d := range described {
		assert.Contains(t, string(page), "`"+names.FindStringSubmatch(d.String())[1]+"`")
	}
}
