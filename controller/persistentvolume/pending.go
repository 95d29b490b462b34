package persistentvolume

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// PendingClaim says why a claim has no volume.
type PendingClaim struct {
	// Claim is the claim's namespace and name.
	Claim types.NamespacedName
	// UID is the claim's UID.
	UID types.UID
	// Reason is one of the reasons of events: [ReasonFailedBinding], [ReasonProvisioningFailed], ...
	Reason string
	// Message says it in one sentence, with what to change.
	Message string
	// Err is the error of a provisioning that failed and is tried again; nil while the claim only waits.
	Err error
	// Since is when this reason was first found.
	Since time.Time
}

// String returns the claim, the reason and the message.
func (p PendingClaim) String() string { return p.Claim.String() + ": " + p.Reason + ": " + p.Message }

// Why returns why a claim is not bound, and false when nothing is known against it: it is bound, gone, or was not looked
// at yet. It is known here before the event that says it to people is recorded.
func (c *Controller) Why(claim types.NamespacedName) (PendingClaim, bool) {
	return c.pending.get(claim)
}

// Pending returns every claim that was found to have no volume, and why, sorted by name.
func (c *Controller) Pending() []PendingClaim {
	all := c.pending.all()
	slices.SortFunc(all, func(a, b PendingClaim) int { return strings.Compare(a.Claim.String(), b.Claim.String()) })
	return all
}

// pendingClaims are the claims that have no volume.
type pendingClaims struct {
	mu     sync.Mutex
	claims map[types.NamespacedName]PendingClaim
}

func newPendingClaims() *pendingClaims {
	return &pendingClaims{claims: map[types.NamespacedName]PendingClaim{}}
}

func (p *pendingClaims) get(name types.NamespacedName) (PendingClaim, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pending, ok := p.claims[name]
	return pending, ok
}

func (p *pendingClaims) all() []PendingClaim {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Values(p.claims))
}

// set reports whether that is news. What is no news is as old as it was.
func (p *pendingClaims) set(pending PendingClaim) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	old, ok := p.claims[pending.Claim]
	known := ok && old.UID == pending.UID && old.Reason == pending.Reason && old.Message == pending.Message
	if known {
		pending.Since = old.Since
	}
	p.claims[pending.Claim] = pending
	return !known
}

func (p *pendingClaims) remove(name types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.claims, name)
}

// waits keeps why the claim has no volume, and tells people once.
func (c *Controller) waits(claim *v1.PersistentVolumeClaim, why reason) {
	if c.pending.set(pendingFor(claim, why)) {
		c.tell(claim, why)
	}
}

func pendingFor(claim *v1.PersistentVolumeClaim, why reason) PendingClaim {
	return PendingClaim{
		Claim: store.NameOf(claim), UID: claim.UID, Reason: why.reason, Message: why.message, Err: why.err, Since: time.Now(),
	}
}

func (c *Controller) tell(claim *v1.PersistentVolumeClaim, why reason) {
	c.options.Events.Eventf(claim, why.eventType, why.reason, "%s", why.message)
	if why.volume != nil {
		c.options.Events.Eventf(why.volume, why.eventType, why.reason, "claim %q: %s", store.NameOf(claim), why.message)
	}
}

// reason is why a claim has no volume.
type reason struct {
	eventType, reason, message string
	err                        error                // of a plugin or a look-up; nil while the claim only waits
	volume                     *v1.PersistentVolume // that is to be told too; nil when there is none
}

// longestReason is how many bytes of a reason a claim's status holds.
const longestReason = 1024

// writeTo writes the reason into the status of a claim, and reports whether that is news. The claim must not be shared.
func (r reason) writeTo(claim *v1.PersistentVolumeClaim) bool {
	message := strings.ToValidUTF8(r.message[:min(len(r.message), longestReason)], "")
	return volume.SetUnbound(claim, r.reason, message)
}

// The reasons of events, which are those of Kubernetes.
const (
	// ReasonFailedBinding says that no volume fits and none can be made.
	ReasonFailedBinding = "FailedBinding"
	// ReasonVolumeMismatch says that the claim and the volume that it names do not fit.
	ReasonVolumeMismatch = "VolumeMismatch"
	// ReasonWaitForFirstConsumer says that the volume is made when the node of the claim's pod is known.
	ReasonWaitForFirstConsumer = "WaitForFirstConsumer"
	// ReasonWaitForPodScheduled says that the volume is made when the pod that uses the claim has a node.
	ReasonWaitForPodScheduled = "WaitForPodScheduled"
	// ReasonExternalProvisioning says that no plugin here provisions for the class.
	ReasonExternalProvisioning = "ExternalProvisioning"
	// ReasonProvisioningFailed says that the plugin could not make a volume; it is tried again.
	ReasonProvisioningFailed = "ProvisioningFailed"
	// ReasonProvisioningSucceeded says that the plugin has made a volume.
	ReasonProvisioningSucceeded = "ProvisioningSucceeded"
	// ReasonProvisioningCleanupFailed says that storage was made that could neither be recorded nor deleted.
	ReasonProvisioningCleanupFailed = "ProvisioningCleanupFailed"
	// ReasonClaimLost says that the claim's volume is gone.
	ReasonClaimLost = "ClaimLost"
	// ReasonClaimMisbound says that the claim's volume belongs to another claim.
	ReasonClaimMisbound = "ClaimMisbound"
	// ReasonVolumeDelete says that the volume is still in use; deleting it is tried again.
	ReasonVolumeDelete = "VolumeDelete"
	// ReasonVolumeFailedDelete says that the volume could not be deleted; it is tried again.
	ReasonVolumeFailedDelete = "VolumeFailedDelete"
	// ReasonVolumeFailedRecycle says that the volume cannot be recycled, or could not be and is tried again.
	ReasonVolumeFailedRecycle = "VolumeFailedRecycle"
	// ReasonVolumeRecycled says that nothing is left in the volume and that it may be had again.
	ReasonVolumeRecycled = "VolumeRecycled"
	// ReasonVolumeUnknownReclaimPolicy says that the volume's reclaim policy is none that is known.
	ReasonVolumeUnknownReclaimPolicy = "VolumeUnknownReclaimPolicy"
)

// noEvents tells nobody.
type noEvents struct{}

func (noEvents) Eventf(runtime.Object, string, string, string, ...any) {}
