package main

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"

	"go.etcd.io/etcd/server/v3/embed"
)

// memberOptions say which member of etcd a process is. Ports are those of the loopback interface.
type memberOptions struct {
	name    string
	dir     string
	cluster string // "name=http://address,...", all members
	client  string // the address for clients, "http://..."
}

// runMember runs one member of etcd until ctx ends.
func runMember(ctx context.Context, o memberOptions) error {
	config := embed.NewConfig()
	config.Name, config.Dir = o.name, filepath.Join(o.dir, o.name)
	config.LogLevel, config.LogOutputs = "panic", []string{"stderr"} // It logs that it loses its peers, which the demo kills.
	config.InitialCluster = o.cluster
	peer, err := url.Parse(addressOf(o.cluster, o.name))
	if err != nil {
		return err
	}
	client, err := url.Parse(o.client)
	if err != nil {
		return err
	}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	// The members are neighbours: one that is dead is missed soon.
	config.TickMs, config.ElectionMs = 50, 500
	member, err := embed.StartEtcd(config)
	if err != nil {
		return fmt.Errorf("member %q of etcd: %w", o.name, err)
	}
	defer member.Close()
	select {
	case <-ctx.Done():
		return nil
	case err := <-member.Err():
		return err
	}
}

// addressOf returns the address of a member for its peers.
func addressOf(cluster, name string) string {
	for one := range strings.SplitSeq(cluster, ",") {
		if found, address, _ := strings.Cut(one, "="); found == name {
			return address
		}
	}
	return ""
}
