package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/volumekit/volumekit/bridge/inspect"
)

// headerTimeout bounds the time in which a browser must send its request.
const headerTimeout = 5 * time.Second

// servePages serves a page of the node and one of the cluster until ctx ends. Without an address it only waits for
// that. It does not check who sends a request: use an address that only operators can reach.
func (a *agent) servePages(ctx context.Context) error {
	if a.options.http == "" {
		<-ctx.Done()
		return nil
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", a.options.http)
	if err != nil {
		return fmt.Errorf("-http %s: %w: give an address that is free, such as 127.0.0.1:8080", a.options.http, err)
	}
	a.out.say("pages: http://%s/node/ and http://%[1]s/cluster/", listener.Addr())
	node := inspect.NewNode(a.manager, inspect.NodeOptions{History: a.history})
	cluster := inspect.NewCluster(func() inspect.ClusterSources { return inspect.ClusterSources{Claims: a.claims} })
	mux := http.NewServeMux()
	mux.Handle("/node/", http.StripPrefix("/node", node))
	mux.Handle("/cluster/", http.StripPrefix("/cluster", cluster))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: headerTimeout}
	var closing sync.WaitGroup
	closing.Go(func() {
		<-ctx.Done()
		_ = server.Close() // No response is worth waiting for.
	})
	err = server.Serve(listener)
	if errors.Is(err, http.ErrServerClosed) {
		closing.Wait()
		return nil
	}
	return err
}
