package persistentvolume

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/volume"
)

// Why a claim has no volume is in its status: the newest reason, and none once it is bound.
func TestAClaimSaysWhyItHasNoVolume(t *testing.T) {
	resizing := v1.PersistentVolumeClaimCondition{Type: v1.PersistentVolumeClaimResizing, Status: v1.ConditionTrue}
	claim := newClaim("c", ofClass("x"), func(claim *v1.PersistentVolumeClaim) {
		claim.Status.Conditions = []v1.PersistentVolumeClaimCondition{resizing}
	})
	inWorld(t, objectList{claim}, func(t *testing.T, w *world) {
		w.plugin.Inject(fake.MethodProvision, fake.FailN(2, errors.New("the disks are full")))
		c := w.settle()
		assert.Contains(t, volume.WhyUnbound(w.claim("c")), `storage class "x" does not exist`)
		why, _ := c.Why(claimed("c"))
		assert.Equal(t, why.Reason+": "+why.Message, volume.WhyUnbound(w.claim("c")))

		w.create(newClass("x"))
		idle()
		assert.Contains(t, volume.WhyUnbound(w.claim("c")), ReasonProvisioningFailed)
		assert.Contains(t, volume.WhyUnbound(w.claim("c")), "the disks are full")
		assert.Len(t, w.claim("c").Status.Conditions, 2)

		sleepUntilIdle()
		w.requireBound("c", w.claim("c").Spec.VolumeName)
		assert.Equal(t, []v1.PersistentVolumeClaimCondition{resizing}, w.claim("c").Status.Conditions)
	})
}

// The condition also shows an attempt to provision whose outcome is unknown.
func TestAnUncertainAttemptIsInTheStatusOfTheClaim(t *testing.T) {
	inWorld(t, provisioned, func(t *testing.T, w *world) {
		w.plugin.Inject(fake.MethodProvision, fake.FailN(1, volume.Uncertain(errors.New("no answer"))))
		w.settle()
		assert.Contains(t, volume.WhyUnbound(w.claim("c")), "no answer")
		sleepUntilIdle()
		assert.Empty(t, volume.WhyUnbound(w.claim("c")))
	})
}

// A reason that does not change is written once, and a lost claim says what it has lost.
func TestTheReasonIsWrittenOnce(t *testing.T) {
	inWorld(t, objectList{newClaim("c"), newClaim("lost", completed, names("gone"))}, func(t *testing.T, w *world) {
		w.start(w.store, Options{NodeName: "n"})
		idle()
		assert.Contains(t, volume.WhyUnbound(w.claim("lost")), objects.ReasonClaimLost)
		version := w.claim("c").ResourceVersion
		sleepUntilIdle()
		assert.Equal(t, version, w.claim("c").ResourceVersion)
	})
}

func TestALongReasonIsCut(t *testing.T) {
	claim := newClaim("c")
	assert.True(t, reason{reason: "R", message: strings.Repeat("€", 1000)}.writeTo(claim))
	message := claim.Status.Conditions[0].Message
	assert.LessOrEqual(t, len(message), longestReason)
	assert.True(t, utf8.ValidString(message))
	assert.False(t, reason{reason: "R", message: strings.Repeat("€", 1000)}.writeTo(claim))
}
