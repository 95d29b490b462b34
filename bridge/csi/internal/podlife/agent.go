package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/bridge/csi/csidriver"
	"github.com/volumekit/volumekit/controller/expand"
	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

// Stage is a stage in the life of the pods.
type Stage string

// The stages, in their order.
const (
	// First: a pod has two volumes, a filesystem and a device, and has written to both.
	First Stage = "first"
	// Second: the first pod is gone, and another pod reads its data.
	Second Stage = "second"
	// Grown: the claims were expanded, and so was their storage. The filesystem is expanded at the next staging at the
	// latest.
	Grown Stage = "grown"
	// Saved: a snapshot and a group were made of the filesystem while the pod uses it, and a volume was restored from
	// the snapshot. This stage does nothing for drivers without snapshots.
	Saved Stage = "saved"
	// None: there is no pod, and no volume is attached.
	None Stage = "none"
	// Third: another pod reads all volumes, the restored one too.
	Third Stage = "third"
	// Deleted: pods and claims are gone.
	Deleted Stage = "deleted"
)

// pod is the name of a stage's pod; empty for none.
func (s Stage) pod() string {
	switch s {
	case First, Third:
		return string(s)
	case Second, Grown, Saved:
		return string(Second)
	case None, Deleted:
	}
	return ""
}

// retry is the short back-off of the agent.
var retry = operationexecutor.Backoff{Initial: 5 * time.Millisecond, Max: 100 * time.Millisecond}

// agent runs the manager of the node and the cluster's controllers.
type agent struct {
	driver  *csidriver.Driver
	plugin  *csidriver.Plugin
	store   *store.Disk
	manager *volumemanager.Manager
	claims  *persistentvolume.Controller
	sizes   *expand.Controller
}

// liveTo brings the node to a stage. Mounted volumes stay mounted.
func liveTo(ctx context.Context, dir string, stage Stage, driver string) error {
	a, err := newAgent(ctx, dir, driver)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var parts sync.WaitGroup
	for _, part := range []func(context.Context) error{a.claims.Run, a.sizes.Run, a.manager.Run} {
		parts.Go(func() { cancel(part(ctx)) })
	}
	err = a.reach(ctx, stage)
	cancel(nil)
	parts.Wait()
	return errors.Join(err, a.store.Close(), a.driver.Close())
}

func newAgent(ctx context.Context, dir, name string) (*agent, error) {
	driver, err := csidriver.New(csidriver.Options{Socket: socketOf(dir), Driver: name})
	if err != nil {
		return nil, err
	}
	host, err := volume.NewHost(volume.HostOptions{RootDir: filepath.Join(dir, "root"), NodeName: types.NodeName(nodeName)})
	if err != nil {
		return nil, err
	}
	plugins := volume.NewVolumePluginMgr(host)
	a := &agent{driver: driver, plugin: driver.Plugin()}
	if err := persist(ctx, func() error { return plugins.InitPlugins(ctx, a.plugin) }); err != nil {
		return nil, err
	}
	if a.store, err = store.OpenDisk(filepath.Join(dir, "objects"), store.DiskOptions{}); err != nil {
		return nil, err
	}
	if err := a.register(ctx); err != nil {
		return nil, err
	}
	a.manager, err = volumemanager.New(plugins, volumemanager.Options{ //nolint:contextcheck // It begins nothing: Run has the context.
		Store: a.store, RuntimeDir: filepath.Join(dir, "run"), StateDir: filepath.Join(dir, "state"),
		Mounter: mount.New(mount.Options{}), Logger: logger(), Backoff: retry, Recorder: operationexecutor.NewEventPrinter(os.Stderr),
	})
	a.claims = persistentvolume.New(plugins, a.store, persistentvolume.Options{
		NodeName: types.NodeName(nodeName), Mounts: a.manager, Events: operationexecutor.NewEventPrinter(os.Stderr), InitialBackoff: retry.Initial,
		Snapshots: restores{a.plugin},
	})
	a.sizes = expand.New(plugins, a.store, expand.Options{Logger: logger(), Backoff: retry})
	return a, err
}

// register creates the Node and CSINode objects, with the driver's report of the node.
func (a *agent) register(ctx context.Context) error {
	_, err := a.store.Create(ctx, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}})
	if err != nil && !errors.Is(err, store.ErrAlreadyExists) {
		return err
	}
	return persist(ctx, func() error { return a.driver.Register(ctx, a.store, nodeName) })
}

// persist retries do while the driver starts.
func persist(ctx context.Context, do func() error) error {
	for {
		err := do()
		if !errors.Is(err, volume.ErrTransient) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(retry.Initial):
		}
	}
}

// reach brings the node to a stage, from any stage of an earlier agent.
func (a *agent) reach(ctx context.Context, stage Stage) error {
	if stage != Deleted {
		if err := a.createObjects(ctx); err != nil {
			return err
		}
	}
	pod, err := a.podOf(ctx, stage)
	if err != nil {
		return err
	}
	if stage.pod() != "" {
		if err := a.manager.AddPod(ctx, pod); err != nil {
			return err
		}
	}
	a.manager.PodsComplete()
	if stage.pod() == "" {
		if err := a.manager.WaitForNodeEmpty(ctx); err != nil {
			return err
		}
		return a.deleteObjects(ctx, stage)
	}
	if err := a.manager.WaitForAttachAndMount(ctx, pod); err != nil {
		return err
	}
	if stage == Second {
		first, err := a.podOf(ctx, First)
		if err == nil {
			err = a.manager.WaitForUnmount(ctx, first)
		}
		if err != nil {
			return err
		}
	}
	switch stage {
	case Grown:
		err = a.grow(ctx)
	case Saved:
		err = a.save(ctx)
	default:
	}
	if err != nil {
		return err
	}
	return a.use(ctx, pod, stage)
}

// size is the first request of a claim, in bytes.
const size = 8 << 20

// claims are the claims of the pods.
var claims = map[string]v1.PersistentVolumeMode{"data": v1.PersistentVolumeFilesystem, "disk": v1.PersistentVolumeBlock}

func (a *agent) createObjects(ctx context.Context) error {
	policy, class := v1.PersistentVolumeReclaimDelete, "csi"
	yes := true
	objects := []store.Object{&storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: a.plugin.GetPluginName(), ReclaimPolicy: &policy,
		AllowVolumeExpansion: &yes,
	}}
	for name, mode := range claims {
		objects = append(objects, &v1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: v1.NamespaceDefault, Name: name},
			Spec: v1.PersistentVolumeClaimSpec{
				StorageClassName: &class, VolumeMode: &mode, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
				Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(size, resource.BinarySI)}},
			},
		})
	}
	for _, object := range objects {
		if _, err := a.store.Create(ctx, object); err != nil && !errors.Is(err, store.ErrAlreadyExists) {
			return err
		}
	}
	return nil
}

// deleteObjects deletes the claims at the last stage, and waits until the controller has deleted their volumes.
func (a *agent) deleteObjects(ctx context.Context, stage Stage) error {
	if stage != Deleted {
		return nil
	}
	if err := a.deleteSnapshot(ctx); err != nil {
		return err
	}
	for _, name := range append(slices.Sorted(maps.Keys(claims)), restored) {
		claim, err := store.Get[*v1.PersistentVolumeClaim](ctx, a.store, v1.NamespaceDefault, name)
		if err == nil {
			err = store.Delete(ctx, a.store, claim)
		}
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
	}
	if err := store.WaitForNone(ctx, a.store, func(*v1.PersistentVolumeClaim) bool { return true }); err != nil {
		return err
	}
	return store.WaitForNone(ctx, a.store, func(*v1.PersistentVolume) bool { return true })
}

// grow doubles the requests of the claims, and waits until they are fulfilled.
func (a *agent) grow(ctx context.Context) error {
	wanted := *resource.NewQuantity(2*size, resource.BinarySI)
	for name := range claims {
		claim, err := store.Get[*v1.PersistentVolumeClaim](ctx, a.store, v1.NamespaceDefault, name)
		if err != nil {
			return err
		}
		claim.Spec.Resources.Requests[v1.ResourceStorage] = wanted
		for {
			_, err = store.Update(ctx, a.store, claim)
			if !errors.Is(err, store.ErrConflict) {
				break
			}
			if claim, err = store.Get[*v1.PersistentVolumeClaim](ctx, a.store, v1.NamespaceDefault, name); err != nil {
				return err
			}
			claim.Spec.Resources.Requests[v1.ResourceStorage] = wanted
		}
		if err != nil {
			return err
		}
	}
	return store.WaitForNone(ctx, a.store, func(pv *v1.PersistentVolume) bool {
		has := pv.Spec.Capacity[v1.ResourceStorage]
		return has.Cmp(wanted) < 0
	})
}

func podOf(name string) *v1.Pod {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1.NamespaceDefault, Name: name, UID: types.UID(name)},
		Spec: v1.PodSpec{Containers: []v1.Container{{
			Name:          "c",
			VolumeMounts:  []v1.VolumeMount{{Name: "data", MountPath: "/data"}},
			VolumeDevices: []v1.VolumeDevice{{Name: "disk", DevicePath: "/dev/disk"}},
		}}},
	}
	for _, claim := range []string{"data", "disk"} {
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: claim, VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}})
	}
	return pod
}

// content is the text that the first pod writes into each volume.
const content = "what the workload has written"

// use does the work of the pod's container: the first pod writes, the others read. It checks the sizes too.
func (a *agent) use(ctx context.Context, pod *v1.Pod, stage Stage) error {
	given, err := a.manager.ContainerMounts(ctx, pod, "c")
	if err != nil {
		return err
	}
	paths := []string{given.Devices[0].Source}
	for _, m := range given.Mounts {
		paths = append(paths, filepath.Join(m.Source, "file"))
	}
	for _, path := range paths {
		do := read
		if stage == First {
			do = write
		}
		if err := do(path); err != nil {
			return err
		}
	}
	if stage == First || stage == Second {
		return nil
	}
	claim, err := store.Get[*v1.PersistentVolumeClaim](ctx, a.store, v1.NamespaceDefault, "disk")
	if err != nil {
		return err
	}
	file, err := os.Open(given.Devices[0].Source)
	if err != nil {
		return err
	}
	wanted := claim.Spec.Resources.Requests[v1.ResourceStorage]
	bytes, err := file.Seek(0, io.SeekEnd)
	if err == nil && bytes != wanted.Value() {
		err = fmt.Errorf("the device has %d bytes and not %s", bytes, &wanted)
	}
	return errors.Join(err, file.Close())
}

func write(path string) error {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = file.WriteString(content)
	return errors.Join(err, file.Sync(), file.Close())
}

func read(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	found := make([]byte, len(content))
	_, err = io.ReadFull(file, found)
	if string(found) != content {
		err = errors.Join(err, fmt.Errorf("%q: %q is there, and %q was written", path, found, content))
	}
	return errors.Join(err, file.Close())
}
