package scheduling

import (
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

func TestMistakesOfCallersAreRefused(t *testing.T) {
	inWorld(t, Options{}, twoClaims(), func(w *world) {
		_, err := w.s.Find(nil)
		require.ErrorIs(w.t, err, volume.ErrInvalid)
		for _, p := range []*v1.Pod{nil, {}} {
			_, err = w.s.Reserve(p, "node-1")
			require.ErrorIs(w.t, err, volume.ErrInvalid)
		}
		var refused *RefusalError
		for _, node := range []string{"", "node-9"} {
			_, err = w.s.Reserve(newPod("p", "a"), node)
			require.ErrorAs(w.t, err, &refused)
			require.Equal(w.t, NodeUnknown, refused.Reason)
		}
		for _, r := range []*Reservation{nil, {}} {
			require.ErrorIs(w.t, r.Bind(w.t.Context()), volume.ErrInvalid)
			r.Release()
		}
		r := w.reserve(newPod("p", "a"), "node-1") // without a Find
		recreated := newPod("p", "b")
		recreated.UID = "another"
		_, err = w.s.Reserve(recreated, "node-1")
		require.ErrorIs(w.t, err, ErrReserved)
		b := w.bind(w.t.Context(), r)
		require.ErrorIs(w.t, r.Bind(w.t.Context()), volume.ErrInvalid, "another Bind runs")
		w.finish("a", "a1")
		require.NoError(w.t, b.end(), "the second Bind has not taken its changes")
		r.Release()
		r.Release()
		require.ErrorIs(w.t, r.Bind(w.t.Context()), ErrPlaceAnew)
	})
}

func TestAPodThatIsChangedAfterReserveIsReleasedWhole(t *testing.T) {
	inWorld(t, Options{}, objectsOf(twoClaims(), list(newCSINode("node-1", 2))), func(w *world) {
		p := newPod("p", "a", "b")
		r := w.reserve(p, "node-1")
		p.Name, p.UID, p.Spec = "other", "other", v1.PodSpec{NodeName: "node-2"}
		w.requireRefused(newPod("q", "a"), "node-2", InUseOnOtherNode)
		r.Release()
		x := w.s.index
		require.Empty(w.t, x.reservations)
		require.Empty(w.t, x.claimReservations)
		require.Empty(w.t, x.pods)
		require.Empty(w.t, x.podsOf)
		w.requireFits(newPod("q", "a", "b"), "node-1", "node-2")
	})
}

func TestANodeWithoutLabelsHasWhatAsksForNone(t *testing.T) {
	bare := newNode("bare")
	bare.Labels = nil
	inWorld(t, Options{}, objectsOf(twoClaims(), list(bare, newClaim("any", ofClass("free")), newClass("free"), newVolume("anywhere", volumeClass("free")))), func(w *world) {
		w.requireFits(newPod("p", "a"), "node-1", "node-2")
		w.requireRefused(newPod("p", "a"), "bare", NoVolume)
		w.requireFits(newPod("p", "any"), "bare", "node-1", "node-2", "node-3")
	})
}
