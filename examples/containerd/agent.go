package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go/features"
	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/plugins/emptydir"
	"github.com/volumekit/volumekit/plugins/files"
	"github.com/volumekit/volumekit/plugins/hostpath"
	"github.com/volumekit/volumekit/plugins/local"
	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

// agent runs the pods of one node and, since it is the only one, the controller that gives claims their volumes.
type agent struct {
	options options
	log     *slog.Logger
	objects *store.Disk
	claims  *persistentvolume.Controller
	manager *volumemanager.Manager
	runtime *containerRuntime

	ended   chan struct{}                    // has a token after a pod is gone
	tended  sync.WaitGroup                   // the goroutines of the pods
	mu      sync.Mutex                       // guards pods
	pods    map[types.UID]context.CancelFunc // ends a pod, by its UID
	counted bool                             // the manager has got every pod that may have been on this node before
}

// newAgent returns an agent. It mounts nothing and starts nothing.
func newAgent(ctx context.Context, o options, log *slog.Logger) (*agent, error) {
	objects, err := openObjects(ctx, o, log)
	if err != nil {
		return nil, err
	}
	a := &agent{options: o, log: log, objects: objects, ended: make(chan struct{}, 1), pods: map[types.UID]context.CancelFunc{}}
	if err := a.assemble(ctx); err != nil {
		return nil, errors.Join(err, a.close())
	}
	return a, nil
}

// openObjects opens the store. It waits while an agent that was just killed still has the lock.
func openObjects(ctx context.Context, o options, log *slog.Logger) (*store.Disk, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		objects, err := store.OpenDisk(filepath.Join(o.root, "objects"), store.DiskOptions{Logger: log})
		if !errors.Is(err, store.ErrLocked) {
			return objects, err
		}
		select {
		case <-time.After(o.retry):
		case <-ctx.Done():
			return nil, err
		}
	}
}

func (a *agent) close() error {
	var err error
	if a.runtime != nil {
		err = a.runtime.client.Close()
	}
	return errors.Join(err, a.objects.Close())
}

func (a *agent) assemble(ctx context.Context) error {
	var err error
	mounter := mount.New(mount.Options{})
	if a.runtime, err = newRuntime(a.options, mounter); err != nil {
		return err
	}
	runc := featuresOfRunc(ctx)
	a.runtime.mapsOwners = mapsOwners(runc)
	events := operationexecutor.NewEventPrinter(os.Stderr)
	plugins, err := a.newPlugins(ctx, mounter, events)
	if err != nil {
		return err
	}
	labels, err := volumemanager.ReadSELinuxLabels("/")
	if err != nil && !errors.Is(err, volumemanager.ErrNoSELinux) {
		return err
	}
	o := volumemanager.Options{
		Store: a.objects, Mounter: mounter, DeviceUse: loop.DeviceUse{}, Loops: loop.New(loop.Options{}), Recorder: events, Logger: a.log,
		RuntimeDir: filepath.Join(a.options.run, "volumes"), StateDir: filepath.Join(a.options.root, "attachments"),
		RecursiveReadOnly: slices.Contains(runc.MountOptions, "rro"), Backoff: operationexecutor.Backoff{Initial: a.options.retry},
	}
	o.UserNamespaces = userNamespaces{a.runtime.firstUser}
	if err == nil {
		o.SELinux = labels
	}
	if a.manager, err = volumemanager.New(plugins, o); err != nil {
		return err
	}
	a.claims = persistentvolume.New(plugins, a.objects, persistentvolume.Options{
		NodeName: types.NodeName(a.options.node), Mounts: a.manager, Events: events, Logger: a.log, InitialBackoff: a.options.retry,
	})
	return nil
}

// newPlugins returns the plugins of this agent: add your own here.
func (a *agent) newPlugins(ctx context.Context, mounter *mount.Mounter, events volume.EventRecorder) (*volume.VolumePluginMgr, error) {
	host, err := volume.NewHost(volume.HostOptions{RootDir: filepath.Join(a.options.root, "volumes"), NodeName: types.NodeName(a.options.node)})
	if err != nil {
		return nil, err
	}
	objects := store.Getter{Store: a.objects}
	protected := []string{a.options.root, a.options.run}
	plugins := volume.NewVolumePluginMgr(host)
	return plugins, plugins.InitPlugins(ctx,
		emptydir.New(emptydir.Options{Mounter: mounter}),
		hostpath.New(hostpath.Options{Mounter: mounter, Protected: protected}),
		local.New(local.Options{Mounter: mounter, Protected: protected, Events: events, Logger: a.log}),
		loopblock.New(loopblock.Options{Mounter: mounter, Events: events, Logger: a.log}),
		files.NewConfigMap(objects, files.Options{Mounter: mounter}),
		files.NewSecret(objects, files.Options{Mounter: mounter}),
		files.NewDownwardAPI(nil, files.Options{Mounter: mounter}),
		files.NewProjected(files.Getters{ConfigMaps: objects, Secrets: objects}, files.Options{Mounter: mounter}),
	)
}

// featuresOfRunc returns the features that runc reports. They are empty for a runc that cannot report them.
func featuresOfRunc(ctx context.Context) features.Features {
	var found features.Features
	if text, err := exec.CommandContext(ctx, "runc", "features").Output(); err == nil {
		_ = json.Unmarshal(text, &found)
	}
	return found
}

// mapsOwners reports whether runc makes id-mapped mounts. An older one ignores the mappings of a mount.
func mapsOwners(runc features.Features) bool {
	if runc.Linux == nil || runc.Linux.MountExtensions == nil {
		return false
	}
	idMap := runc.Linux.MountExtensions.IDMap
	return idMap != nil && idMap.Enabled != nil && *idMap.Enabled
}

// serve runs the agent until ctx ends or a part of it fails. Mounts stay, and containers continue to run.
func (a *agent) serve(ctx context.Context, changed <-chan os.Signal) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.claims.Run(ctx) })
	group.Go(func() error { return a.runManager(ctx) })
	group.Go(func() error { a.followManifests(ctx, changed); return nil })
	return group.Wait()
}

// runManager runs the manager until ctx ends, and then stops it. The next agent completes operations that take longer than ten seconds.
func (a *agent) runManager(ctx context.Context) error {
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stopped := context.AfterFunc(ctx, func() {
		bounded, cancelStop := context.WithTimeout(running, 10*time.Second)
		defer cancelStop()
		if err := a.manager.Stop(bounded); err != nil {
			a.log.Warn("the next agent finishes what is being torn down", "error", err)
			cancel()
		}
	})
	defer stopped()
	return a.manager.Run(running)
}

// followManifests applies the manifests at the start and at each change, until ctx ends.
func (a *agent) followManifests(ctx context.Context, changed <-chan os.Signal) {
	defer a.tended.Wait()
	for ctx.Err() == nil {
		var again <-chan time.Time
		if err := a.sync(ctx); err != nil {
			a.log.Error("not all is as the manifests say", "error", err)
			again = time.After(a.options.retry)
		}
		select {
		case <-changed:
		case <-a.ended:
		case <-again:
		case <-ctx.Done():
		}
	}
}

// sync starts the new pods of the manifests, and ends the pods that are no longer in them.
func (a *agent) sync(ctx context.Context) error {
	wanted, err := readManifests(a.options.manifests)
	if err != nil {
		return fmt.Errorf("the manifests cannot be read, and nothing changes: %w", err)
	}
	applied, applyErr := store.Apply(ctx, a.objects, wanted)
	isWanted := make(map[types.UID]bool)
	for _, object := range applied {
		isWanted[object.Object.GetUID()] = true
	}
	if applyErr != nil && len(applied) < len(wanted) && !a.counted {
		return applyErr // A running pod whose manifest is refused now must not end because of that.
	}
	pods, _, err := store.ListOf[*v1.Pod](ctx, a.objects, metav1.NamespaceAll)
	if err != nil {
		return err
	}
	errs := []error{applyErr}
	for _, pod := range pods {
		errs = append(errs, a.begin(ctx, pod))
	}
	if !a.counted {
		if err := a.runtime.removeStrangers(ctx, pods); err != nil {
			return errors.Join(append(errs, err)...)
		}
		// All containers on this node belong to pods that the manager knows now. Before this call it unmounts nothing of earlier agents.
		a.manager.PodsComplete()
		a.counted = true
		a.log.Info("all pods are known", "pods", len(pods))
	}
	if applyErr == nil {
		errs = append(errs, a.endUnwanted(ctx, pods, isWanted))
	}
	return errors.Join(errs...)
}

// begin adds a pod to the manager, and starts its goroutine unless it runs already.
func (a *agent) begin(ctx context.Context, pod *v1.Pod) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pods[pod.UID] != nil {
		return nil
	}
	if err := a.manager.AddPod(ctx, pod); err != nil {
		return err
	}
	live, end := context.WithCancel(ctx)
	a.pods[pod.UID] = end
	a.tended.Go(func() { a.tend(ctx, live, pod) })
	return nil
}

// endUnwanted ends the pods that no manifest has, and deletes claims, config maps and secrets that no manifest has. The controller keeps
// a claim until its last pod is gone.
func (a *agent) endUnwanted(ctx context.Context, pods []*v1.Pod, isWanted map[types.UID]bool) error {
	a.mu.Lock()
	for _, pod := range pods {
		if end := a.pods[pod.UID]; end != nil && !isWanted[pod.UID] {
			end()
		}
	}
	a.mu.Unlock()
	return errors.Join(deleteUnwanted[*v1.PersistentVolumeClaim](ctx, a.objects, isWanted),
		deleteUnwanted[*v1.ConfigMap](ctx, a.objects, isWanted), deleteUnwanted[*v1.Secret](ctx, a.objects, isWanted))
}

func deleteUnwanted[T store.Object](ctx context.Context, s store.Store, isWanted map[types.UID]bool) error {
	objects, _, err := store.ListOf[T](ctx, s, metav1.NamespaceAll)
	for _, object := range objects {
		ofAPod := len(object.GetOwnerReferences()) > 0
		if !isWanted[object.GetUID()] && !ofAPod && object.GetDeletionTimestamp() == nil {
			err = errors.Join(err, store.Delete(ctx, s, object))
		}
	}
	return err
}

// readManifests returns the objects in the files of dir whose names end in .yaml. A fault in one file is an error, because the wanted
// objects are then unknown.
func readManifests(dir string) ([]runtime.Object, error) {
	entries, err := os.ReadDir(dir) // The path is no pattern: a bracket in it would match no file, and every pod would end.
	if err != nil {
		return nil, err
	}
	var objects []runtime.Object
	for _, entry := range entries {
		if filepath.Ext(entry.Name()) != ".yaml" {
			continue
		}
		name := filepath.Join(dir, entry.Name())
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		of, err := store.Decode(bytes.NewReader(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		objects = slices.Concat(objects, of)
	}
	return objects, nil
}
