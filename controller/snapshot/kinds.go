package snapshot

import (
	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/store"
)

// Kinds returns the six kinds of the API, for the table of a store: [store.NewKindTable].
func Kinds() []store.Kind {
	return []store.Kind{
		{GroupVersionKind: snapshotv1.SchemeGroupVersion.WithKind("VolumeSnapshot"), Object: &snapshotv1.VolumeSnapshot{}, Namespaced: true},
		{GroupVersionKind: snapshotv1.SchemeGroupVersion.WithKind("VolumeSnapshotContent"), Object: &snapshotv1.VolumeSnapshotContent{}},
		{GroupVersionKind: snapshotv1.SchemeGroupVersion.WithKind("VolumeSnapshotClass"), Object: &snapshotv1.VolumeSnapshotClass{}},
		{GroupVersionKind: groupv1.SchemeGroupVersion.WithKind("VolumeGroupSnapshot"), Object: &groupv1.VolumeGroupSnapshot{}, Namespaced: true},
		{GroupVersionKind: groupv1.SchemeGroupVersion.WithKind("VolumeGroupSnapshotContent"), Object: &groupv1.VolumeGroupSnapshotContent{}},
		{GroupVersionKind: groupv1.SchemeGroupVersion.WithKind("VolumeGroupSnapshotClass"), Object: &groupv1.VolumeGroupSnapshotClass{}},
	}
}

// The finalizers and annotations, all but the last those of Kubernetes' snapshot controller.
const (
	// FinalizerBound is on a VolumeSnapshot, so that it stays until what is to be done for its content was done.
	FinalizerBound = "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection"
	// FinalizerAsSource is on a VolumeSnapshot, so that it stays while a claim is restored from it.
	FinalizerAsSource = "snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection"
	// FinalizerInGroup is on a VolumeSnapshot of a group, so that it is deleted only with its group.
	FinalizerInGroup = "snapshot.storage.kubernetes.io/volumesnapshot-in-group-protection"
	// FinalizerContent is on a VolumeSnapshotContent, so that it stays until its snapshot is deleted, or is to be kept.
	FinalizerContent = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"
	// FinalizerSourceClaim is on a claim whose volume is being snapshotted.
	FinalizerSourceClaim = "snapshot.storage.kubernetes.io/pvc-as-source-protection"
	// FinalizerGroup is on a VolumeGroupSnapshot, and FinalizerGroupContent on a VolumeGroupSnapshotContent, likewise.
	FinalizerGroup        = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-bound-protection"
	FinalizerGroupContent = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshotcontent-bound-protection"

	// AnnDefaultClass is "true" on the class of snapshots that name none, AnnDefaultGroupClass on that of groups.
	AnnDefaultClass      = "snapshot.storage.kubernetes.io/is-default-class"
	AnnDefaultGroupClass = "groupsnapshot.storage.kubernetes.io/is-default-class"
	// AnnBeingCreated is on a content from before the plugin is called to make its snapshot until the handle is in its status.
	AnnBeingCreated      = "snapshot.storage.kubernetes.io/volumesnapshot-being-created"
	AnnGroupBeingCreated = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-created"
	// AnnBeingDeleted is on a content whose VolumeSnapshot is being deleted and waits for nothing else.
	AnnBeingDeleted      = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted"
	AnnGroupBeingDeleted = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-deleted"
	// AnnDeletionSecretName and AnnDeletionSecretNamespace are on a content whose snapshot is deleted with a secret; the values are the
	// secret's name and namespace. Those of a group are AnnGroupDeletionSecretName and AnnGroupDeletionSecretNamespace.
	AnnDeletionSecretName           = "snapshot.storage.kubernetes.io/deletion-secret-name"      //nolint:gosec // It is a key.
	AnnDeletionSecretNamespace      = "snapshot.storage.kubernetes.io/deletion-secret-namespace" //nolint:gosec // It is a key.
	AnnGroupDeletionSecretName      = "groupsnapshot.storage.kubernetes.io/deletion-secret-name"
	AnnGroupDeletionSecretNamespace = "groupsnapshot.storage.kubernetes.io/deletion-secret-namespace"
	// AnnGroupHandle is on the content of a snapshot of a group; its value is the group's handle.
	AnnGroupHandle = "groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle"
	// AnnAllowModeChange is "true" on a content from which a volume of another volume mode may be restored.
	AnnAllowModeChange = "snapshot.storage.kubernetes.io/allow-volume-mode-change"
	// AnnSourceVolumes is on a content that is made of volumes; its value is the names of their PersistentVolumes, in order, with
	// commas between them.
	AnnSourceVolumes = "volumekit.io/source-volumes"
)

const yes = "yes"

// contentName is the name of the content of a VolumeSnapshot: the same each time, and no other snapshot's.
func contentName(uid types.UID) string { return "snapcontent-" + string(uid) }

// pluginSnapshotName is the name under which the plugin makes the snapshot of a VolumeSnapshot, likewise.
func pluginSnapshotName(uid types.UID) string { return "snapshot-" + string(uid) }

func groupContentName(uid types.UID) string { return "groupsnapcontent-" + string(uid) }

func pluginGroupName(uid types.UID) string { return "groupsnapshot-" + string(uid) }
