package populator

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/safepath"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

// Filesystems mounts volumes for populators with its own volume manager, in this process. The manager's store is
// Objects, in memory. There the volume is bound to a claim that no other program sees. The manager's records outlive
// the process: the manager of the next process finds the mounts and unmounts them.
type Filesystems struct {
	// Manager mounts the volumes. It runs with its own root, and the program calls PodsComplete at its start.
	Manager *volumemanager.Manager
	// Objects is the store of Manager.
	Objects *store.Memory
	// Mounter is the mounter of Manager.
	Mounter mount.Interface
}

var _ persistentvolume.Filesystems = Filesystems{}

const volumeName = "volume"

// Fill implements [persistentvolume.Filesystems].
func (f Filesystems) Fill(ctx context.Context, pv *v1.PersistentVolume, fill func(ctx context.Context, dir string) error) error {
	if err := f.Release(ctx, pv); err != nil {
		return err
	}
	pod, err := f.bind(ctx, pv)
	if err != nil {
		return err
	}
	if err := f.Manager.AddPod(ctx, pod); err != nil {
		return err
	}
	if err := f.Manager.WaitForAttachAndMount(ctx, pod); err != nil {
		return err
	}
	volumes, err := f.Manager.ContainerMounts(ctx, pod, volumeName)
	if err != nil {
		return err
	}
	if len(volumes.Mounts) != 1 {
		return fmt.Errorf("volume %q has %d mounts: %w", pv.Name, len(volumes.Mounts), volume.ErrInvalid)
	}
	if err := f.write(ctx, volumes.Mounts[0].Source, fill); err != nil {
		return err
	}
	return f.Release(ctx, pv)
}

// write empties a directory, fills it, and syncs its filesystem. It keeps the directory open meanwhile: the kernel
// reports an earlier write error to a descriptor that was open then.
func (f Filesystems) write(ctx context.Context, dir string, fill func(ctx context.Context, dir string) error) (err error) {
	open, err := os.Open(dir) //nolint:gosec // It is the manager's.
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, open.Close()) }()
	if err := f.empty(ctx, dir); err != nil {
		return err
	}
	if err := fill(ctx, dir); err != nil {
		return err
	}
	if err := unix.Syncfs(int(open.Fd())); err != nil {
		return fmt.Errorf("sync %q: %w", dir, err)
	}
	return nil
}

func (f Filesystems) empty(ctx context.Context, dir string) (err error) {
	root, err := safepath.Open(ctx, dir, safepath.Options{Mounter: f.Mounter})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	return root.RemoveContent(ctx)
}

// Release implements [persistentvolume.Filesystems].
func (f Filesystems) Release(ctx context.Context, pv *v1.PersistentVolume) error {
	pod := podFor(pv)
	if err := f.Manager.RemovePod(pod.UID); err != nil {
		return err
	}
	if err := f.Manager.WaitForUnmount(ctx, pod); err != nil {
		return err
	}
	if err := f.Manager.WaitForVolumeUnused(ctx, pv); err != nil {
		return err
	}
	for _, obj := range []store.Object{claimFor(pv), &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: pv.Name}}} {
		key, err := store.KeyOf(obj)
		if err != nil {
			return err
		}
		if err := f.Objects.Delete(ctx, key, store.Preconditions{}); err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
	}
	return nil
}

// bind creates a volume as pv, bound to a claim, in the manager's store, and returns the pod for it.
func (f Filesystems) bind(ctx context.Context, pv *v1.PersistentVolume) (*v1.Pod, error) {
	claim, err := store.Create(ctx, f.Objects, claimFor(pv))
	if err != nil {
		return nil, err
	}
	bound := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: pv.Name, UID: pv.UID, Annotations: pv.Annotations, Labels: pv.Labels}, Spec: *pv.Spec.DeepCopy(),
	}
	bound.Spec.ClaimRef = &v1.ObjectReference{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
	bound.Status.Phase = v1.VolumeBound
	if _, err := store.Create(ctx, f.Objects, bound); err != nil {
		return nil, err
	}
	return podFor(pv), nil
}

func claimFor(pv *v1.PersistentVolume) *v1.PersistentVolumeClaim {
	return &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "populator", Name: pv.Name},
		Spec: v1.PersistentVolumeClaimSpec{
			VolumeName: pv.Name, AccessModes: pv.Spec.AccessModes, VolumeMode: pv.Spec.VolumeMode,
			Resources: v1.VolumeResourceRequirements{Requests: pv.Spec.Capacity},
		},
		Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound, AccessModes: pv.Spec.AccessModes, Capacity: pv.Spec.Capacity},
	}
}

func podFor(pv *v1.PersistentVolume) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "populator", Name: pv.Name, UID: types.UID("populator-" + string(pv.UID))},
		Spec: v1.PodSpec{
			Volumes: []v1.Volume{{Name: volumeName, VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: pv.Name},
			}}},
			Containers: []v1.Container{{Name: volumeName, VolumeMounts: []v1.VolumeMount{{Name: volumeName, MountPath: "/volume"}}}},
		},
	}
}
