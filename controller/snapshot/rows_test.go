package snapshot

import (
	"errors"
	"testing"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// row is a row of docs/snapshots.md, by its number.
type row struct {
	name    string
	plugin  fake.PluginOptions
	objects objectList
	test    func(t *testing.T, w *world)
}

func run(t *testing.T, rows []row) {
	t.Helper()
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) { inWorld(t, r.plugin, r.objects, r.test) })
	}
}

// with joins objects.
func with(lists ...objectList) objectList {
	var all objectList
	for _, list := range lists {
		all = append(all, list...)
	}
	return all
}

var errRefused = errors.New("no room")

func TestMaking(t *testing.T) {
	run(t, []row{
		{"1 it names a bound claim and a class", fake.PluginOptions{}, with(bound("c"), objectList{newClass("x"), newSnapshot("s", "c", "x")}), func(t *testing.T, w *world) {
			w.start(w.store)
			idle()
			content := w.requireReady("s")
			assert.Equal(t, "snapcontent-uid-s", content.Name)
			assert.Equal(t, "volume-c", *content.Spec.Source.VolumeHandle)
			assert.Equal(t, []string{"snapshot-uid-s"}, w.handles())
		}},
		{"2 it names no class", fake.PluginOptions{}, with(bound("c"), objectList{
			newClass("x", isDefault), newClass("y"), newClass("z", isDefault, func(c *snapshotv1.VolumeSnapshotClass) { c.Driver = "example.com/other" }),
			newSnapshot("s", "c", ""),
		}), func(t *testing.T, w *world) {
			w.start(w.store)
			idle()
			w.requireReady("s")
			assert.Equal(t, "x", *w.snapshot("s").Spec.VolumeSnapshotClassName)
		}},
		{"3 it names no class, and there is no default, or more than one", fake.PluginOptions{}, with(bound("c"), objectList{newSnapshot("s", "c", "")}), func(t *testing.T, w *world) {
			w.start(w.store)
			idle()
			w.requireError("s", "has no default snapshot class")
			w.create(newClass("x"))
			w.create(newClass("a", isDefault))
			idle()
			w.requireReady("s")
			w.create(newClass("b", isDefault))
			idle()
			w.create(newSnapshot("two", "c", ""))
			idle()
			w.requireError("two", "classes that are the default")
			w.delete(newClass("b"))
			w.requireReady("two")
		}},
		{"4 its class does not exist", fake.PluginOptions{}, with(bound("c"), objectList{newSnapshot("s", "c", "x")}), func(t *testing.T, w *world) {
			w.start(w.store)
			idle()
			w.requireError("s", `snapshot class "x" does not exist`)
			at := w.snapshot("s").Status.Error.Time
			settle()
			assert.Equal(t, at, w.snapshot("s").Status.Error.Time, "the time is that of the first")
			w.create(newClass("x"))
			idle()
			w.requireReady("s")
		}},
		{"5 its class is for another driver", fake.PluginOptions{}, with(bound("c"), objectList{
			newClass("x", func(c *snapshotv1.VolumeSnapshotClass) { c.Driver = "example.com/other" }), newSnapshot("s", "c", "x"),
		}), func(t *testing.T, w *world) {
			w.start(w.store)
			idle()
			w.requireError("s", "is for driver")
			assert.Zero(t, w.calls(fake.MethodCreateSnapshot))
		}},
		{"6 the driver of its class is a CSI name", fake.PluginOptions{}, with(bound("c"), objectList{
			newClass("x", func(c *snapshotv1.VolumeSnapshotClass) { c.Driver = volume.DriverOfPluginName(driver) }), newSnapshot("s", "c", "x"),
		}), func(_ *testing.T, w *world) {
			w.start(w.store)
			idle()
			w.requireReady("s")
		}},
		{"7 its claim does not exist, or is not bound", fake.PluginOptions{}, objectList{newClass("x"), newSnapshot("s", "c", "x")}, func(_ *testing.T, w *world) {
			w.start(w.store)
			idle()
			w.requireError("s", "does not exist")
			w.create(bound("c", func(claim *v1.PersistentVolumeClaim) { claim.Spec.VolumeName, claim.Status.Phase = "", v1.ClaimPending })[0])
			idle()
			w.requireError("s", "is not bound")
			w.create(bound("c")[1])
			change(w, w.claim("c"), func(claim *v1.PersistentVolumeClaim) {
				claim.Spec.VolumeName, claim.Status.Phase = "pv-c", v1.ClaimBound
			})
			w.requireReady("s")
		}},
		{"8 its claim is being deleted", fake.PluginOptions{}, with(bound("c", func(claim *v1.PersistentVolumeClaim) { claim.Finalizers = []string{"example.com/held"} }), objectList{newClass("x")}), func(_ *testing.T, w *world) {
			w.delete(bound("c")[0])
			w.create(newSnapshot("s", "c", "x"))
			w.start(w.store)
			idle()
			w.requireError("s", "is being deleted")
		}},
		{"9 no plugin here can make snapshots of its volume", fake.PluginOptions{Without: volume.CapSnapshot}, with(bound("c"), objectList{newClass("x"), newSnapshot("s", "c", "x")}), func(_ *testing.T, w *world) {
			w.start(w.store)
			idle()
			w.requireError("s", "no snapshot can be made of volume")
		}},
		{"10 it names a claim and a content, or neither", fake.PluginOptions{}, nil, func(_ *testing.T, w *world) {
			both := newSnapshot("s", "c", "x")
			both.Spec.Source.VolumeSnapshotContentName = new("content")
			w.create(both)
			w.create(newSnapshot("t", "", "x"))
			w.start(w.store)
			idle()
			w.requireError("s", "not both")
			w.requireError("t", "not both")
		}},
		{"11 the plugin fails", fake.PluginOptions{}, with(bound("c"), objectList{newClass("x"), newSnapshot("s", "c", "x")}), func(t *testing.T, w *world) {
			w.plugin.Inject(fake.MethodCreateSnapshot, fake.FailN(2, errRefused))
			w.start(w.store)
			idle()
			w.requireError("s", "no room")
			assert.Equal(t, 1, w.calls(fake.MethodCreateSnapshot), "it is tried again after a back-off")
			assert.NotContains(t, w.content("snapcontent-uid-s").Annotations, AnnBeingCreated, "nothing was made")
			assert.Contains(t, w.claim("c").Finalizers, FinalizerSourceClaim)
			settle()
			w.requireReady("s")
			assert.Equal(t, 3, w.calls(fake.MethodCreateSnapshot))
			assert.NotContains(t, w.claim("c").Finalizers, FinalizerSourceClaim)
		}},
		{"12 it is unknown whether the plugin made it", fake.PluginOptions{}, with(bound("c"), objectList{newClass("x"), newSnapshot("s", "c", "x")}), func(t *testing.T, w *world) {
			w.plugin.Inject(fake.MethodCreateSnapshot, fake.FailAfter(volume.Uncertain(errRefused)))
			w.plugin.Inject(fake.MethodCreateSnapshot, fake.FailN(1, errRefused))
			w.start(w.store)
			idle()
			assert.Contains(t, w.content("snapcontent-uid-s").Annotations, AnnBeingCreated)
			settle()
			w.requireReady("s")
			assert.Equal(t, []string{"snapshot-uid-s"}, w.handles())
		}},
		{"13 it is made, and not ready to use yet", fake.PluginOptions{UnreadySnapshots: true}, with(bound("c"), objectList{newClass("x"), newSnapshot("s", "c", "x")}), func(t *testing.T, w *world) {
			w.start(w.store)
			idle()
			status := w.snapshot("s").Status
			assert.False(t, *status.ReadyToUse)
			assert.NotNil(t, status.CreationTime)
			assert.Nil(t, status.Error)
			assert.Contains(t, w.claim("c").Finalizers, FinalizerSourceClaim)
			require.NoError(t, w.plugin.Backend().MakeSnapshotReady("snapshot-uid-s"))
			settle()
			w.requireReady("s")
			assert.NotContains(t, w.claim("c").Finalizers, FinalizerSourceClaim)
		}},
		{"14 its claim is deleted meanwhile", fake.PluginOptions{}, with(bound("c"), objectList{newClass("x"), newSnapshot("s", "c", "x")}), func(t *testing.T, w *world) {
			w.plugin.Inject(fake.MethodCreateSnapshot, fake.FailN(1, errRefused))
			w.start(w.store)
			idle()
			w.delete(bound("c")[0])
			assert.NotNil(t, w.claim("c").DeletionTimestamp)
			settle()
			w.requireReady("s")
			isGone[*v1.PersistentVolumeClaim](w, "default", "c")
		}},
		{"15 another volume has the name of its volume", fake.PluginOptions{}, with(bound("c"), objectList{newClass("x"), newSnapshot("s", "c", "x")}), func(t *testing.T, w *world) {
			w.plugin.Inject(fake.MethodCreateSnapshot, fake.FailN(1, errRefused))
			w.start(w.store)
			idle()
			change(w, get[*v1.PersistentVolume](w, "", "pv-c"), func(pv *v1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = "another" })
			settle()
			w.requireError("s", "another PersistentVolume has its name")
			assert.Equal(t, 1, w.calls(fake.MethodCreateSnapshot))
		}},
		{"16 a content of another snapshot has the name of its content", fake.PluginOptions{}, with(bound("c"), objectList{newClass("x"), newByHand("snapcontent-uid-s", "h", "other"), newSnapshot("s", "c", "x")}), func(_ *testing.T, w *world) {
			w.start(w.store)
			idle()
			w.requireError("s", "is not its")
		}},
		{"17 no plugin here has the driver of a content", fake.PluginOptions{}, nil, func(t *testing.T, w *world) {
			content := newByHand("content", "h", "s")
			content.Spec.Driver = "example.com/other"
			w.create(content)
			w.start(w.store)
			idle()
			assert.Empty(t, w.content("content").Finalizers)
			assert.Nil(t, w.content("content").Status)
		}},
	})
}

// existing makes a snapshot that the storage has, of a volume.
func existing(t *testing.T, w *world, name string) string {
	t.Helper()
	pv := get[*v1.PersistentVolume](w, "", "pv-c")
	made, err := w.plugin.CreateSnapshot(t.Context(), volume.SnapshotOptions{Name: name, Source: volume.NewSpecFromPersistentVolume(pv, false)})
	require.NoError(t, err)
	return made.Handle
}

func TestContentsMadeByHand(t *testing.T) {
	run(t, []row{
		{"20 the content and the snapshot name each other", fake.PluginOptions{}, bound("c"), func(t *testing.T, w *world) {
			w.create(newByHand("content", existing(t, w, "old"), "s"))
			w.create(snapshotOf("s", "content"))
			w.start(w.store)
			idle()
			content := w.requireReady("s")
			assert.Equal(t, "old", *content.Status.SnapshotHandle)
			assert.Equal(t, w.snapshot("s").UID, content.Spec.VolumeSnapshotRef.UID)
			assert.Equal(t, 1, w.calls(fake.MethodCreateSnapshot), "the test itself")
		}},
		{"21 the content is created later", fake.PluginOptions{}, with(bound("c"), objectList{snapshotOf("s", "content")}), func(t *testing.T, w *world) {
			w.start(w.store)
			idle()
			w.requireError("s", `content "content" does not exist`)
			w.create(newByHand("content", existing(t, w, "old"), "s"))
			idle()
			w.requireReady("s")
		}},
		{"22 the content is for another snapshot", fake.PluginOptions{}, with(bound("c"), objectList{snapshotOf("s", "content")}), func(t *testing.T, w *world) {
			w.create(newByHand("content", existing(t, w, "old"), "other"))
			w.start(w.store)
			idle()
			w.requireError("s", "is for snapshot")
			change(w, newByHand("content", "", ""), func(c *snapshotv1.VolumeSnapshotContent) {
				c.Spec.VolumeSnapshotRef.Name, c.Spec.VolumeSnapshotRef.UID = "s", "another"
			})
			w.requireError("s", `with UID "another"`)
		}},
		{"23 the content's source is a volume, not a handle", fake.PluginOptions{}, with(bound("c"), objectList{newClass("x"), newSnapshot("made", "c", "x"), snapshotOf("s", "snapcontent-uid-made")}), func(_ *testing.T, w *world) {
			w.start(w.store)
			idle()
			w.requireReady("made")
			w.requireError("s", "is one that is made of a volume")
		}},
		{"24 the storage has no snapshot of that handle", fake.PluginOptions{}, objectList{newByHand("content", "missing", "s"), snapshotOf("s", "content")}, func(_ *testing.T, w *world) {
			w.start(w.store)
			idle()
			w.requireError("s", "missing")
		}},
		{"25 the plugin cannot look snapshots up", fake.PluginOptions{}, objectList{newByHand("content", "h", "s"), snapshotOf("s", "content")}, func(_ *testing.T, w *world) {
			w.plugin.Inject(fake.MethodGetSnapshot, fake.FailN(1000, volume.ErrUnsupported))
			w.start(w.store)
			idle()
			w.requireReady("s")
		}},
		{"26 the content of a bound snapshot is gone, or belongs to another snapshot", fake.PluginOptions{}, bound("c"), func(t *testing.T, w *world) {
			w.create(newByHand("content", existing(t, w, "old"), "s"))
			w.create(snapshotOf("s", "content"))
			w.start(w.store)
			idle()
			change(w, newByHand("content", "", ""), func(c *snapshotv1.VolumeSnapshotContent) { c.Spec.VolumeSnapshotRef.UID = "another" })
			w.requireError("s", "is not that of this snapshot")
			change(w, newByHand("content", "", ""), func(c *snapshotv1.VolumeSnapshotContent) { c.Finalizers = nil })
			change(w, newByHand("content", "", ""), func(c *snapshotv1.VolumeSnapshotContent) {
				c.Spec.DeletionPolicy = snapshotv1.VolumeSnapshotContentRetain
			})
			w.delete(newByHand("content", "", ""))
			w.requireError("s", "is gone")
			assert.Equal(t, []string{"old"}, w.handles())
		}},
	})
}

func TestDeletion(t *testing.T) {
	made := func(class *snapshotv1.VolumeSnapshotClass) objectList {
		return with(bound("c"), objectList{class, newSnapshot("s", "c", "x")})
	}
	s := newSnapshot("s", "", "")
	content := &snapshotv1.VolumeSnapshotContent{}
	content.Name = "snapcontent-uid-s"
	run(t, []row{
		{"30 the policy is Delete", fake.PluginOptions{}, made(newClass("x")), func(t *testing.T, w *world) {
			w.start(w.store)
			idle()
			w.delete(s)
			isGone[*snapshotv1.VolumeSnapshot](w, "default", "s")
			isGone[*snapshotv1.VolumeSnapshotContent](w, "", content.Name)
			assert.Empty(t, w.handles())
		}},
		{"31 the policy is Retain", fake.PluginOptions{}, made(newClass("x", retains)), func(t *testing.T, w *world) {
			w.start(w.store)
			idle()
			w.delete(s)
			isGone[*snapshotv1.VolumeSnapshot](w, "default", "s")
			assert.Nil(t, w.content(content.Name).DeletionTimestamp)
			w.delete(content)
			isGone[*snapshotv1.VolumeSnapshotContent](w, "", content.Name)
			assert.Equal(t, []string{"snapshot-uid-s"}, w.handles())
			assert.Zero(t, w.calls(fake.MethodDeleteSnapshot))
		}},
		{"32 a claim is restored from it", fake.PluginOptions{}, made(newClass("x")), func(t *testing.T, w *world) {
			w.start(w.store)
			idle()
			w.create(begun(restoring("r", "s")))
			w.delete(s)
			settle()
			assert.NotNil(t, w.snapshot("s").DeletionTimestamp)
			assert.Nil(t, w.content(content.Name).DeletionTimestamp)
			assert.Contains(t, w.reasons(), "SnapshotDeletePending")
			change(w, restoring("r", "s"), func(claim *v1.PersistentVolumeClaim) { claim.Spec.VolumeName = "pv-r" })
			isGone[*snapshotv1.VolumeSnapshot](w, "default", "s")
			assert.Empty(t, w.handles())
		}},
		{"33 the content is deleted before its snapshot", fake.PluginOptions{}, made(newClass("x")), func(t *testing.T, w *world) {
			w.start(w.store)
			idle()
			w.delete(content)
			settle()
			assert.NotNil(t, w.content(content.Name).DeletionTimestamp)
			assert.Equal(t, []string{"snapshot-uid-s"}, w.handles())
			w.delete(s)
			isGone[*snapshotv1.VolumeSnapshotContent](w, "", content.Name)
			isGone[*snapshotv1.VolumeSnapshot](w, "default", "s")
			assert.Empty(t, w.handles())
		}},
		{"34 the plugin fails to delete it", fake.PluginOptions{}, made(newClass("x")), func(t *testing.T, w *world) {
			w.start(w.store)
			idle()
			w.plugin.Inject(fake.MethodDeleteSnapshot, fake.FailN(1, volume.ErrInUse))
			w.delete(s)
			assert.NotNil(t, w.content(content.Name).Status.Error)
			assert.NotNil(t, w.snapshot("s").DeletionTimestamp)
			settle()
			isGone[*snapshotv1.VolumeSnapshot](w, "default", "s")
			assert.Empty(t, w.handles())
		}},
		{"35 it is deleted before a call of a plugin", fake.PluginOptions{}, made(newClass("x")), func(t *testing.T, w *world) {
			w.plugin.Inject(fake.MethodCreateSnapshot, fake.FailN(1, errRefused))
			w.start(w.store)
			idle()
			w.delete(s)
			isGone[*snapshotv1.VolumeSnapshot](w, "default", "s")
			isGone[*snapshotv1.VolumeSnapshotContent](w, "", content.Name)
			assert.NotContains(t, w.claim("c").Finalizers, FinalizerSourceClaim)
			assert.Zero(t, w.calls(fake.MethodDeleteSnapshot))
		}},
		{"36 it is deleted while it is unknown whether the plugin made it", fake.PluginOptions{}, made(newClass("x")), func(t *testing.T, w *world) {
			w.plugin.Inject(fake.MethodCreateSnapshot, fake.FailAfter(volume.Uncertain(errRefused)))
			w.start(w.store)
			idle()
			require.Equal(t, []string{"snapshot-uid-s"}, w.handles())
			w.delete(s)
			settle()
			isGone[*snapshotv1.VolumeSnapshot](w, "default", "s")
			assert.Empty(t, w.handles())
		}},
		{"37 the same, and the repeated call fails", fake.PluginOptions{}, made(newClass("x")), func(t *testing.T, w *world) {
			w.plugin.Inject(fake.MethodCreateSnapshot, fake.FailN(1000, volume.Uncertain(errRefused)))
			w.start(w.store)
			idle()
			w.delete(s)
			settle()
			assert.Contains(t, *w.content(content.Name).Status.Error.Message, "it is not known whether it has")
			assert.Contains(t, w.claim("c").Finalizers, FinalizerSourceClaim)
			change(w, content, func(c *snapshotv1.VolumeSnapshotContent) { delete(c.Annotations, AnnBeingCreated) })
			settle()
			isGone[*snapshotv1.VolumeSnapshot](w, "default", "s")
			assert.NotContains(t, w.claim("c").Finalizers, FinalizerSourceClaim)
		}},
		{"38 another content has the same handle", fake.PluginOptions{}, made(newClass("x")), func(t *testing.T, w *world) {
			w.start(w.store)
			idle()
			w.create(newByHand("other", "snapshot-uid-s", "t"))
			w.delete(s)
			settle()
			assert.Contains(t, *w.content(content.Name).Status.Error.Message, `content "other" has snapshot`)
			assert.Equal(t, []string{"snapshot-uid-s"}, w.handles())
			change(w, content, func(c *snapshotv1.VolumeSnapshotContent) {
				c.Spec.DeletionPolicy = snapshotv1.VolumeSnapshotContentRetain
			})
			settle()
			isGone[*snapshotv1.VolumeSnapshotContent](w, "", content.Name)
			assert.Equal(t, []string{"snapshot-uid-s"}, w.handles())
		}},
		{"39 a snapshot without a content is deleted", fake.PluginOptions{}, objectList{newSnapshot("s", "c", "x")}, func(_ *testing.T, w *world) {
			w.start(w.store)
			idle()
			w.delete(s)
			isGone[*snapshotv1.VolumeSnapshot](w, "default", "s")
		}},
		{"40 a content that was never bound is deleted", fake.PluginOptions{}, bound("c"), func(t *testing.T, w *world) {
			w.create(newByHand("content", existing(t, w, "old"), "s"))
			w.start(w.store)
			idle()
			w.delete(newByHand("content", "", ""))
			isGone[*snapshotv1.VolumeSnapshotContent](w, "", "content")
			assert.Empty(t, w.handles())
		}},
		{"41 a content's snapshot was replaced by another of the same name", fake.PluginOptions{}, made(newClass("x")), func(t *testing.T, w *world) {
			w.start(w.store)
			idle()
			change(w, s, func(s *snapshotv1.VolumeSnapshot) { s.Finalizers = nil })
			change(w, content, func(c *snapshotv1.VolumeSnapshotContent) { c.Spec.VolumeSnapshotRef.UID = "gone" })
			w.delete(content)
			isGone[*snapshotv1.VolumeSnapshotContent](w, "", content.Name)
			assert.Empty(t, w.handles())
		}},
		{"42 a claim waits for it, and nothing was begun", fake.PluginOptions{}, made(newClass("x")), func(t *testing.T, w *world) {
			w.start(w.store)
			idle()
			r := restoring("r", "s")
			r.Annotations = map[string]string{objects.AnnStorageProvisioner: driver} // Of an attempt that has failed.
			w.create(r)
			w.delete(s)
			isGone[*snapshotv1.VolumeSnapshot](w, "default", "s")
			assert.Empty(t, w.handles())
			assert.Nil(t, w.claim("r").DeletionTimestamp)
		}},
		{"43 a claim waits for it, and another program provisions", fake.PluginOptions{}, made(newClass("x")), func(t *testing.T, w *world) {
			w.start(w.store)
			idle()
			r := restoring("r", "s")
			r.Annotations = map[string]string{objects.AnnStorageProvisioner: "other.example.com"}
			w.create(r)
			w.delete(s)
			settle()
			assert.Nil(t, w.content(content.Name).DeletionTimestamp)
			w.delete(r)
			isGone[*snapshotv1.VolumeSnapshot](w, "default", "s")
			assert.Empty(t, w.handles())
		}},
	})
}

func TestRestoring(t *testing.T) {
	objectsOf := with(bound("c"), objectList{newClass("x"), newSnapshot("s", "c", "x")})
	r := restoring("r", "s")
	run(t, []row{
		{"50 the snapshot is ready", fake.PluginOptions{}, objectsOf, func(t *testing.T, w *world) {
			c, _ := w.start(w.store)
			idle()
			found, plugin, err := c.Snapshot(t.Context(), r, "s")
			require.NoError(t, err)
			assert.Equal(t, driver, plugin)
			has, err := w.plugin.GetSnapshot(t.Context(), "snapshot-uid-s")
			require.NoError(t, err)
			assert.Equal(t, has.Handle, found.Handle)
			assert.Equal(t, has.RestoreSize, found.RestoreSize)
			assert.True(t, has.CreationTime.Equal(found.CreationTime))
			assert.True(t, found.ReadyToUse)
		}},
		{"51 there is no such snapshot, or it is not ready", fake.PluginOptions{}, objectsOf, func(t *testing.T, w *world) {
			w.plugin.Inject(fake.MethodCreateSnapshot, fake.FailN(1, errRefused))
			c, _ := w.start(w.store)
			idle()
			_, _, err := c.Snapshot(t.Context(), r, "missing")
			require.ErrorIs(t, err, store.ErrNotFound)
			_, _, err = c.Snapshot(t.Context(), r, "s")
			require.ErrorIs(t, err, volume.ErrTransient)
		}},
		{"52 the snapshot is being deleted", fake.PluginOptions{}, objectsOf, func(t *testing.T, w *world) {
			c, _ := w.start(w.store)
			idle()
			held := begun(restoring("held", "s"))
			w.create(held)
			w.delete(newSnapshot("s", "", ""))
			_, _, err := c.Snapshot(t.Context(), r, "s")
			require.ErrorIs(t, err, store.ErrNotFound)
			require.ErrorContains(t, err, "is being deleted")
			_, _, err = c.Snapshot(t.Context(), held, "s")
			require.NoError(t, err, "what may have been begun is finished")
		}},
		{"53 the claim asks for another volume mode", fake.PluginOptions{}, objectsOf, func(t *testing.T, w *world) {
			c, _ := w.start(w.store)
			idle()
			block := r.DeepCopy()
			block.Spec.VolumeMode = new(v1.PersistentVolumeBlock)
			_, _, err := c.Snapshot(t.Context(), block, "s")
			require.ErrorIs(t, err, volume.ErrInfeasible)
			content := w.requireReady("s")
			change(w, content, func(c *snapshotv1.VolumeSnapshotContent) { c.Annotations[AnnAllowModeChange] = "true" })
			_, _, err = c.Snapshot(t.Context(), block, "s")
			require.NoError(t, err)
		}},
	})
}

// membersOf returns the snapshots of a group.
func (w *world) membersOf(group string) []*snapshotv1.VolumeSnapshot {
	w.t.Helper()
	all, _, err := store.ListOf[*snapshotv1.VolumeSnapshot](w.t.Context(), w.store, "default")
	require.NoError(w.t, err)
	var members []*snapshotv1.VolumeSnapshot
	for _, snap := range all {
		if groupOwner(snap).Name == group {
			members = append(members, snap)
		}
	}
	return members
}

func (w *world) requireGroupReady(name string) {
	w.t.Helper()
	group := w.group(name)
	require.NotNil(w.t, group.Status)
	require.Nil(w.t, group.Status.Error, "%v", group.Status.Error)
	require.True(w.t, deref(group.Status.ReadyToUse))
	for _, member := range w.membersOf(name) {
		w.requireReady(member.Name)
		require.Equal(w.t, name, *member.Status.VolumeGroupSnapshotName)
	}
}

func (w *world) requireGroupError(name, text string) {
	w.t.Helper()
	status := w.group(name).Status
	require.NotNil(w.t, status)
	require.NotNil(w.t, status.Error)
	require.Contains(w.t, *status.Error.Message, text)
}

func TestGroups(t *testing.T) {
	two := with(bound("a", labelled), bound("b", labelled), bound("other"))
	g := newGroup("g", "x")
	asked := with(two, objectList{newGroupClass("x"), g})
	run(t, []row{
		{"60 it selects claims", fake.PluginOptions{}, asked, func(t *testing.T, w *world) {
			w.start(w.store)
			idle()
			w.requireGroupReady("g")
			assert.Len(t, w.membersOf("g"), 2)
			assert.Len(t, w.handles(), 2)
			assert.Equal(t, 1, w.calls(fake.MethodCreateGroupSnapshot))
			assert.NotContains(t, w.claim("a").Finalizers, FinalizerSourceClaim)
			assert.NotNil(t, w.group("g").Status.CreationTime)
		}},
		{"61 it names no class", fake.PluginOptions{}, with(two, objectList{newGroup("g", "")}), func(t *testing.T, w *world) {
			w.start(w.store)
			idle()
			w.requireGroupError("g", "has no default group snapshot class")
			w.create(newGroupClass("x", func(c *groupv1.VolumeGroupSnapshotClass) {
				c.Annotations = map[string]string{AnnDefaultGroupClass: "true"}
			}))
			idle()
			w.requireGroupReady("g")
			assert.Equal(t, "x", *w.group("g").Spec.VolumeGroupSnapshotClassName)
		}},
		{"62 it selects no claim, or one that is not bound", fake.PluginOptions{}, objectList{newGroupClass("x"), g}, func(_ *testing.T, w *world) {
			w.start(w.store)
			idle()
			w.requireGroupError("g", "selects no claim")
			w.create(bound("a", labelled, func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeName, c.Status.Phase = "", v1.ClaimPending })[0])
			idle()
			w.requireGroupError("g", "is not bound")
		}},
		{"63 its class does not exist, or is for another driver", fake.PluginOptions{}, with(two, objectList{g}), func(_ *testing.T, w *world) {
			w.start(w.store)
			idle()
			w.requireGroupError("g", `group snapshot class "x" does not exist`)
			w.create(newGroupClass("x", func(c *groupv1.VolumeGroupSnapshotClass) { c.Driver = "example.com/other" }))
			idle()
			w.requireGroupError("g", "is for driver")
		}},
		{"64 the plugin does not support groups", fake.PluginOptions{Without: volume.CapGroupSnapshot}, asked, func(_ *testing.T, w *world) {
			w.start(w.store)
			idle()
			w.requireGroupError("g", "no group of snapshots can be made")
		}},
		{"65 the plugin fails, or its result is unknown", fake.PluginOptions{}, asked, func(t *testing.T, w *world) {
			w.plugin.Inject(fake.MethodCreateGroupSnapshot, fake.FailN(1, errRefused))
			w.plugin.Inject(fake.MethodCreateGroupSnapshot, fake.FailAfter(volume.Uncertain(errRefused)))
			w.start(w.store)
			idle()
			w.requireGroupError("g", "no room")
			assert.Empty(t, w.membersOf("g"))
			assert.Contains(t, w.claim("a").Finalizers, FinalizerSourceClaim)
			settle()
			w.requireGroupReady("g")
			assert.Len(t, w.handles(), 2)
		}},
		{"66 it is made, and not ready to use yet", fake.PluginOptions{UnreadySnapshots: true}, asked, func(t *testing.T, w *world) {
			w.start(w.store)
			idle()
			assert.False(t, *w.group("g").Status.ReadyToUse)
			assert.Len(t, w.membersOf("g"), 2)
			for _, handle := range w.handles() {
				require.NoError(t, w.plugin.Backend().MakeSnapshotReady(handle))
			}
			settle()
			w.requireGroupReady("g")
			assert.NotContains(t, w.claim("b").Finalizers, FinalizerSourceClaim)
		}},
		{"67 a snapshot of it is deleted", fake.PluginOptions{}, asked, func(t *testing.T, w *world) {
			w.start(w.store)
			idle()
			w.delete(w.membersOf("g")[0])
			settle()
			assert.Len(t, w.membersOf("g"), 2)
			assert.Len(t, w.handles(), 2)
			assert.Contains(t, w.reasons(), "SnapshotDeletePending")
		}},
		{"68 it is deleted, and the policy is Delete", fake.PluginOptions{}, asked, func(t *testing.T, w *world) {
			w.start(w.store)
			idle()
			w.delete(g)
			settle()
			isGone[*groupv1.VolumeGroupSnapshot](w, "default", "g")
			isGone[*groupv1.VolumeGroupSnapshotContent](w, "", "groupsnapcontent-uid-g")
			assert.Empty(t, w.membersOf("g"))
			contents, _, err := store.ListOf[*snapshotv1.VolumeSnapshotContent](t.Context(), w.store, "")
			require.NoError(t, err)
			assert.Empty(t, contents)
			assert.Empty(t, w.handles())
			assert.Zero(t, w.calls(fake.MethodDeleteSnapshot))
		}},
		{"69 it is deleted, and the policy is Retain", fake.PluginOptions{}, with(two, objectList{newGroupClass("x", func(c *groupv1.VolumeGroupSnapshotClass) {
			c.DeletionPolicy = snapshotv1.VolumeSnapshotContentRetain
		}), g}), func(t *testing.T, w *world) {
			w.start(w.store)
			idle()
			w.delete(g)
			settle()
			isGone[*groupv1.VolumeGroupSnapshot](w, "default", "g")
			assert.Empty(t, w.membersOf("g"))
			contents, _, err := store.ListOf[*snapshotv1.VolumeSnapshotContent](t.Context(), w.store, "")
			require.NoError(t, err)
			assert.Len(t, contents, 2)
			assert.Len(t, w.handles(), 2)
		}},
		{"70 a claim is restored from a snapshot of it", fake.PluginOptions{}, asked, func(t *testing.T, w *world) {
			w.start(w.store)
			idle()
			r := begun(restoring("r", w.membersOf("g")[0].Name))
			w.create(r)
			w.delete(g)
			settle()
			assert.Len(t, w.handles(), 2)
			assert.Len(t, w.membersOf("g"), 1)
			change(w, r, func(claim *v1.PersistentVolumeClaim) { claim.Finalizers = nil })
			settle()
			isGone[*groupv1.VolumeGroupSnapshot](w, "default", "g")
			assert.Empty(t, w.handles())
		}},
		{"71 it is bound to a content that was written by hand", fake.PluginOptions{}, two, func(t *testing.T, w *world) {
			var sources []*volume.Spec
			for _, name := range []string{"pv-a", "pv-b"} {
				sources = append(sources, volume.NewSpecFromPersistentVolume(get[*v1.PersistentVolume](w, "", name), false))
			}
			made, err := w.plugin.CreateGroupSnapshot(t.Context(), volume.GroupSnapshotOptions{Name: "old", Sources: sources})
			require.NoError(t, err)
			content := &groupv1.VolumeGroupSnapshotContent{}
			content.Name = "content"
			content.Spec = groupv1.VolumeGroupSnapshotContentSpec{
				VolumeGroupSnapshotRef: v1.ObjectReference{Namespace: "default", Name: "g"}, Driver: driver,
				DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
				Source: groupv1.VolumeGroupSnapshotContentSource{GroupSnapshotHandles: &groupv1.GroupSnapshotHandles{
					VolumeGroupSnapshotHandle: made.Handle, VolumeSnapshotHandles: w.handles(),
				}},
			}
			w.create(content)
			byHand := newGroup("g", "")
			byHand.Spec.Source = groupv1.VolumeGroupSnapshotSource{VolumeGroupSnapshotContentName: new("content")}
			w.create(byHand)
			w.start(w.store)
			idle()
			w.requireGroupReady("g")
			assert.Len(t, w.membersOf("g"), 2)
			w.delete(g)
			settle()
			isGone[*groupv1.VolumeGroupSnapshotContent](w, "", "content")
			assert.Empty(t, w.handles())
		}},
		{"72 its source has a selector and a content, or neither", fake.PluginOptions{}, nil, func(_ *testing.T, w *world) {
			none := newGroup("g", "")
			none.Spec.Source.Selector = nil
			w.create(none)
			w.start(w.store)
			idle()
			w.requireGroupError("g", "not both")
		}},
		{"73 it is deleted while it is unknown whether the plugin made it", fake.PluginOptions{}, asked, func(t *testing.T, w *world) {
			w.plugin.Inject(fake.MethodCreateGroupSnapshot, fake.FailAfter(volume.Uncertain(errRefused)))
			w.start(w.store)
			idle()
			require.Len(t, w.handles(), 2)
			w.delete(g)
			settle()
			isGone[*groupv1.VolumeGroupSnapshot](w, "default", "g")
			assert.Empty(t, w.handles())
			assert.NotContains(t, w.claim("a").Finalizers, FinalizerSourceClaim)
		}},
	})
}
