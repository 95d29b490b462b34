package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/volumekit/volumekit/bridge/etcd"
	"github.com/volumekit/volumekit/bridge/inspect"
)

// headerTimeout is how long a browser may take to say what it wants.
const headerTimeout = 5 * time.Second

// pageIsAt begins the line that says where the page of a process is.
const pageIsAt = "page: "

// servePage serves the page of a process until ctx ends; without an address it only waits for that. It does not check who reads it:
// the address should be one that only operators reach.
func servePage(ctx context.Context, address string, page http.Handler, out *output) error {
	if address == "" {
		<-ctx.Done()
		return nil
	}
	listener, err := listenForPage(ctx, address)
	if err != nil {
		return err
	}
	out.say("%shttp://%s/", pageIsAt, listener.Addr())
	server := &http.Server{Handler: page, ReadHeaderTimeout: headerTimeout}
	var closing sync.WaitGroup
	closing.Go(func() {
		<-ctx.Done()
		_ = server.Close() // A browser waits for nothing that matters.
	})
	err = server.Serve(listener)
	if errors.Is(err, http.ErrServerClosed) {
		closing.Wait()
		return nil
	}
	return err
}

func listenForPage(ctx context.Context, address string) (net.Listener, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("-http %s: %w: give an address that is free, such as 127.0.0.1:8080", address, err)
	}
	return listener, nil
}

// pageAddress returns the address of a process: the first one's, with its port that much higher. Port 0 stays: each process takes
// a free port.
func pageAddress(first string, above int) (string, error) {
	host, text, err := net.SplitHostPort(first)
	if err != nil {
		return "", fmt.Errorf("-http %s: %w: give an address such as 127.0.0.1:8080", first, err)
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", fmt.Errorf("-http %s: %w: give a port as a number, such as 127.0.0.1:8080", first, err)
	}
	if port != 0 {
		port += uint64(above)
	}
	return net.JoinHostPort(host, strconv.FormatUint(port, 10)), nil
}

// clusterPage is what the page of a controller shows: who leads and, while this process does, what its controllers know.
type clusterPage struct {
	mu    sync.Mutex
	shown inspect.ClusterSources
}

// sources returns what the page shows now.
func (p *clusterPage) sources() inspect.ClusterSources {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.shown
}

// show has the page show controllers; nil: this process does not lead.
func (p *clusterPage) show(attachments inspect.AttachController, claims inspect.ClaimController) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shown.Attachments, p.shown.Claims = attachments, claims
}

func (p *clusterPage) showLeases(leases []*coordinationv1.Lease) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shown.Leases = leases
}

// followLeases returns what reads who leads, as often as that may change, until ctx ends. A read that fails leaves what was shown.
func (p *clusterPage) followLeases(s *etcd.Store) func(context.Context) error {
	return func(ctx context.Context) error {
		for ctx.Err() == nil {
			if leases, err := s.Leases(ctx); err == nil {
				p.showLeases(leases)
			}
			pause(ctx, leaseTime/2)
		}
		return nil
	}
}
