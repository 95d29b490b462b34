package persistentvolume

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// sameStorage makes a volume name the storage of another one.
func sameStorage(of string) func(*v1.PersistentVolume) {
	return func(pv *v1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = of }
}

// Two volumes name the same storage. It is neither deleted nor emptied while the other volume may be wanted.
func TestStorageOfAnotherVolumeIsNotReclaimed(t *testing.T) {
	for _, how := range []v1.PersistentVolumeReclaimPolicy{v1.PersistentVolumeReclaimDelete, v1.PersistentVolumeReclaimRecycle} {
		for name, other := range map[string]objectList{
			"bound":    {newClaim("d", completed, names("b")), newVolume("b", sameStorage("a"), refTo("d", "uid-d"), policy(how))},
			"free":     {newVolume("b", sameStorage("a"), policy(how))},
			"retained": {newVolume("b", sameStorage("a"), refTo("d", "uid-d"), policy(v1.PersistentVolumeReclaimRetain))},
			"reserved": {newVolume("b", sameStorage("a"), refTo("d", ""), policy(how))},
		} {
			t.Run(name+", "+string(how), func(t *testing.T) {
				inWorld(t, append(other, newVolume("a", refTo("c", "uid-c"), policy(how))), func(t *testing.T, w *world) {
					require.NoError(t, w.plugin.Backend().Create("a", 1<<30))
					_, stop := w.start(w.store, Options{})
					sleepUntilIdle()
					assert.Zero(t, w.calls(fake.MethodDelete)+w.calls(fake.MethodRecycle))
					assert.Equal(t, v1.VolumeReleased, w.volume("a").Status.Phase)
					assert.Contains(t, w.volume("a").Status.Message, `volume "b" has the same storage`)

					if name == "bound" {
						stop() // Otherwise the claim may get its volume again, before that is deleted.
					}
					pv := w.volume("b")
					pv.Finalizers, pv.Spec.ClaimRef = nil, nil
					_, err := w.store.Update(t.Context(), pv)
					require.NoError(t, err)
					w.delete(newVolume("b"))
					if name == "bound" {
						w.start(w.store, Options{})
					}
					sleepUntilIdle()
					assert.Equal(t, 1, w.calls(fake.MethodDelete)+w.calls(fake.MethodRecycle), "it is the only one now")
				})
			})
		}
	}
}

// Volumes of one storage whose claims are all gone are deleted, and the storage with them.
func TestStorageOfSeveralVolumesGoesWithTheLast(t *testing.T) {
	objects := objectList{
		newVolume("a", refTo("c", "uid-c"), policy(v1.PersistentVolumeReclaimDelete)),
		newVolume("b", sameStorage("a"), refTo("d", "uid-d"), policy(v1.PersistentVolumeReclaimDelete)), newClaim("d", completed, names("b")),
	}
	inWorld(t, objects, func(t *testing.T, w *world) {
		require.NoError(t, w.plugin.Backend().Create("a", 1<<30))
		w.settle()
		require.Equal(t, []string{"a"}, w.plugin.Backend().Handles())
		w.delete(newClaim("d"))
		sleepUntilIdle()
		assert.Empty(t, w.plugin.Backend().Handles())
		w.requireNoVolume("a")
		w.requireNoVolume("b")
	})
}

// Two claims of a user's store have one UID, and so would have one volume. The second one, which the volume does not fit, gets
// none, and the first one keeps its storage.
func TestAClaimOfAnotherWithItsUIDTakesNoStorage(t *testing.T) {
	inWorld(t, provisioned, func(t *testing.T, w *world) {
		w.settle()
		w.requireBound("c", made)
		w.create(newClaim("d", func(claim *v1.PersistentVolumeClaim) {
			claim.UID = "uid-c"
			claim.Spec.StorageClassName = w.claim("c").Spec.StorageClassName
			claim.Spec.Resources.Requests = size("9Gi")
		}))
		sleepUntilIdle()
		assert.NotEmpty(t, w.plugin.Backend().Handles())
		assert.Zero(t, w.calls(fake.MethodDelete))
		w.requireBound("c", made)
		assert.NotEqual(t, v1.ClaimBound, w.claim("d").Status.Phase)
	})
}

// A plugin may return the volume of another claim, which does not fit. A volume that has an object is not discarded.
func TestStorageWithAnObjectIsNotDiscarded(t *testing.T) {
	inWorld(t, provisioned, func(t *testing.T, w *world) {
		c := w.settle()
		err := c.storage.Discard(t.Context(), w.claim("c"), w.volume(made), assert.AnError)
		require.ErrorIs(t, err, assert.AnError)
		require.ErrorIs(t, err, volume.ErrInUse)
		require.ErrorIs(t, err, volume.ErrUncertain)
		assert.Zero(t, w.calls(fake.MethodDelete))
	})
}

// Another volume with the same storage counts as soon as it is in the store, also if no event has reported it.
func TestStorageOfAVolumeThatNoEventReportedIsNotReclaimed(t *testing.T) {
	for _, how := range []v1.PersistentVolumeReclaimPolicy{v1.PersistentVolumeReclaimDelete, v1.PersistentVolumeReclaimRecycle} {
		t.Run(string(how), func(t *testing.T) {
			inWorld(t, objectList{newVolume("a", refTo("c", "uid-c"), policy(how)), newPod("p", "n", "c")}, func(t *testing.T, w *world) {
				require.NoError(t, w.plugin.Backend().Create("a", 1<<30))
				s := &gap{Store: w.store, kind: store.PersistentVolumes}
				w.start(s, Options{})
				idle()
				w.create(newVolume("b", sameStorage("a")))
				w.delete(newPod("p", "n", "c"))
				sleepUntilIdle()
				assert.Zero(t, w.calls(fake.MethodDelete)+w.calls(fake.MethodRecycle))
				assert.Contains(t, w.volume("a").Status.Message, `volume "b"`)
				w.delete(newVolume("b"))
				s.close()
				assert.Equal(t, 1, w.calls(fake.MethodDelete)+w.calls(fake.MethodRecycle))
			})
		})
	}
}

// at makes a volume a path of the node.
func at(path string) func(*v1.PersistentVolume) {
	return func(pv *v1.PersistentVolume) {
		pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: path}}
	}
}

// A volume whose directory contains that of another volume is not reclaimed: the other one's would go with it. The one below is
// reclaimed: only its own directory goes.
func TestADirectoryWithAnotherVolumeInItIsNotReclaimed(t *testing.T) {
	const says = `volume "below" has the same storage, or a part of it`
	gone := refTo("c", "uid-c")
	for _, how := range []v1.PersistentVolumeReclaimPolicy{v1.PersistentVolumeReclaimDelete, v1.PersistentVolumeReclaimRecycle} {
		for name, below := range map[string]*v1.PersistentVolume{
			"free":          newVolume("below", at("/base/a/x"), policy(how)),
			"to be emptied": newVolume("below", at("/base/a/x"), policy(v1.PersistentVolumeReclaimRecycle), refTo("d", "uid-d")),
			"to be kept":    newVolume("below", at("/base/a/x/"), policy(v1.PersistentVolumeReclaimRetain), refTo("d", "uid-d")),
			"of a local plugin": newVolume("below", func(pv *v1.PersistentVolume) {
				pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: "/base/a/x"}}
			}),
		} {
			t.Run(name+", "+string(how), func(t *testing.T) {
				inWorld(t, objectList{newVolume("a", at("/base/a"), gone, policy(how)), below}, func(t *testing.T, w *world) {
					w.settle()
					sleepUntilIdle()
					assert.Contains(t, w.volume("a").Status.Message, says)
					assert.Equal(t, v1.VolumeReleased, w.volume("a").Status.Phase)
					pv := w.volume("below")
					assert.NotContains(t, pv.Status.Message, "same storage")
					pv.Finalizers, pv.Spec.ClaimRef = nil, nil
					_, err := w.store.Update(t.Context(), pv)
					require.NoError(t, err)
					w.delete(below)
					assert.Contains(t, w.volume("a").Status.Message, "nothing here can", "no plugin of this test reclaims a path")
				})
			})
		}
	}
}

// The directories of volumes whose claims are all gone go together.
func TestADirectoryGoesWithTheDeletedVolumesInIt(t *testing.T) {
	deletes := policy(v1.PersistentVolumeReclaimDelete)
	objects := objectList{newVolume("a", at("/base/a"), refTo("c", "uid-c"), deletes), newVolume("below", at("/base/a/x"), refTo("d", "uid-d"), deletes)}
	inWorld(t, objects, func(t *testing.T, w *world) {
		w.settle()
		sleepUntilIdle()
		assert.Contains(t, w.volume("a").Status.Message, "nothing here can", "no plugin of this test reclaims a path")
	})
}

// A plugin may return storage that it made for an earlier claim of the same name, and that another volume has kept since. It is
// not discarded.
func TestStorageOfAnotherVolumeIsNotDiscarded(t *testing.T) {
	retained := newVolume("old", refTo("c", "uid-of-the-first"), policy(v1.PersistentVolumeReclaimRetain))
	inWorld(t, objectList{newClaim("c"), retained}, func(t *testing.T, w *world) {
		require.NoError(t, w.plugin.Backend().Create("old", 1<<30))
		c := w.settle()
		err := c.storage.Discard(t.Context(), w.claim("c"), newVolume("new", sameStorage("old")), assert.AnError)
		require.ErrorIs(t, err, assert.AnError)
		require.ErrorIs(t, err, volume.ErrInUse)
		require.ErrorIs(t, err, volume.ErrUncertain)
		assert.Zero(t, w.calls(fake.MethodDelete))
	})
}
