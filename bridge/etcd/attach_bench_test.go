package etcd_test

import (
	"context"
	"fmt"
	"os"
	goruntime "runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/bridge/etcd"
	"github.com/volumekit/volumekit/controller/attachdetach"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// volumesPerNode is how many volumes each node gets.
const volumesPerNode = 100

// slow is an etcd that takes its time for each call, and counts them.
type slow struct {
	by    time.Duration
	calls atomic.Int64
}

func (s *slow) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	s.calls.Add(1)
	if s.by > 0 {
		time.Sleep(s.by)
	}
	return invoke(ctx, method, req, reply, cc, options...)
}

// recording is a store that counts the attachments that were recorded as made.
type recording struct {
	*etcd.Store

	made atomic.Int64
}

func (s *recording) Update(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	updated, err := s.Store.Update(ctx, obj)
	if attachment, ok := obj.(*storagev1.VolumeAttachment); ok && err == nil && attachment.Status.Attached {
		s.made.Add(1)
	}
	return updated, err
}

// BenchmarkAttachments is what a controller of attachments takes that attaches volumes by a plugin that returns at once, and what the
// next one takes to know what is attached, on an etcd of one member that takes the time that is named for each call. "attach" is until
// all are attached, "record" until that is on record, too. "calls" are those of etcd, "plugin" those of the plugin, "cpu-s" is processor
// time, the etcd's included, and "MB" is the largest heap, above that at the start; ETCD_BENCH_ENDPOINT is of an etcd that is to be used
// in place of one in this process, so that neither has its part in it. Run it once.
func BenchmarkAttachments(b *testing.B) {
	for _, count := range []int{10_000, 50_000} {
		for _, by := range []time.Duration{0, 2 * time.Millisecond} {
			b.Run(fmt.Sprintf("%d/etcd=%v", count, by), func(b *testing.B) {
				delay := &slow{}
				client := benchMember(b, grpc.WithUnaryInterceptor(delay.intercept))
				made, err := etcd.New(client, etcd.Options{Prefix: fmt.Sprintf("/attachments-%d", time.Now().UnixNano())})
				require.NoError(b, err)
				s := &recording{Store: made}
				fillCluster(b, made, count)
				delay.by = by
				backend := fake.NewBackend()
				for b.Loop() {
					measureController(b, s, delay, backend, count, "attach")
					measureController(b, s, delay, backend, count, "restart")
				}
			})
		}
	}
}

// benchMember returns a client of the etcd that is to be used, and otherwise of one of its own.
func benchMember(b *testing.B, options ...grpc.DialOption) *clientv3.Client {
	b.Helper()
	endpoint := os.Getenv("ETCD_BENCH_ENDPOINT")
	if endpoint == "" {
		return newMember(b, options...)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop(), DialTimeout: 5 * time.Second, DialOptions: options})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, client.Close()) })
	return client
}

// fillCluster makes nodes, and for each of its volumes a PersistentVolume, a claim and a pod.
func fillCluster(b *testing.B, s *etcd.Store, count int) {
	b.Helper()
	var writes []store.Write
	flush := func() {
		_, err := s.Commit(b.Context(), store.Transaction{Writes: writes})
		require.NoError(b, err)
		writes = nil
	}
	for i := range count {
		node := fmt.Sprintf("node-%d", i/volumesPerNode)
		if i%volumesPerNode == 0 {
			writes = append(writes, store.ToCreate(&v1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: node},
				Status:     v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}},
			}))
		}
		name := fmt.Sprintf("data-%d", i)
		uid := types.UID("uid-of-" + name)
		writes = append(writes,
			store.ToCreate(&v1.PersistentVolumeClaim{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: uid},
				Spec:       v1.PersistentVolumeClaimSpec{VolumeName: name},
				Status:     v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound},
			}),
			store.ToCreate(&v1.PersistentVolume{
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: v1.PersistentVolumeSpec{
					AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
					ClaimRef:    &v1.ObjectReference{Namespace: "default", Name: name, UID: uid},
					PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
						Driver: volume.DriverOfPluginName(fake.DefaultPluginName), VolumeHandle: name,
					}},
				},
			}),
			store.ToCreate(&v1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
				Spec: v1.PodSpec{NodeName: node, Volumes: []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{
					PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name},
				}}}},
			}))
		if len(writes) > 90 {
			flush()
		}
	}
	if len(writes) > 0 {
		flush()
	}
}

// measureController runs a controller until it knows that every volume is attached.
func measureController(b *testing.B, s *recording, delay *slow, backend *fake.Backend, count int, what string) {
	b.Helper()
	host, err := volume.NewHost(volume.HostOptions{RootDir: b.TempDir(), NodeName: "controller"})
	require.NoError(b, err)
	plugin := fake.NewPlugin(fake.PluginOptions{Mounter: fake.NewMounter(fake.MounterOptions{}), Backend: backend})
	plugins := volume.NewVolumePluginMgr(host)
	require.NoError(b, plugins.InitPlugins(b.Context(), plugin))
	goruntime.GC()
	most, base := heap(), heap()
	calls, used, began := delay.calls.Load(), processorTime(b), time.Now()
	s.made.Store(0)
	c := attachdetach.New(plugins, s, attachdetach.Options{})
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	for looked := time.Now(); attachedBy(c) < count; looked = time.Now() {
		// What measures is to be no large part of what is measured.
		pause(ctx, max(100*time.Millisecond, 10*time.Since(looked)))
		most = max(most, heap())
	}
	report := func(what string) {
		b.ReportMetric(time.Since(began).Seconds(), "s/"+what)
		b.ReportMetric((processorTime(b) - used).Seconds(), "cpu-s/"+what)
		b.ReportMetric(float64(delay.calls.Load()-calls), "calls/"+what)
	}
	report(what)
	for what == "attach" && s.made.Load() < int64(count) {
		pause(ctx, 50*time.Millisecond)
		most = max(most, heap())
	}
	if what == "attach" {
		report("record")
	}
	b.ReportMetric(float64(len(plugin.Calls())), "plugin/"+what)
	b.ReportMetric(float64(most-base)/1e6, "MB/"+what)
	cancel()
	require.NoError(b, <-ended)
}

// attachedBy returns how many volumes a controller knows to be attached.
func attachedBy(c *attachdetach.Controller) int {
	attached := 0
	for _, status := range c.Status() {
		if status.Phase == attachdetach.PhaseAttached {
			attached++
		}
	}
	return attached
}

// processorTime returns that of this process.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func heap() uint64 {
	var stats goruntime.MemStats
	goruntime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
