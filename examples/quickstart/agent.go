package main

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/bridge/inspect"
	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/examples/internal/manifest"
	"github.com/volumekit/volumekit/examples/internal/sandbox"
	"github.com/volumekit/volumekit/examples/internal/show"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/plugins/emptydir"
	"github.com/volumekit/volumekit/plugins/hostpath"
	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

// nodeName is the name of the only node.
const nodeName types.NodeName = "quickstart"

// The directories under the root. runtimeDir and stateDir have the manager's records; a real agent has runtimeDir on a tmpfs such as
// /run. containersDir has the files that containers see.
const (
	runtimeDir    = "run"
	stateDir      = "state"
	containersDir = "containers"
)

// agent is a node agent and, since there is only one node, its cluster: a store of objects, the controller that gives
// claims their volumes, and the volume manager that mounts the volumes of pods.
type agent struct {
	root     sandbox.Root
	out      *show.Output
	progress *show.Progress
	mounter  *mount.Mounter
	plugins  *volume.VolumePluginMgr
	store    store.Store
	claims   *persistentvolume.Controller
	manager  *volumemanager.Manager
	history  *inspect.History

	pods     []*v1.Pod // as the store has them
	complete sync.Once // the pods were added for the first time
	ended    context.CancelFunc
	running  sync.WaitGroup
	errs     [2]error // how the controller and the manager ended
}

// newAgent puts an agent together. It starts nothing and mounts nothing.
func newAgent(ctx context.Context, root sandbox.Root, out *show.Output) (*agent, error) {
	host, err := volume.NewHost(volume.HostOptions{RootDir: root.Path, NodeName: nodeName})
	if err != nil {
		return nil, err
	}
	mounter := mount.New(mount.Options{})
	plugins := volume.NewVolumePluginMgr(host)
	err = plugins.InitPlugins(ctx,
		hostpath.New(hostpath.Options{}),
		emptydir.New(emptydir.Options{Mounter: mounter}),
		loopblock.New(loopblock.Options{Mounter: mounter}),
	)
	if err != nil {
		return nil, err
	}
	a := &agent{
		root: root, out: out, mounter: mounter, plugins: plugins,
		store:    store.NewMemory(store.MemoryOptions{}),
		progress: show.NewProgress(out),
		history:  inspect.NewHistory(inspect.HistoryOptions{}),
	}
	a.manager, err = volumemanager.New(plugins, volumemanager.Options{
		Store:      a.store,
		Mounter:    mounter, // the manager compares what plugins report with the kernel's mount table
		DeviceUse:  loop.DeviceUse{},
		Observer:   operationexecutor.Observers{a.progress, a.history},
		RuntimeDir: root.Dir(runtimeDir),
		StateDir:   root.Dir(stateDir),
	})
	if err != nil {
		return nil, err
	}
	a.progress.Status = a.manager.Status
	// The controller does not delete a volume that the manager has mounted, even if the pod's object is gone already.
	a.claims = persistentvolume.New(plugins, a.store, persistentvolume.Options{
		NodeName: nodeName, Mounts: a.manager, Events: a.progress,
	})
	return a, nil
}

// start runs the controller and the manager until stop is called.
func (a *agent) start(ctx context.Context) {
	ctx, a.ended = context.WithCancel(ctx)
	a.running.Go(func() { a.errs[0] = a.claims.Run(ctx) })
	a.running.Go(func() { a.errs[1] = a.manager.Run(ctx) })
}

// stop ends both and waits for them. Then it removes the mark "known" of each record directory, so that nothing is left of the run. It
// unmounts no volume.
func (a *agent) stop(ctx context.Context) error {
	a.ended()
	a.running.Wait()
	if err := show.Join(a.errs[:]...); err != nil {
		return err
	}
	for _, dir := range []string{runtimeDir, stateDir} {
		if err := a.mounter.RemoveTarget(ctx, filepath.Join(a.root.Dir(dir), "known")); err != nil {
			return err
		}
	}
	return nil
}

// create puts the objects of m into the store. Before start, the controller finds them all there; later, it may see a
// claim before its class.
func (a *agent) create(ctx context.Context, m *manifest.Set) error {
	created, err := store.Load(ctx, a.store, m.Objects())
	for _, object := range created {
		if pod, ok := object.(*v1.Pod); ok {
			a.pods = append(a.pods, pod)
		}
	}
	return err
}

// setUp adds the pods to the manager and waits until their volumes are mounted, or timeout has passed.
func (a *agent) setUp(ctx context.Context, timeout time.Duration) ([]show.Row, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	begun := time.Now()
	for _, pod := range a.pods {
		if err := a.manager.AddPod(ctx, pod); err != nil {
			return nil, fmt.Errorf("add pod %q: %w", pod.Namespace+"/"+pod.Name, err)
		}
	}
	a.complete.Do(a.manager.PodsComplete)
	var errs []error
	for _, pod := range a.pods {
		errs = append(errs, a.manager.WaitForAttachAndMount(ctx, pod))
	}
	if err := show.Join(errs...); err != nil {
		return nil, err // the error says why each volume or claim is not ready
	}
	return a.describe(ctx, begun), nil
}

// tearDown removes the pods from the manager, and waits until their volumes are gone, or timeout has passed. The removal promises that
// no process of the pods is alive.
func (a *agent) tearDown(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var errs []error
	for _, pod := range a.pods {
		errs = append(errs, a.manager.RemovePod(pod.UID))
	}
	for _, pod := range a.pods {
		errs = append(errs, a.manager.WaitForUnmount(ctx, pod))
	}
	errs = append(errs, a.manager.WaitForNodeEmpty(ctx)) // what pods share goes after the last of them
	if err := show.Join(errs...); err != nil {
		return &show.StuckError{Err: err}
	}
	return nil
}
