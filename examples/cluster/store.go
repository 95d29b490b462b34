package main

import (
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/volumekit/volumekit/bridge/etcd"
	"github.com/volumekit/volumekit/controller/snapshot"
	"github.com/volumekit/volumekit/store"
)

// openStore connects to etcd, and waits until it answers. Call close after the last use of the store.
func openStore(ctx context.Context, endpoints []string) (s *etcd.Store, closeStore func() error, err error) {
	client, err := clientv3.New(clientv3.Config{
		Endpoints: endpoints, Logger: zap.NewNop(),
		// The client must notice a dead member soon.
		DialTimeout: 2 * time.Second, DialKeepAliveTime: 2 * time.Second, DialKeepAliveTimeout: time.Second,
	})
	if err != nil {
		return nil, nil, err
	}
	kinds, err := store.NewKindTable(snapshot.Kinds()...)
	if err == nil {
		s, err = etcd.New(client, etcd.Options{Prefix: "/cluster", Kinds: kinds})
	}
	if err == nil {
		err = persist(ctx, func() error {
			_, err := client.Get(ctx, "is there an answer")
			return err
		})
	}
	if err != nil {
		return nil, nil, errors.Join(err, client.Close())
	}
	return s, client.Close, nil
}
