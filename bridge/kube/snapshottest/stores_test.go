package snapshottest

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"sync/atomic"
	"testing"

	snapshotscheme "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/scheme"
	groupclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/typed/volumegroupsnapshot/v1"
	groupfake "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/typed/volumegroupsnapshot/v1/fake"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/typed/volumesnapshot/v1"
	snapshotfake "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/typed/volumesnapshot/v1/fake"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientscheme "k8s.io/client-go/kubernetes/scheme"

	"github.com/volumekit/volumekit/bridge/etcd"
	"github.com/volumekit/volumekit/bridge/kube"
	"github.com/volumekit/volumekit/bridge/kube/internal/servertest"
	"github.com/volumekit/volumekit/controller/snapshot"
	"github.com/volumekit/volumekit/store"
)

func TestSnapshotsOnEtcd(t *testing.T) {
	client := startEtcd(t)
	var stores atomic.Int32
	testRows(t, func(t *testing.T) store.Store {
		t.Helper()
		s, err := etcd.New(client, etcd.Options{Prefix: fmt.Sprintf("/store-%d", stores.Add(1)), Kinds: snapshotKinds(t)})
		require.NoError(t, err)
		return s
	})
}

// startEtcd starts an etcd of one member, which ends with the test, and returns a client of it.
func startEtcd(t *testing.T) *clientv3.Client {
	t.Helper()
	config := embed.NewConfig()
	config.Name, config.Dir = "default", t.TempDir()
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	client, peer := freeAddress(t), freeAddress(t)
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	config.UnsafeNoFsync = true // What a power cut does to etcd is not tested here.
	server, err := embed.StartEtcd(config)
	require.NoError(t, err)
	t.Cleanup(server.Close)
	<-server.Server.ReadyNotify()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{client.String()}, Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// freeAddress returns an address of this machine at which no program listens. Connections of other programs come from
// 127.0.0.1 and take its ports at any time, so the address has another IP.
func freeAddress(t *testing.T) url.URL {
	t.Helper()
	process := os.Getpid()
	ip := net.IPv4(127, 1, byte(process>>8), byte(process))
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort(ip.String(), "0"))
	require.NoError(t, err)
	defer l.Close()
	return url.URL{Scheme: "http", Host: l.Addr().String()}
}

func TestSnapshotsOnFakeClients(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, clientscheme.AddToScheme(scheme))
	require.NoError(t, snapshotscheme.AddToScheme(scheme))
	testRows(t, func(t *testing.T) store.Store {
		t.Helper()
		_, clients := servertest.New(t, snapshotKinds(t), scheme)
		return newStore(t, clients, &snapshotfake.FakeSnapshotV1{Fake: &clients.Fake}, &groupfake.FakeGroupsnapshotV1{Fake: &clients.Fake})
	})
}

// newStore returns a store on an API server, as docs/snapshots.md says.
func newStore(
	t *testing.T, clients kube.Client, snapshots snapshotclient.SnapshotV1Interface, groups groupclient.GroupsnapshotV1Interface,
) *kube.Store {
	t.Helper()
	resources := map[string]kube.Resource{
		"VolumeSnapshot":             kube.WithStatus(snapshots.VolumeSnapshots),
		"VolumeSnapshotContent":      kube.WithStatus(withoutNamespace(snapshots.VolumeSnapshotContents)),
		"VolumeSnapshotClass":        kube.Whole(withoutNamespace(snapshots.VolumeSnapshotClasses)),
		"VolumeGroupSnapshot":        kube.WithStatus(groups.VolumeGroupSnapshots),
		"VolumeGroupSnapshotContent": kube.WithStatus(withoutNamespace(groups.VolumeGroupSnapshotContents)),
		"VolumeGroupSnapshotClass":   kube.Whole(withoutNamespace(groups.VolumeGroupSnapshotClasses)),
	}
	options := kube.Options{Kinds: snapshotKinds(t), Resources: map[schema.GroupVersionKind]kube.Resource{}}
	for _, kind := range snapshot.Kinds() {
		options.Resources[kind.GroupVersionKind] = resources[kind.GroupVersionKind.Kind]
	}
	s, err := kube.New(clients, options)
	require.NoError(t, err)
	return s
}

// withoutNamespace makes of the client of a kind without namespaces one that kube takes.
func withoutNamespace[C any](client func() C) func(string) C {
	return func(string) C { return client() }
}
