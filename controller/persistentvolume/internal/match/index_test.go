package match

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

func waitingFor(t *testing.T, claims ...*v1.PersistentVolumeClaim) *waiting {
	t.Helper()
	w := newWaiting()
	for _, claim := range claims {
		n, err := NewNeed(claim, nil)
		require.NoError(t, err)
		w.add(n)
	}
	return w
}

// A volume goes to the claim that wastes least of it, of equal ones to the first, and to one claim at a time.
func TestAVolumeIsOfferedToOneClaim(t *testing.T) {
	w := waitingFor(t, newClaim("small"), newClaim("first", asks("2Gi")), newClaim("second", asks("2Gi")), newClaim("large", asks("9Gi")))
	for _, want := range []string{"first", "second", "small"} {
		got, ok := w.offer(newVolume("v-"+want, holds("4Gi")))
		require.True(t, ok)
		assert.Equal(t, claimed(want), got)
	}
	_, ok := w.offer(newVolume("v", holds("4Gi")))
	assert.False(t, ok, "the one that is left asks for more")
}

// What a claim does not take is offered to the next, and not to the same one before it has changed.
func TestWhatIsNotTakenIsOfferedToTheNext(t *testing.T) {
	w := waitingFor(t, newClaim("a"), newClaim("b"))
	pv := newVolume("v")
	got, _ := w.offer(pv)
	require.Equal(t, claimed("a"), got)
	assert.Equal(t, "v", w.endOffer(got))
	assert.Empty(t, w.endOffer(got), "it has answered")
	got, _ = w.offer(pv)
	require.Equal(t, claimed("b"), got)
	assert.Equal(t, "v", w.remove(got), "it went away with the offer")
	_, ok := w.offer(pv)
	assert.False(t, ok)
	pv.ResourceVersion = "2"
	got, _ = w.offer(pv)
	assert.Equal(t, claimed("a"), got)
	w.remove(got)
	assert.Empty(t, w.groups)
	assert.Empty(t, w.claims)
}

// A volume that is offered to a claim is taken by no other, however well it fits, until the offer is withdrawn.
func TestWhatIsOfferedIsKeptForTheClaim(t *testing.T) {
	pv := newVolume("v", holds("4Gi"))
	there := true
	s := newAvailable(func(string) (*v1.PersistentVolume, bool) { return pv, there })
	large, err := NewNeed(newClaim("large", asks("4Gi")), nil)
	require.NoError(t, err)
	small, err := NewNeed(newClaim("small"), nil)
	require.NoError(t, err)
	keepForLarge := func(*v1.PersistentVolume) (types.NamespacedName, bool) { return claimed("large"), true }
	none := func(*v1.PersistentVolume) (types.NamespacedName, bool) {
		t.Error("it is offered to no other claim")
		return types.NamespacedName{}, false
	}

	s.offer(pv, none)
	s.refresh("v")
	s.offer(pv, keepForLarge)
	s.offer(pv, none)
	assert.Nil(t, s.take(small))
	s.refresh("v")
	assert.Nil(t, s.take(small), "an event of the volume changes nothing")
	s.withdraw("v", claimed("small"))
	assert.Nil(t, s.take(small), "that was not its offer")
	require.NotNil(t, s.take(large))
	assert.Empty(t, s.keptFor)

	s.giveBack("v")
	s.offer(pv, keepForLarge)
	s.withdraw("v", claimed("large"))
	require.NotNil(t, s.take(small))
	s.giveBack("v")
	s.offer(pv, keepForLarge)
	there = false
	s.refresh("v")
	assert.Empty(t, s.keptFor)
}

// A claim that is made again under its name while a volume is offered to the old one leaves that to others.
func TestAnOfferToAClaimThatIsGoneIsOfferedAgain(t *testing.T) {
	w := waitingFor(t, newClaim("c"))
	got, ok := w.offer(newVolume("v"))
	require.True(t, ok)
	next, err := NewNeed(newClaim("c", func(claim *v1.PersistentVolumeClaim) { claim.UID = "second" }), nil)
	require.NoError(t, err)
	assert.Equal(t, "v", w.add(next))
	assert.Empty(t, w.endOffer(got))
	again, err := NewNeed(newClaim("c", func(claim *v1.PersistentVolumeClaim) { claim.UID = "third" }), nil)
	require.NoError(t, err)
	assert.Empty(t, w.add(again))
	got, ok = w.offer(newVolume("v"))
	require.True(t, ok)
	assert.Equal(t, "v", w.endOffer(got))
	w.remove(got)
	assert.Empty(t, w.groups, "nothing is left of those that are gone")
}

// No other claim gets a volume that was taken, until it is given back.
func TestWhatIsTakenIsNotTakenTwice(t *testing.T) {
	pv := newVolume("v")
	s := newAvailable(func(string) (*v1.PersistentVolume, bool) { return pv, pv != nil })
	n, err := NewNeed(newClaim("c"), nil)
	require.NoError(t, err)
	s.refresh("v")
	require.NotNil(t, s.take(n))
	s.refresh("v")
	assert.Nil(t, s.take(n))
	assert.True(t, s.giveBack("v"))
	assert.NotNil(t, s.take(n))
	pv = nil
	assert.False(t, s.giveBack("v"))
	assert.Empty(t, s.groups)
	assert.Empty(t, s.taken)
}
