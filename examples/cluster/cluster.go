package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/volumekit/volumekit/store"
)

// The number of processes of each role.
const (
	memberCount     = 3
	schedulerCount  = 2
	controllerCount = 2
	nodeCount       = 3
)

// farNode is one more node, which cannot reach the disks.
const farNode = "node-far"

// cluster is a running cluster: its processes and what connects them.
type cluster struct {
	dir        string  // of its own; everything lies in it
	options    options // of the demo
	transcript *transcript
	cluster    string            // all members of etcd, for its members
	clients    map[string]string // by member, its address for clients
	processes  map[string]*process
	store      store.Store
	closeStore func() error
}

// newCluster starts a cluster in a directory and returns when all its nodes are ready. What processes print is shown on to.
func newCluster(ctx context.Context, dir string, o options, to io.Writer) (*cluster, error) {
	c := &cluster{dir: dir, options: o, transcript: newTranscript(to), clients: make(map[string]string), processes: make(map[string]*process)}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(err, c.killAll())
	}
	return c, nil
}

func (c *cluster) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	if err := c.checkPages(ctx); err != nil {
		return err
	}
	var cluster []string
	for _, name := range names("member", memberCount) {
		addresses, err := freeAddresses(2)
		if err != nil {
			return err
		}
		cluster = append(cluster, name+"="+addresses[0])
		c.clients[name] = addresses[1]
	}
	c.cluster = strings.Join(cluster, ",")
	for _, name := range c.processNames() {
		if err := c.run(name); err != nil {
			return err
		}
	}
	var err error
	if c.store, c.closeStore, err = openStore(ctx, c.endpoints()); err != nil {
		return err
	}
	for _, name := range append(names("node", nodeCount), farNode) {
		if _, err := c.transcript.await(ctx, 0, "agent of "+name+" is ready"); err != nil {
			return err
		}
	}
	return nil
}

// processNames returns the names of all processes, in the order in which they start.
func (c *cluster) processNames() []string {
	return slices.Concat(names("member", memberCount), names("scheduler", schedulerCount), c.namesWithPages())
}

// namesWithPages returns the names of the processes that have a page with -http.
func (c *cluster) namesWithPages() []string {
	return append(append(names("controller", controllerCount), names("node", nodeCount)...), farNode)
}

// names returns role-1, role-2 and so on.
func names(role string, count int) []string {
	var all []string
	for i := range count {
		all = append(all, fmt.Sprintf("%s-%d", role, i+1))
	}
	return all
}

// run starts a process, also one that ran before.
func (c *cluster) run(name string) error {
	args, err := c.arguments(name)
	if err != nil {
		return err
	}
	p, err := startProcess(name, args, c.transcript.add)
	if err == nil {
		c.processes[name] = p
	}
	return err
}

// arguments are those of a process.
func (c *cluster) arguments(name string) ([]string, error) {
	role, _, _ := strings.Cut(name, "-")
	args := []string{role, "-name", name, "-dir", filepath.Join(c.dir, name)}
	if role == "member" {
		return append(args, "-cluster", c.cluster, "-client", c.clients[name]), nil
	}
	args = append(args, "-etcd", strings.Join(c.endpoints(), ","))
	if role == "scheduler" {
		return args, nil
	}
	args = append(args, "-shared", filepath.Join(c.dir, "shared"))
	if name == farNode {
		args = append(args, "-segment", "none")
	}
	if c.options.csi {
		args = append(args, "-csi")
	}
	if c.options.http == "" {
		return args, nil
	}
	address, err := c.pageOf(name)
	return append(args, "-http", address), err
}

// pageOf is the address of the page of a controller or a node.
func (c *cluster) pageOf(name string) (string, error) {
	return pageAddress(c.options.http, slices.Index(c.namesWithPages(), name))
}

// checkPages refuses addresses at which pages cannot be. A process would say so, and the demo would wait for it.
func (c *cluster) checkPages(ctx context.Context) error {
	if c.options.http == "" {
		return nil
	}
	for _, name := range c.namesWithPages() {
		address, err := c.pageOf(name)
		if err != nil {
			return err
		}
		listener, err := listenForPage(ctx, address)
		if err != nil {
			return err
		}
		if err := listener.Close(); err != nil {
			return err
		}
	}
	return nil
}

func (c *cluster) endpoints() []string {
	var all []string
	for _, name := range names("member", memberCount) {
		all = append(all, c.clients[name])
	}
	return all
}

// kill ends a process as a crash does; a node with its agent and all its mounts.
func (c *cluster) kill(name string) error { return c.processes[name].kill() }

// killAgent kills the agent of a node, whose mounts stay.
func (c *cluster) killAgent(node string) error {
	line, err := c.transcript.last(node + ": " + agentRuns)
	if err != nil {
		return err
	}
	var pid int
	if _, err := fmt.Sscanf(line, node+": "+agentRuns+"%d", &pid); err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}

// stopAll asks every process to end, nodes first, and waits until they have.
func (c *cluster) stopAll(ctx context.Context) error {
	var errs []error
	for _, name := range slices.Backward(c.processNames()) {
		if p := c.processes[name]; p != nil {
			errs = append(errs, p.stop(ctx))
		}
	}
	return errors.Join(errs...)
}

// killAll kills what there is.
func (c *cluster) killAll() error {
	var errs []error
	for _, p := range c.processes {
		errs = append(errs, p.kill())
	}
	if c.closeStore != nil {
		errs = append(errs, c.closeStore())
	}
	return errors.Join(errs...)
}

// freeAddresses returns addresses of this machine at which no program listens. Connections of other programs come from
// 127.0.0.1 and take its ports at any time, so the addresses have another IP.
func freeAddresses(count int) ([]string, error) {
	process := os.Getpid()
	ip := net.IPv4(127, 1, byte(process>>8), byte(process)).String()
	var all []string
	for range count {
		l, err := net.Listen("tcp", net.JoinHostPort(ip, "0")) //nolint:noctx // It returns at once.
		if err != nil {
			return nil, err
		}
		defer func() { _ = l.Close() }()
		all = append(all, "http://"+l.Addr().String())
	}
	return all, nil
}

// stepTimeout bounds each step and wait of the demo. Most take a moment.
const stepTimeout = time.Minute
