package persistentvolume

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/internal/crashstore"
	"github.com/volumekit/volumekit/store"
)

// story has everything that the controller does: claims are bound and provisioned, early and late, for pods too; then they are
// deleted, and their volumes are kept, deleted and recycled.
var (
	story = objectList{
		newClass("fast"), newClass("late", late),
		newVolume("kept", inClass("keep"), policy(v1.PersistentVolumeReclaimRetain)), newClaim("keeps", ofClass("keep")),
		newVolume("burnt", refTo("burns", ""), policy(v1.PersistentVolumeReclaimDelete)), newClaim("burns"),
		newVolume("washed", inClass("wash"), policy(v1.PersistentVolumeReclaimRecycle)), newClaim("washes", ofClass("wash")),
		newClaim("made", ofClass("fast")), newClaim("waits", ofClass("late")), newPod("p", "n", "waits"),
		&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}},
		newVolume("scratch", policy(v1.PersistentVolumeReclaimRetain)), withEphemeral("q", "uid-q"),
	}
	storyEnds = objectList{
		withEphemeral("q", "uid-q"), newPod("p", "n", "waits"),
		newClaim("keeps"), newClaim("burns"), newClaim("washes"), newClaim("made"), newClaim("waits"),
	}
)

// ends is how a story ended: what is in the store and in the backend, without what differs each time.
func (w *world) ends() []string {
	w.t.Helper()
	var lines []string
	claims, _, err := store.ListOf[*v1.PersistentVolumeClaim](w.t.Context(), w.store, "")
	require.NoError(w.t, err)
	for _, claim := range claims {
		lines = append(lines, fmt.Sprintln("claim", claim.Name, claim.Status.Phase, claim.Spec.VolumeName, claim.Finalizers))
	}
	volumes, _, err := store.ListOf[*v1.PersistentVolume](w.t.Context(), w.store, "")
	require.NoError(w.t, err)
	for _, pv := range volumes {
		owner := ""
		if pv.Spec.ClaimRef != nil {
			owner = pv.Spec.ClaimRef.Name
		}
		lines = append(lines, fmt.Sprintln("volume", pv.Name, pv.Status.Phase, owner, pv.Finalizers))
	}
	return append(lines, fmt.Sprintln("storage", slices.Sorted(slices.Values(w.plugin.Backend().Handles()))))
}

// tell has a controller that dies at a write live the story, and another one go on. It returns how each half ended, and how many
// writes there were.
func tell(t *testing.T, dies int, arrives, transacts bool) (middle, end []string, writes int) {
	t.Helper()
	inWorld(t, story, func(t *testing.T, w *world) {
		s := crashstore.New(w.store, crashstore.Crash{After: dies, Arrives: arrives})
		seen := store.Store(s)
		if transacts {
			transactor, ok := w.store.(store.Transactor)
			require.True(t, ok)
			seen = crashstore.Transactor{Store: s, Under: transactor}
		}
		_, stop := w.start(seen, Options{Workers: 1})
		idle()
		goOn := sync.OnceFunc(func() { stop(); w.start(w.store, Options{Workers: 1}) })
		if s.IsCrashed() {
			goOn()
		}
		sleepUntilIdle()
		middle = w.ends()
		for _, obj := range storyEnds {
			w.delete(obj)
		}
		if s.IsCrashed() {
			goOn()
		}
		sleepUntilIdle()
		end, writes = w.ends(), s.Steps()
	})
	return middle, end, writes
}

// A controller that dies at any of its writes, be it that the write was lost or its answer, leaves what the next one brings to
// the same end.
func TestTheNextControllerComesToTheSameEndWhereverThisOneDied(t *testing.T) {
	for name, transacts := range map[string]bool{"writes one by one": false, "transactions": true} {
		t.Run(name, func(t *testing.T) {
			middle, end, writes := tell(t, 1<<30, false, transacts)
			require.Contains(t, middle, fmt.Sprintln("claim", "waits", v1.ClaimBound, "pvc-uid-waits", []string{objects.FinalizerClaimProtection}))
			require.Contains(t, middle, fmt.Sprintln("claim", "q-scratch", v1.ClaimBound, "scratch", []string{objects.FinalizerClaimProtection}))
			require.Contains(t, end, fmt.Sprintln("volume", "washed", v1.VolumeAvailable, "", []string{objects.FinalizerVolumeProtection}))
			require.Contains(t, end, fmt.Sprintln("volume", "scratch", v1.VolumeReleased, "q-scratch", []string{objects.FinalizerVolumeProtection}))
			require.Len(t, end, 4, "no claim is left, and nothing that was made")
			require.Greater(t, writes, 25)
			for k := range writes {
				for _, arrives := range []bool{false, true} {
					gotMiddle, gotEnd, _ := tell(t, k, arrives, transacts)
					assert.Equal(t, middle, gotMiddle, "died at write %d, which arrived: %v", k, arrives)
					assert.Equal(t, end, gotEnd, "died at write %d, which arrived: %v", k, arrives)
				}
			}
		})
	}
}
