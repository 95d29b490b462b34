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

// headerTimeout is how long a browser may take to say what it wants.
const headerTimeout = 5 * time.Second

// serve serves a page that shows where every volume stands, until end is called; none when there is no address. Nobody is asked who
// he is: the address should be one that only this machine reaches.
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
	serving.Go(func() { _ = server.Serve(listener) }) // It returns when it is closed.
	return func() {
		_ = server.Close() // Nobody waits for an answer any more.
		serving.Wait()
	}, nil
}
