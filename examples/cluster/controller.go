package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/bridge/etcd"
	"github.com/volumekit/volumekit/controller/attachdetach"
	"github.com/volumekit/volumekit/controller/capacity"
	"github.com/volumekit/volumekit/controller/expand"
	"github.com/volumekit/volumekit/controller/leader"
	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/controller/snapshot"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// leaseTime is how long after its last sign of life a controller is replaced, and a node counts as not ready.
const leaseTime = 2 * time.Second

// leads is the line by which a controller says that it works from now on.
const leads = "leads"

// controller is a process that has the controllers when it leads.
type controller struct {
	options options
	store   *etcd.Store
	out     *output
	page    clusterPage
}

// run works when it is this process's turn, until ctx ends.
func (c *controller) run(ctx context.Context) error {
	return runWhileLeading(ctx, c.store, leaseOf("controller", c.options.name), c.out, func(ctx context.Context, fenced store.Store) error {
		c.out.say(leads)
		return c.lead(ctx, fenced)
	})
}

// lead runs the controllers until ctx ends. They write to the store of a leader, which refuses writes of one that is not any
// more.
func (c *controller) lead(ctx context.Context, fenced store.Store) error {
	disks := newDisks(c.options.shared, types.NodeName(c.options.name), c.store, nil)
	return runAll(ctx, newHealth(fenced, store.LessorOf(c.store), c.out).run, func(ctx context.Context) error {
		return withPlugin(ctx, c.options, disks, controllerService(c.options), func(ctx context.Context, plugin volume.VolumePlugin) error {
			return c.controlVolumes(ctx, plugin, fenced)
		})
	})
}

// controlVolumes runs the controllers of volumes until ctx ends.
func (c *controller) controlVolumes(ctx context.Context, disks volume.VolumePlugin, s store.Store) error {
	// The controllers call plugins, and so they are on a node, though it is one that has no pods.
	host, err := volume.NewHost(volume.HostOptions{
		RootDir: filepath.Join(c.options.dir, "root"), NodeName: types.NodeName(c.options.name),
	})
	if err != nil {
		return err
	}
	plugins := volume.NewVolumePluginMgr(host)
	if err := plugins.InitPlugins(ctx, disks); err != nil {
		return err
	}
	events := operationexecutor.NewEventPrinter(c.out)
	logger := slog.New(slog.NewTextHandler(c.out, &slog.HandlerOptions{Level: slog.LevelWarn}))
	snapshots := snapshot.New(plugins, s, snapshot.Options{
		Events: events, Logger: logger, InitialBackoff: quickly().Initial, MaxBackoff: quickly().Max,
	})
	claims := persistentvolume.New(plugins, s, persistentvolume.Options{
		Snapshots: snapshots, Events: events, Logger: logger, InitialBackoff: quickly().Initial, MaxBackoff: quickly().Max,
	})
	sizes := expand.New(plugins, s, expand.Options{Events: events, Logger: logger, Backoff: quickly()})
	attachments := attachdetach.New(plugins, s, attachdetach.Options{
		Recorder: events, Logger: logger, Backoff: quickly(),
		MaxWaitForUnmount: -1, // Nothing is taken from a node for its silence alone.
	})
	room, err := capacity.New(plugins, s, capacity.Options{
		Namespace: "cluster", Segments: map[string][]map[string]string{loopblock.Name: {{segmentLabel: diskSegment}}},
		Events: events, Logger: logger, InitialBackoff: quickly().Initial, MaxBackoff: quickly().Max,
	})
	if err != nil {
		return err
	}
	c.page.show(attachments, claims)
	defer c.page.show(nil, nil)
	return runAll(ctx, claims.Run, sizes.Run, attachments.Run, room.Run, snapshots.Run)
}

// leaseOf is a lease that one process of a kind has at a time.
func leaseOf(name, holder string) leader.Options {
	return leader.Options{Name: types.NamespacedName{Namespace: "cluster", Name: name}, Holder: holder, TTL: leaseTime}
}

// runWhileLeading waits until this process leads, works, and waits again, until ctx ends. The work writes to a store that refuses writes
// of a process that does not lead any more.
func runWhileLeading(
	ctx context.Context, s *etcd.Store, options leader.Options, out *output, work func(context.Context, store.Store) error,
) error {
	for ctx.Err() == nil {
		if err := leader.Run(ctx, s, options, work); err != nil && ctx.Err() == nil {
			out.say("does not work any more: %v", err)
			pause(ctx, quickly().Initial)
		}
	}
	return nil
}

// runAll runs parts until ctx ends or one of them fails, which ends the others.
func runAll(ctx context.Context, parts ...func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(parts))
	var running sync.WaitGroup
	for i, part := range parts {
		running.Go(func() {
			errs[i] = part(ctx)
			cancel()
		})
	}
	running.Wait()
	return errors.Join(errs...)
}

// nodeLease is the lease by which the agent of a node shows that it is alive.
func nodeLease(node types.NodeName, holder string) store.LeaseRequest {
	return store.LeaseRequest{Name: nodeLeaseName(node), Holder: holder, TTL: leaseTime}
}

func nodeLeaseName(node types.NodeName) types.NamespacedName {
	return types.NamespacedName{Namespace: "nodes", Name: string(node)}
}

// health says in the nodes' status which of them are not alive. That a node is alive again it says itself.
type health struct {
	store  store.Store
	leases store.Lessor
	out    *output
	nodes  *store.Mirror[*v1.Node]

	mu       sync.Mutex
	watching map[types.UID]bool
	ended    sync.WaitGroup
}

func newHealth(s store.Store, leases store.Lessor, out *output) *health {
	return &health{
		store: s, leases: leases, out: out, watching: make(map[types.UID]bool),
		nodes: store.NewMirror[*v1.Node](s, store.MirrorOptions{InitialBackoff: quickly().Initial, MaxBackoff: quickly().Max}),
	}
}

// run watches all nodes until ctx ends.
func (h *health) run(ctx context.Context) error {
	h.nodes.Follow(ctx, func(node *v1.Node) {
		if isReady(node) {
			h.watch(ctx, node)
		}
	})
	h.ended.Wait()
	return nil
}

// watch begins to watch a node that is ready. To watch a node is to wait for its lease, which the node keeps while it
// lives. Only the wait for the lease measures time.
func (h *health) watch(ctx context.Context, node *v1.Node) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.watching[node.UID] {
		return
	}
	h.watching[node.UID] = true
	h.ended.Go(func() {
		lease := nodeLease(types.NodeName(node.Name), "controller")
		err := store.HoldLease(ctx, h.leases, lease, func(ctx context.Context, _ store.Lease) error {
			h.out.say("%s is silent", node.Name)
			return setReady(ctx, h.store, node.Name, v1.ConditionUnknown)
		})
		h.mu.Lock()
		delete(h.watching, node.UID)
		h.mu.Unlock()
		if err != nil && ctx.Err() == nil {
			h.out.say("%s: %v", node.Name, err)
		}
		// It may have become ready meanwhile.
		if now, there := h.nodes.Get(store.NameOf(node)); there && isReady(now) && ctx.Err() == nil {
			h.watch(ctx, now)
		}
	})
}

func isReady(node *v1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == v1.NodeReady {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}

// setReady writes whether a node is ready into its status.
func setReady(ctx context.Context, s store.Store, name string, ready v1.ConditionStatus) error {
	err := persist(ctx, func() error {
		node, err := store.Get[*v1.Node](ctx, s, "", name)
		if err != nil {
			return err
		}
		node.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: ready}}
		_, err = store.Update(ctx, s, node)
		return err
	})
	if err != nil {
		return fmt.Errorf("the status of node %q: %w", name, err)
	}
	return nil
}
