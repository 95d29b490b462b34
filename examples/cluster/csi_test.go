package main

import (
	"testing"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/bridge/csi/csidriver"
	"github.com/volumekit/volumekit/controller/snapshot"
	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/store"
)

func TestDeletionsOfSnapshotsHaveTheSecretsOfTheirContents(t *testing.T) {
	kinds, err := store.NewKindTable(snapshot.Kinds()...)
	require.NoError(t, err)
	s := store.NewMemory(store.MemoryOptions{Kinds: kinds})
	content := &snapshotv1.VolumeSnapshotContent{}
	content.Name, content.Spec.Driver = "content", loopblock.Driver
	content.Spec.Source.SnapshotHandle = new("one")
	content.Annotations = map[string]string{snapshot.AnnDeletionSecretName: "key", snapshot.AnnDeletionSecretNamespace: "storage"}
	group := &groupv1.VolumeGroupSnapshotContent{}
	group.Name, group.Spec.Driver = "group", loopblock.Driver
	group.Spec.Source.GroupSnapshotHandles = &groupv1.GroupSnapshotHandles{VolumeGroupSnapshotHandle: "all"}
	group.Annotations = map[string]string{snapshot.AnnGroupDeletionSecretName: "keys", snapshot.AnnGroupDeletionSecretNamespace: "storage"}
	for _, obj := range []store.Object{content, group} {
		_, err := s.Create(t.Context(), obj)
		require.NoError(t, err)
	}
	of := secrets{store: s, plugin: loopblock.Name}
	for call, want := range map[csidriver.SnapshotCall]*v1.SecretReference{
		{Method: "DeleteSnapshot", Handle: "one"}:            {Namespace: "storage", Name: "key"},
		{Method: "DeleteSnapshot", Handle: "another"}:        nil,
		{Method: "DeleteVolumeGroupSnapshot", Handle: "all"}: {Namespace: "storage", Name: "keys"},
		{Method: "GetSnapshot", Handle: "one"}:               nil,
	} {
		got, err := of.SnapshotSecret(t.Context(), call)
		require.NoError(t, err)
		assert.Equal(t, want, got, "%v", call)
	}
}
