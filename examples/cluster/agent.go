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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/bridge/etcd"
	"github.com/volumekit/volumekit/bridge/inspect"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/plugins/emptydir"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

// finalizerAgent keeps a pod that is being deleted until its node has nothing of it any more.
const finalizerAgent = "cluster.volumekit.io/agent"

// agent is the agent of one node.
type agent struct {
	options agentOptions
	store   store.Store
	out     *output
	plugins *volume.VolumePluginMgr
	manager *volumemanager.Manager
	history *inspect.History // what was done for each volume, for the page
	pods    *store.Mirror[*v1.Pod]

	mu      sync.Mutex
	podRuns map[types.UID]*podRun
	ended   sync.WaitGroup
}

// agentOptions say which node it is.
type agentOptions struct {
	node    types.NodeName
	segment string // of disks that it can reach
	root    string // the directory of its volumes
	run     string // a tmpfs of its own
	mounter mount.Interface
	disks   volume.VolumePlugin
	tick    time.Duration // between two lines of a workload
	http    string        // the address of its page; "" for none
}

// podRun is the run of a pod on this node. deleted is closed when the pod is to end.
type podRun struct {
	deleted chan struct{}
	once    sync.Once
}

// newAgent puts an agent together. It mounts nothing and starts nothing.
func newAgent(ctx context.Context, o agentOptions, s *etcd.Store, out *output) (*agent, error) {
	host, err := volume.NewHost(volume.HostOptions{RootDir: o.root, NodeName: o.node})
	if err != nil {
		return nil, err
	}
	plugins := volume.NewVolumePluginMgr(host)
	err = plugins.InitPlugins(ctx, o.disks, emptydir.New(emptydir.Options{Mounter: o.mounter}))
	if err != nil {
		return nil, err
	}
	logger := slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelWarn}))
	history := inspect.NewHistory(inspect.HistoryOptions{})
	manager, err := volumemanager.New(plugins, volumemanager.Options{
		Store: s, AttachedBy: volumemanager.AttachedByController,
		RuntimeDir: filepath.Join(o.run, "volumes"), StateDir: filepath.Join(o.root, "state"),
		Mounter: o.mounter, Recorder: operationexecutor.NewEventPrinter(out), Logger: logger, Backoff: quickly(),
		Observer: history,
	})
	return &agent{
		options: o, store: s, out: out, plugins: plugins, manager: manager, history: history, podRuns: make(map[types.UID]*podRun),
		pods: store.NewMirror[*v1.Pod](s, store.MirrorOptions{InitialBackoff: quickly().Initial, MaxBackoff: quickly().Max}),
	}, err
}

// quickly is the back-off of retries. It is short, because the demo is.
func quickly() operationexecutor.Backoff {
	return operationexecutor.Backoff{Initial: 100 * time.Millisecond, Max: 2 * time.Second}
}

// run works until ctx ends. What is mounted stays mounted. The lease of the node is the sign that it is alive; the agent that
// loses it ends, and another one tries again.
func (a *agent) run(ctx context.Context) error {
	return runAll(ctx, a.hold, func(ctx context.Context) error {
		return servePage(ctx, a.options.http, inspect.NewNode(a.manager, inspect.NodeOptions{History: a.history}), a.out)
	})
}

// hold works while it has the lease of the node.
func (a *agent) hold(ctx context.Context) error {
	lease := nodeLease(a.options.node, string(a.options.node))
	return store.HoldLease(ctx, store.LessorOf(a.store), lease, func(ctx context.Context, _ store.Lease) error {
		if err := a.register(ctx); err != nil {
			return err
		}
		return runAll(ctx, a.manager.Run, a.followPods)
	})
}

// register makes the node's object, if it is not there, says how many volumes the node can have, and that it is ready.
func (a *agent) register(ctx context.Context) error {
	name := string(a.options.node)
	err := persist(ctx, func() error {
		_, err := store.Create(ctx, a.store, &v1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{segmentLabel: a.options.segment},
		}})
		if errors.Is(err, store.ErrAlreadyExists) {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	err = persist(ctx, func() error { return volumemanager.ReportLimits(ctx, a.plugins, a.store, a.options.node) })
	if err != nil {
		return err
	}
	return setReady(ctx, a.store, name, v1.ConditionTrue)
}

// followPods adds the pods of this node, and those that come, until ctx ends and all of them have been left alone.
func (a *agent) followPods(ctx context.Context) error {
	var following sync.WaitGroup
	following.Go(func() { a.pods.Follow(ctx, func(pod *v1.Pod) { a.podChanged(ctx, pod) }) })
	if a.pods.WaitSynced(ctx) {
		// Every pod that may have been here before this agent started was added.
		a.manager.PodsComplete()
		a.out.say("agent of %s is ready", a.options.node)
	}
	following.Wait()
	a.ended.Wait()
	return nil
}

// podChanged starts and ends the run of a pod of this node. Before the first list was seen whole, it runs for every
// pod of that list: so all have been added when it was.
func (a *agent) podChanged(ctx context.Context, pod *v1.Pod) {
	if types.NodeName(pod.Spec.NodeName) != a.options.node {
		return
	}
	_, there := a.pods.Get(store.NameOf(pod))
	a.mu.Lock()
	defer a.mu.Unlock()
	l, known := a.podRuns[pod.UID]
	if !known && there {
		l = &podRun{deleted: make(chan struct{})}
		a.podRuns[pod.UID] = l
		a.begin(ctx, pod, l)
	}
	if l != nil && (!there || pod.DeletionTimestamp != nil) {
		l.once.Do(func() { close(l.deleted) })
	}
}

// begin adds a pod and has it live. The manager copies the pod and does its work in goroutines of its own.
func (a *agent) begin(ctx context.Context, pod *v1.Pod, l *podRun) {
	if err := a.manager.AddPod(ctx, pod); err != nil {
		a.out.say("pod %s cannot be added: %v", pod.Name, err)
		return
	}
	a.ended.Go(func() {
		if err := a.runPod(ctx, pod, l); err != nil && ctx.Err() == nil {
			a.out.say("FAILED: pod %s: %v", pod.Name, err)
		}
	})
}

// runPod sets up a pod's volumes, runs its container, and removes both at the end.
func (a *agent) runPod(ctx context.Context, pod *v1.Pod, l *podRun) error {
	running, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		select {
		case <-l.deleted:
			stop()
		case <-running.Done():
		}
	}()
	failed := a.runContainer(running, pod)
	if running.Err() == nil {
		a.out.say("FAILED: pod %s: %v", pod.Name, failed)
		<-running.Done()
	}
	if ctx.Err() != nil {
		return nil // The agent ends; its pods do not.
	}
	// No process of the pod is alive any more.
	if err := a.manager.RemovePod(pod.UID); err != nil {
		return err
	}
	if err := a.waitAndReport(ctx, pod, a.manager.WaitForUnmount); err != nil {
		return err
	}
	if err := a.release(ctx, pod); err != nil {
		return err
	}
	a.out.say("pod %s is gone", pod.Name)
	return nil
}

// runContainer waits for the pod's volumes and runs its container until ctx ends.
func (a *agent) runContainer(ctx context.Context, pod *v1.Pod) error {
	if err := a.waitAndReport(ctx, pod, a.manager.WaitForAttachAndMount); err != nil {
		return err
	}
	volumes, err := a.manager.ContainerMounts(ctx, pod, pod.Spec.Containers[0].Name)
	if err != nil {
		return err
	}
	w, err := startWorkload(volumes.Mounts[0].Source, pod.Name, a.options.node)
	if err != nil {
		return err
	}
	a.out.say("pod %s is running after line %d", pod.Name, w.last)
	return w.run(ctx, a.options.tick, func(line int) { a.out.say("pod %s wrote line %d", pod.Name, line) })
}

// waitAndReport waits for something, and says from time to time why it is not there.
func (a *agent) waitAndReport(ctx context.Context, pod *v1.Pod, wait func(context.Context, *v1.Pod) error) error {
	for {
		err := func() error {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			return wait(ctx, pod)
		}()
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return err
		}
		a.out.say("waiting: %v", err)
	}
}

// release lets a pod that is being deleted go.
func (a *agent) release(ctx context.Context, pod *v1.Pod) error {
	return persist(ctx, func() error {
		now, err := store.Get[*v1.Pod](ctx, a.store, pod.Namespace, pod.Name)
		if errors.Is(err, store.ErrNotFound) || err == nil && now.UID != pod.UID {
			return nil
		}
		if err != nil {
			return err
		}
		now.Finalizers = nil
		_, err = store.Update(ctx, a.store, now)
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		return err
	})
}

// persist does something again until it succeeds: etcd may have lost its leader, and an object may have changed. The error
// is that of the last try when ctx ends.
func persist(ctx context.Context, do func() error) error {
	for {
		err := do()
		if err == nil {
			return nil
		}
		pause(ctx, 100*time.Millisecond)
		if ctx.Err() != nil {
			return fmt.Errorf("%w, and then: %w", err, ctx.Err())
		}
	}
}
