package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/volumekit/volumekit/bridge/inspect"
	"github.com/volumekit/volumekit/examples/internal/show"
)

// headerTimeout bounds the time in which a browser must send its request.
const headerTimeout = 5 * time.Second

// serve serves a page with the phase of every volume until end is called; none if there is no address. It does not
// check who sends a request: use an address that only this machine can reach.
func (a *agent) serve(ctx context.Context, address string) (end func(), err error) {
	if address == "" {
		return func() {}, nil
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, show.BadInput(fmt.Errorf("-http %s: %w: give one that is free, such as 127.0.0.1:8080", address, err))
	}
	url := "http://" + listener.Addr().String() + "/"
	a.out.Say("where every volume stands: %s", url)
	a.out.Report("serving", "url", url)
	server := &http.Server{Handler: inspect.NewNode(a.manager, inspect.NodeOptions{History: a.history}), ReadHeaderTimeout: headerTimeout}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) }) // It returns when the server is closed.
	return func() {
		_ = server.Close() // No client waits for an answer any more.
		serving.Wait()
	}, nil
}
