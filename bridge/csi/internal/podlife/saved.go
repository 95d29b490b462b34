package main

import (
	"context"
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/bridge/csi/csidriver"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// restored is the claim of the restored volume. Its annotation annSnapshot is the handle of the snapshot, which is
// deleted before the claim.
const (
	restored    = "restored"
	annSnapshot = "example.com/snapshot"
)

// restores is the persistentvolume.Snapshots of a store without objects of snapshots.
type restores struct{ plugin *csidriver.Plugin }

// Snapshot implements persistentvolume.Snapshots.
func (r restores) Snapshot(ctx context.Context, claim *v1.PersistentVolumeClaim, _ string) (volume.Snapshot, string, error) {
	handle := claim.Annotations[annSnapshot]
	found, err := r.plugin.GetSnapshot(ctx, handle)
	if errors.Is(err, volume.ErrUnsupported) {
		found, err = volume.Snapshot{Handle: handle}, nil
	}
	return found, r.plugin.GetPluginName(), err
}

// again repeats do until it succeeds: the driver may be killed, or be busy.
func again(ctx context.Context, do func() error) error {
	for {
		err := do()
		if !errors.Is(err, volume.ErrTransient) && !errors.Is(err, volume.ErrUncertain) && !errors.Is(err, volume.ErrInUse) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(retry.Initial):
		}
	}
}

// save makes a snapshot of the filesystem in use, and restores a volume from it. It also makes and deletes a group.
func (a *agent) save(ctx context.Context) error {
	can := volume.CapabilitiesOf(a.plugin)
	if !can.Has(volume.CapSnapshot) {
		return nil
	}
	claim, err := store.Get[*v1.PersistentVolumeClaim](ctx, a.store, v1.NamespaceDefault, "data")
	if err != nil {
		return err
	}
	pv, err := store.Get[*v1.PersistentVolume](ctx, a.store, "", claim.Spec.VolumeName)
	if err != nil {
		return err
	}
	source := volume.NewSpecFromPersistentVolume(pv, false)
	if can.Has(volume.CapGroupSnapshot) {
		if err := a.saveGroup(ctx, source); err != nil {
			return err
		}
	}
	var made volume.Snapshot
	err = again(ctx, func() (err error) {
		made, err = a.plugin.CreateSnapshot(ctx, volume.SnapshotOptions{Name: "saved", Source: source})
		if err == nil && !made.ReadyToUse {
			err = volume.ErrTransient
		}
		return err
	})
	if err != nil {
		return err
	}
	return a.restore(ctx, claim, made)
}

func (a *agent) saveGroup(ctx context.Context, source *volume.Spec) error {
	var group volume.GroupSnapshot
	err := again(ctx, func() (err error) {
		group, err = a.plugin.CreateGroupSnapshot(ctx, volume.GroupSnapshotOptions{Name: "saved-group", Sources: []*volume.Spec{source}})
		return err
	})
	if err != nil {
		return err
	}
	return again(ctx, func() error {
		return a.plugin.DeleteGroupSnapshot(ctx, group.Handle, []string{group.Snapshots[0].Handle})
	})
}

// restore returns when the claim of the restored volume is bound.
func (a *agent) restore(ctx context.Context, like *v1.PersistentVolumeClaim, from volume.Snapshot) error {
	group := "snapshot.storage.k8s.io"
	size := like.Spec.Resources.Requests[v1.ResourceStorage]
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1.NamespaceDefault, Name: restored, Annotations: map[string]string{annSnapshot: from.Handle}},
		Spec: v1.PersistentVolumeClaimSpec{
			StorageClassName: like.Spec.StorageClassName, VolumeMode: like.Spec.VolumeMode, AccessModes: like.Spec.AccessModes,
			Resources:  v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(max(size.Value(), from.RestoreSize), resource.BinarySI)}},
			DataSource: &v1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: "saved"},
		},
	}
	if _, err := a.store.Create(ctx, claim); err != nil && !errors.Is(err, store.ErrAlreadyExists) {
		return err
	}
	return store.WaitForNone(ctx, a.store, func(c *v1.PersistentVolumeClaim) bool {
		return c.Name == restored && c.Status.Phase != v1.ClaimBound
	})
}

// deleteSnapshot deletes the snapshot of the restored claim. If the claim is gone, the snapshot was deleted before.
func (a *agent) deleteSnapshot(ctx context.Context) error {
	claim, err := store.Get[*v1.PersistentVolumeClaim](ctx, a.store, v1.NamespaceDefault, restored)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return again(ctx, func() error { return a.plugin.DeleteSnapshot(ctx, claim.Annotations[annSnapshot]) })
}

// podOf returns the pod of a stage. The third pod also has the restored volume, if there is one.
func (a *agent) podOf(ctx context.Context, stage Stage) (*v1.Pod, error) {
	pod := podOf(stage.pod())
	if stage != Third {
		return pod, nil
	}
	_, err := store.Get[*v1.PersistentVolumeClaim](ctx, a.store, v1.NamespaceDefault, restored)
	if errors.Is(err, store.ErrNotFound) {
		return pod, nil
	}
	container := &pod.Spec.Containers[0]
	container.VolumeMounts = append(container.VolumeMounts, v1.VolumeMount{Name: restored, MountPath: "/restored"})
	pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: restored, VolumeSource: v1.VolumeSource{
		PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: restored},
	}})
	return pod, err
}
