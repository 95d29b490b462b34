package snapshot

import (
	"testing"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/volume"
)

func TestTheSecretOfADeletionIsThatOfTheContent(t *testing.T) {
	secret := func(name, space string) func(*snapshotv1.VolumeSnapshotClass) {
		return func(c *snapshotv1.VolumeSnapshotClass) {
			c.Parameters = map[string]string{paramSecretName: name, paramSecretSpace: space}
		}
	}
	inWorld(t, fake.PluginOptions{}, with(bound("c", labelled), objectList{
		newClass("x", secret("${volumesnapshot.name}-${volumesnapshotcontent.name}", "${volumesnapshot.namespace}")),
		newClass("stolen", secret("s", "${volumesnapshot.name}")), newClass("half", secret("s", "")),
		newGroupClass("x", func(c *groupv1.VolumeGroupSnapshotClass) {
			c.Parameters = map[string]string{paramGroupSecretName: "${volumegroupsnapshot.name}", paramGroupSecretSpace: "keys"}
		}),
		newSnapshot("s", "c", "x"), newSnapshot("kube-system", "c", "stolen"), newSnapshot("half", "c", "half"), newGroup("g", "x"),
	}), func(t *testing.T, w *world) {
		w.start(w.store)
		idle()
		w.requireError("kube-system", "${volumesnapshot.name}, which is not known")
		w.requireError("half", "give both, or neither")
		change(w, w.content("snapcontent-uid-s"), func(c *snapshotv1.VolumeSnapshotContent) {
			c.Status = &snapshotv1.VolumeSnapshotContentStatus{SnapshotHandle: new("h")}
		})
		found, err := DeletionSecret(t.Context(), w.store, driver, "h")
		require.NoError(t, err)
		assert.Equal(t, &v1.SecretReference{Name: "s-snapcontent-uid-s", Namespace: "default"}, found)
		for _, other := range [][2]string{{"example.com/other", "h"}, {driver, "other"}} {
			found, err = DeletionSecret(t.Context(), w.store, other[0], other[1])
			require.NoError(t, err)
			assert.Nil(t, found)
		}

		byHand := newByHand("content", "old", "t")
		byHand.Spec.Driver = volume.DriverOfPluginName(driver)
		byHand.Annotations = map[string]string{AnnDeletionSecretName: "n", AnnDeletionSecretNamespace: "ns"}
		w.create(byHand)
		found, err = DeletionSecret(t.Context(), w.store, driver, "old")
		require.NoError(t, err)
		assert.Equal(t, &v1.SecretReference{Name: "n", Namespace: "ns"}, found)

		change(w, get[*groupv1.VolumeGroupSnapshotContent](w, "", "groupsnapcontent-uid-g"), func(c *groupv1.VolumeGroupSnapshotContent) {
			c.Status = &groupv1.VolumeGroupSnapshotContentStatus{VolumeGroupSnapshotHandle: new("h")}
		})
		found, err = GroupDeletionSecret(t.Context(), w.store, driver, "h")
		require.NoError(t, err)
		assert.Equal(t, &v1.SecretReference{Name: "g", Namespace: "keys"}, found)
	})
}
