package persistentvolume

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/controller/internal/work"
	"github.com/volumekit/volumekit/controller/persistentvolume/internal/bind"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// PendingClaim says why a claim has no volume.
type PendingClaim struct {
	// Claim is the claim's namespace and name.
	Claim types.NamespacedName
	// UID is the claim's UID.
	UID types.UID
	// Reason is the reason of the claim's event: [ReasonFailedBinding], [ReasonProvisioningFailed], ...
	Reason string
	// Message explains the reason in one sentence and says what to change.
	Message string
	// Err is the error of a failed provisioning that is tried again. It is nil while the claim only waits.
	Err error
	// Since is when this reason was first found.
	Since time.Time
}

// String returns the claim, the reason and the message.
func (p PendingClaim) String() string { return p.Claim.String() + ": " + p.Reason + ": " + p.Message }

// pendingClaims holds the claims that have no volume, and the reasons.
type pendingClaims struct {
	binder    *bind.Binder
	queue     *work.Queue
	placement placement
	events    volume.EventRecorder

	mu     sync.Mutex
	claims map[types.NamespacedName]PendingClaim
}

func newPendingClaims(binder *bind.Binder, queue *work.Queue, where placement, events volume.EventRecorder) *pendingClaims {
	return &pendingClaims{binder: binder, queue: queue, placement: where, events: events, claims: map[types.NamespacedName]PendingClaim{}}
}

// wait leaves the claim Pending and writes the reason into its status, where the volume manager of a node reads it. A
// change of what the claim waits for wakes it. Nodes are read but not followed. So if the node of the claim is known, wait
// also queues the claim for later, because the node's labels may fit by then.
func (p *pendingClaims) wait(ctx context.Context, claim *v1.PersistentVolumeClaim, why reason) error {
	changed := claim.DeepCopy()
	emptied := bind.WithoutVolume(changed, v1.ClaimPending)
	if why.writeTo(changed) || emptied || objects.LacksProtection(&claim.ObjectMeta, objects.FinalizerClaimProtection) {
		updated, err := p.binder.UpdateClaim(ctx, changed)
		if err != nil {
			return err
		}
		claim = updated
	}
	if p.set(claim, why) {
		p.record(claim, why)
	}
	if p.placement.selected(claim) != "" {
		p.queue.AddLater(work.Item{Kind: work.Claim, Name: store.NameOf(claim)})
	}
	return nil
}

// refuse leaves the claim Pending, because the volume that the claim names, or that names the claim, does not fit. Both get
// an event.
func (p *pendingClaims) refuse(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, why string) error {
	message := fmt.Sprintf("cannot bind to requested volume %q: %s", pv.Name, why)
	return p.wait(ctx, claim, reason{
		eventType: v1.EventTypeWarning, reason: ReasonVolumeMismatch, message: message, volume: pv,
	})
}

// failed stores the reason of a failed provisioning, and writes an event for each attempt.
func (p *pendingClaims) failed(claim *v1.PersistentVolumeClaim, why reason) {
	p.set(claim, why)
	p.record(claim, why)
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

// set stores the reason, and reports whether it is new. A known reason keeps its time.
func (p *pendingClaims) set(claim *v1.PersistentVolumeClaim, why reason) bool {
	pending := PendingClaim{
		Claim: store.NameOf(claim), UID: claim.UID, Reason: why.reason, Message: why.message, Err: why.err, Since: time.Now(),
	}
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

func (p *pendingClaims) record(claim *v1.PersistentVolumeClaim, why reason) {
	p.events.Eventf(claim, why.eventType, why.reason, "%s", why.message)
	if why.volume != nil {
		p.events.Eventf(why.volume, why.eventType, why.reason, "claim %q: %s", store.NameOf(claim), why.message)
	}
}

// reason is why a claim has no volume.
type reason struct {
	eventType, reason, message string
	err                        error                // the error of a plugin or a look-up; nil while the claim only waits
	volume                     *v1.PersistentVolume // a volume that also gets the event; nil if there is none
}

// longestReason is the largest number of bytes of a reason in a claim's status.
const longestReason = 1024

// writeTo writes the reason into the status of a claim, and reports whether that changed the claim. The claim must not be
// shared.
func (r reason) writeTo(claim *v1.PersistentVolumeClaim) bool {
	message := strings.ToValidUTF8(r.message[:min(len(r.message), longestReason)], "")
	return volume.SetUnbound(claim, r.reason, message)
}

// noVolumes is the reason of a claim without a class that waits for a volume. This is not a fault.
func noVolumes() reason {
	return reason{
		eventType: v1.EventTypeNormal, reason: ReasonFailedBinding,
		message: "no persistent volumes available for this claim and no storage class is set",
	}
}

func failedBinding(format string, args ...any) reason {
	return reason{eventType: v1.EventTypeWarning, reason: ReasonFailedBinding, message: fmt.Sprintf(format, args...)}
}

// noEvents drops events.
type noEvents struct{}

func (noEvents) Eventf(runtime.Object, string, string, string, ...any) {}
