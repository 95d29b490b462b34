package etcd_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/bridge/etcd"
	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// claimsPerRound is how many claims are made, one after the other.
const claimsPerRound = 200

// BenchmarkClaim is what a claim takes that gets a new volume: from the call that creates it until a watch tells that it is
// bound. The plugin makes nothing and returns at once; the etcd has one member, which syncs every write to the disk below
// TMPDIR. "limit" is what that disk takes to sync a kilobyte that was appended. Run it once.
func BenchmarkClaim(b *testing.B) {
	b.Run("impl=ours", func(b *testing.B) {
		client := newMember(b)
		s, err := etcd.New(client, etcd.Options{Prefix: "/claims"})
		require.NoError(b, err)
		ctx := runController(b, s)
		var took []time.Duration
		for b.Loop() {
			took = append(took, makeClaims(b, ctx, s)...)
		}
		percentiles(b, took)
		now, err := client.Get(b.Context(), "revision")
		require.NoError(b, err)
		b.ReportMetric(float64(now.Header.Revision)/float64(len(took)), "writes/claim")
	})
	b.Run("impl=limit", func(b *testing.B) {
		f, err := os.Create(filepath.Join(b.TempDir(), "file"))
		require.NoError(b, err)
		defer func() { require.NoError(b, f.Close()) }()
		var took []time.Duration
		kilobyte := make([]byte, 1024)
		for b.Loop() {
			for range claimsPerRound {
				began := time.Now()
				_, err := f.Write(kilobyte)
				require.NoError(b, err)
				require.NoError(b, f.Sync())
				took = append(took, time.Since(began))
			}
		}
		percentiles(b, took)
	})
}

// newMember starts an etcd of one member, as it is configured by default, and returns its client.
func newMember(b *testing.B, options ...grpc.DialOption) *clientv3.Client {
	b.Helper()
	client, peer := freeAddress(b), freeAddress(b)
	config := embed.NewConfig()
	config.Dir = b.TempDir()
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	config.InitialCluster = config.Name + "=" + peer.String()
	server, err := embed.StartEtcd(config)
	require.NoError(b, err)
	b.Cleanup(server.Close)
	<-server.Server.ReadyNotify()
	made, err := clientv3.New(clientv3.Config{Endpoints: []string{client.String()}, Logger: zap.NewNop(), DialTimeout: 5 * time.Second, DialOptions: options})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, made.Close()) })
	return made
}

// runController has the volumes of a class made in s, until the benchmark ends.
func runController(b *testing.B, s store.Store) context.Context {
	b.Helper()
	host, err := volume.NewHost(volume.HostOptions{RootDir: b.TempDir(), NodeName: "node-1"})
	require.NoError(b, err)
	plugins := volume.NewVolumePluginMgr(host)
	plugin := fake.NewPlugin(fake.PluginOptions{Mounter: fake.NewMounter(fake.MounterOptions{})})
	require.NoError(b, plugins.InitPlugins(b.Context(), plugin))
	_, err = store.Create(b.Context(), s, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: plugin.GetPluginName(),
	})
	require.NoError(b, err)
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- persistentvolume.New(plugins, s, persistentvolume.Options{}).Run(ctx) }()
	b.Cleanup(func() {
		cancel()
		require.NoError(b, <-ended)
	})
	return ctx
}

// makeClaims makes claims, one when the other is bound, and returns how long each took.
func makeClaims(b *testing.B, ctx context.Context, s store.Store) []time.Duration {
	b.Helper()
	list, err := s.List(ctx, store.PersistentVolumeClaims, "")
	require.NoError(b, err)
	events, err := s.Watch(ctx, store.PersistentVolumeClaims, "", list.ResourceVersion)
	require.NoError(b, err)
	class, before := "fast", len(list.Items)
	took := make([]time.Duration, 0, claimsPerRound)
	for i := range claimsPerRound {
		claim := &v1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("claim-%d", before+i)},
			Spec: v1.PersistentVolumeClaimSpec{
				StorageClassName: &class, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
				Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}},
			},
		}
		began := time.Now()
		_, err := store.Create(ctx, s, claim)
		require.NoError(b, err)
		waitBound(b, events, claim.Name)
		took = append(took, time.Since(began))
	}
	return took
}

func waitBound(b *testing.B, events <-chan store.Event, name string) {
	b.Helper()
	for event := range events {
		claim, ok := event.Object.(*v1.PersistentVolumeClaim)
		if ok && claim.Name == name && claim.Status.Phase == v1.ClaimBound {
			return
		}
	}
	b.Fatal("the watch has ended")
}

func percentiles(b *testing.B, took []time.Duration) {
	b.Helper()
	slices.Sort(took)
	at := func(q float64) float64 { return float64(took[int(q*float64(len(took)-1))].Nanoseconds()) }
	b.ReportMetric(at(.5), "p50-ns")
	b.ReportMetric(at(.99), "p99-ns")
	b.ReportMetric(at(1), "max-ns")
}
