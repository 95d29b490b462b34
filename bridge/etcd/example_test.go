package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/bridge/etcd"
	"github.com/volumekit/volumekit/store"
)

// A claim is written and read. An agent that has read it and writes it after another has changed it is refused.
func Example() {
	server, err := startServer()
	check(err)
	defer func() { server.Close(); check(os.RemoveAll(server.Config().Dir)) }()
	ctx := context.Background()
	client, err := clientv3.New(clientv3.Config{Endpoints: server.Server.Cluster().ClientURLs(), Logger: zap.NewNop()})
	check(err)
	defer func() { check(client.Close()) }()

	s, err := etcd.New(client, etcd.Options{Prefix: "/volumes"})
	check(err)
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data"}}
	created, err := s.Create(ctx, claim)
	check(err)
	read, err := s.Get(ctx, store.Key{Kind: store.PersistentVolumeClaims, Namespace: "shop", Name: "data"})
	check(err)
	found := read.(*v1.PersistentVolumeClaim)
	fmt.Println(found.Namespace, found.Name)

	changed := found.DeepCopy()
	changed.Labels = map[string]string{"tier": "fast"}
	_, err = s.Update(ctx, changed)
	check(err)
	_, err = s.Update(ctx, created)
	fmt.Println(errors.Is(err, store.ErrConflict))
	// Output:
	// shop data
	// true
}

// startServer starts an etcd of one member in a new directory, behind a socket, and waits until it serves.
func startServer() (*embed.Etcd, error) {
	dir, err := os.MkdirTemp("", "etcd")
	if err != nil {
		return nil, err
	}
	config := embed.NewConfig()
	config.Dir, config.ZapLoggerBuilder = dir, embed.NewZapLoggerBuilder(zap.NewNop())
	clients, peers := socketURL(dir, "c"), socketURL(dir, "p")
	config.ListenClientUrls, config.AdvertiseClientUrls = clients, clients
	config.ListenPeerUrls, config.AdvertisePeerUrls = peers, peers
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	server, err := embed.StartEtcd(config)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	<-server.Server.ReadyNotify()
	return server, nil
}

func socketURL(dir, name string) []url.URL {
	return []url.URL{{Scheme: "unix", Host: "", Path: filepath.Join(dir, name)}}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
