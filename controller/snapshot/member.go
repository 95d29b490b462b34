package snapshot

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/store"
)

// memberName ends the names of the objects of one snapshot of a group: the same each time, and no other snapshot's.
func memberName(group *groupv1.VolumeGroupSnapshot, info groupv1.VolumeSnapshotInfo) string {
	of := info.VolumeHandle
	if of == "" {
		of = info.SnapshotHandle
	}
	return fmt.Sprintf("%x", sha256.Sum256([]byte(string(group.UID)+of)))
}

// createMember creates the content and the VolumeSnapshot of one snapshot of a group, unless they are there.
func (c *groupSync) createMember(
	ctx context.Context, group *groupv1.VolumeGroupSnapshot, of *groupv1.VolumeGroupSnapshotContent, info groupv1.VolumeSnapshotInfo,
) error {
	content, snap := newMember(group, of, info)
	if _, there := c.mirrors.contents.Get(objects.Named(content.Name)); !there {
		created, err := store.Create(ctx, c.store, content)
		if err != nil && !errors.Is(err, store.ErrAlreadyExists) {
			return err
		}
		if err == nil {
			c.mirrors.contents.Put(created)
		}
	}
	if _, there := c.mirrors.snapshots.Get(store.NameOf(snap)); !there {
		created, err := store.Create(ctx, c.store, snap)
		if err != nil && !errors.Is(err, store.ErrAlreadyExists) {
			return err
		}
		if err == nil {
			c.mirrors.snapshots.Put(created)
		}
	}
	return nil
}

func newMember(
	group *groupv1.VolumeGroupSnapshot, of *groupv1.VolumeGroupSnapshotContent, info groupv1.VolumeSnapshotInfo,
) (*snapshotv1.VolumeSnapshotContent, *snapshotv1.VolumeSnapshot) {
	name := memberName(group, info)
	content, snap := &snapshotv1.VolumeSnapshotContent{}, &snapshotv1.VolumeSnapshot{}
	content.Name, snap.Name, snap.Namespace = "snapcontent-"+name, "snapshot-"+name, group.Namespace
	content.Finalizers = []string{FinalizerContent}
	content.Annotations = map[string]string{AnnGroupHandle: *of.Status.VolumeGroupSnapshotHandle}
	content.Spec = snapshotv1.VolumeSnapshotContentSpec{
		VolumeSnapshotRef: v1.ObjectReference{
			APIVersion: snapshotv1.SchemeGroupVersion.String(), Kind: "VolumeSnapshot", Namespace: snap.Namespace, Name: snap.Name,
		},
		DeletionPolicy: of.Spec.DeletionPolicy, Driver: of.Spec.Driver,
		Source: snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: &info.SnapshotHandle},
	}
	snap.Finalizers = []string{FinalizerInGroup}
	snap.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: groupv1.SchemeGroupVersion.String(), Kind: groupKind, Name: group.Name, UID: group.UID,
	}}
	snap.Spec.Source.VolumeSnapshotContentName = &content.Name
	return content, snap
}
