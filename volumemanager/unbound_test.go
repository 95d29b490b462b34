package volumemanager

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// Who waits for a pod hears why its claim has no volume: the newest word of the controller that has written it into the claim.
func TestWhyAClaimHasNoVolumeReachesWhoWaitsForThePod(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		pvc := w.create(claimOfName("data")).(*v1.PersistentVolumeClaim)
		w.start().PodsComplete()
		pod := podOf("web", "data")
		require.NoError(t, w.manager.AddPod(t.Context(), pod))
		says := func() string {
			synctest.Wait()
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			return w.manager.WaitForAttachAndMount(ctx, pod).Error()
		}
		assert.Contains(t, says(), `claim "default/data" is not bound to a volume yet (phase "")`)
		assert.Contains(t, says(), "no controller has looked at it: is controller/persistentvolume")
		w.changeClaim("data", func(claim *v1.PersistentVolumeClaim) { claim.Status.Phase = v1.ClaimPending })
		assert.Contains(t, says(), `(phase "Pending"): claim is not ready`)
		w.changeClaim("data", func(claim *v1.PersistentVolumeClaim) {
			volume.SetUnbound(claim, "FailedBinding", `storage class "fast" does not exist`)
		})
		assert.Contains(t, says(), `claim "default/data" is not bound to a volume yet: FailedBinding: storage class "fast" does not exist`)
		w.changeClaim("data", func(claim *v1.PersistentVolumeClaim) {
			volume.SetUnbound(claim, "ProvisioningFailed", "the disks are full")
		})
		assert.Contains(t, says(), "ProvisioningFailed: the disks are full")
		w.create(volumeOfClaim(pvc))
		w.bind("data")
		require.NoError(t, w.manager.WaitForAttachAndMount(t.Context(), pod))
	})
}
