package main

import (
	"context"
	"errors"
	"fmt"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/store"
)

// className is the storage class of the demo, whose volumes are made at once. Those of lateClass are made when a pod has a node.
const (
	className = "image"
	lateClass = "late-image"
)

// createClass makes the classes whose volumes are images, and says that schedulers are to look at how much can still be made.
func (c *cluster) createClass(ctx context.Context) error {
	policy, late := v1.PersistentVolumeReclaimDelete, storagev1.VolumeBindingWaitForFirstConsumer
	classes := []store.Object{
		csiObject,
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: className}, Provisioner: loopblock.Name, ReclaimPolicy: &policy},
		&storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: lateClass}, Provisioner: loopblock.Name, ReclaimPolicy: &policy, VolumeBindingMode: &late,
		},
		&snapshotv1.VolumeSnapshotClass{
			ObjectMeta: metav1.ObjectMeta{Name: snapshotClassName}, Driver: loopblock.Driver, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
		},
	}
	for _, object := range classes {
		if _, err := c.store.Create(ctx, object); err != nil {
			return err
		}
	}
	return nil
}

// createClaim asks for a volume that one node can have at a time.
func (c *cluster) createClaim(ctx context.Context, name string) error {
	return c.createClaimOf(ctx, className, name, "16Mi")
}

func (c *cluster) createClaimOf(ctx context.Context, class, name, size string) error {
	return c.create(ctx, newClaim(class, name, size))
}

// createRestored asks for a volume that is restored from a snapshot. It is made when its pod has a node.
func (c *cluster) createRestored(ctx context.Context, name, snapshot string) error {
	claim := newClaim(lateClass, name, "16Mi")
	claim.Spec.DataSource = &v1.TypedLocalObjectReference{APIGroup: new(snapshotv1.GroupName), Kind: "VolumeSnapshot", Name: snapshot}
	return c.create(ctx, claim)
}

func newClaim(class, name, size string) *v1.PersistentVolumeClaim {
	return &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1.NamespaceDefault, Name: name},
		Spec: v1.PersistentVolumeClaimSpec{
			StorageClassName: &class,
			AccessModes:      []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources:        v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)}},
		},
	}
}

// createPod has a pod run on a node, with the volume of a claim; without a node a scheduler chooses one. Its name is the claim's,
// and a number.
func (c *cluster) createPod(ctx context.Context, claim string, number int, node string) error {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1.NamespaceDefault, Name: podName(claim, number)},
		Spec: v1.PodSpec{
			Containers: []v1.Container{{Name: "writer", VolumeMounts: []v1.VolumeMount{{Name: "data", MountPath: "/data"}}}},
			Volumes: []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}}},
		},
	}
	if node != "" {
		assign(pod, node)
	}
	return c.create(ctx, pod)
}

// assign gives a pod its node. From now on the agent there says when the pod is gone.
func assign(pod *v1.Pod, node string) {
	pod.Spec.NodeName, pod.Finalizers = node, []string{finalizerAgent}
}

// create makes an object, which may be there from an earlier try whose answer was lost.
func (c *cluster) create(ctx context.Context, object store.Object) error {
	return persist(ctx, func() error {
		_, err := c.store.Create(ctx, object)
		if errors.Is(err, store.ErrAlreadyExists) {
			return nil
		}
		return err
	})
}

func podName(claim string, number int) string { return fmt.Sprintf("%s-%d", claim, number) }

// deletePod asks the agent of a pod to end it.
func (c *cluster) deletePod(ctx context.Context, name string) error {
	return persist(ctx, func() error {
		pod, err := store.Get[*v1.Pod](ctx, c.store, v1.NamespaceDefault, name)
		if err == nil {
			err = store.Delete(ctx, c.store, pod)
		}
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		return err
	})
}

// dropPod takes a pod away whose node is dead: no agent lets it go.
func (c *cluster) dropPod(ctx context.Context, name string) error {
	if err := c.deletePod(ctx, name); err != nil {
		return err
	}
	return persist(ctx, func() error {
		pod, err := store.Get[*v1.Pod](ctx, c.store, v1.NamespaceDefault, name)
		if err == nil {
			pod.Finalizers = nil
			_, err = store.Update(ctx, c.store, pod)
		}
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		return err
	})
}

// deleteClaim gives a volume up, with what it holds.
func (c *cluster) deleteClaim(ctx context.Context, name string) error {
	return persist(ctx, func() error {
		claim, err := store.Get[*v1.PersistentVolumeClaim](ctx, c.store, v1.NamespaceDefault, name)
		if err == nil {
			err = store.Delete(ctx, c.store, claim)
		}
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		return err
	})
}

// fence says that a node is dead for certain, and unfence that it was started again.
func (c *cluster) fence(ctx context.Context, node string) error {
	return c.taint(ctx, node, []v1.Taint{{Key: v1.TaintNodeOutOfService, Value: "dead", Effect: v1.TaintEffectNoExecute}})
}

func (c *cluster) unfence(ctx context.Context, node string) error { return c.taint(ctx, node, nil) }

func (c *cluster) taint(ctx context.Context, node string, taints []v1.Taint) error {
	return persist(ctx, func() error {
		found, err := store.Get[*v1.Node](ctx, c.store, "", node)
		if err != nil {
			return err
		}
		found.Spec.Taints = taints
		_, err = store.Update(ctx, c.store, found)
		return err
	})
}

// awaitNone waits until a store has no object of a type that is unwanted.
func awaitNone[T store.Object](ctx context.Context, s store.Store, unwanted func(T) bool) error {
	return persist(ctx, func() error { return store.WaitForNone(ctx, s, unwanted) })
}

// snapshotClassName is the class of snapshots of the demo.
const snapshotClassName = "copy"

// createSnapshot asks for a snapshot of the volume of a claim.
func (c *cluster) createSnapshot(ctx context.Context, name, claim string) error {
	snap := &snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: v1.NamespaceDefault, Name: name}}
	snap.Spec.Source.PersistentVolumeClaimName, snap.Spec.VolumeSnapshotClassName = &claim, new(snapshotClassName)
	return c.create(ctx, snap)
}

// deleteSnapshot gives a snapshot up. It stays until the claims that are restored from it are bound.
func (c *cluster) deleteSnapshot(ctx context.Context, name string) error {
	return persist(ctx, func() error {
		snap, err := store.Get[*snapshotv1.VolumeSnapshot](ctx, c.store, v1.NamespaceDefault, name)
		if err == nil {
			err = store.Delete(ctx, c.store, snap)
		}
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		return err
	})
}

// awaitNoSnapshots waits until no snapshot is left, and no content of one.
func (c *cluster) awaitNoSnapshots(ctx context.Context) error {
	return errors.Join(
		awaitNone(ctx, c.store, func(*snapshotv1.VolumeSnapshot) bool { return true }),
		awaitNone(ctx, c.store, func(*snapshotv1.VolumeSnapshotContent) bool { return true }))
}
