package volumemanager

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/populator"
)

// What keeps a pod from a volume. Match them with errors.Is.
var (
	// ErrClaimNotReady matches what keeps a pod from its claim for now: the claim is missing, not bound, or being deleted, or
	// its PersistentVolume is missing or belongs to another claim. The pod is looked at again when the store changes.
	ErrClaimNotReady = populator.ErrClaimNotReady
	// ErrVolumeChanged matches the refusal to change a volume under the name that a pod has it by: its source, its read-only
	// flag, or the group that its files belong to. Remove the pod and add it again.
	ErrVolumeChanged = populator.ErrVolumeChanged
	// ErrPluginAwaited matches what keeps a pod from a volume that no plugin serves, where Options.Prober may tell of one. The
	// pod is looked at again when it does.
	ErrPluginAwaited = populator.ErrPluginAwaited
)

// AddPod says that pod is to run on this node, so that its volumes are wanted. What is used of pod is
// copied, so that the caller may change it afterwards; what containers run, probes and scheduling are not. Adding a pod again updates
// it, as UpdatePod does. After [Manager.RemovePod] the same UID is another pod: what is set up for the first one is torn down
// before anything is set up, and reported ready, for the second one. A program that may be killed in between waits for
// [Manager.WaitForUnmount] before it uses a UID again: the next program cannot tell the two pods apart.
//
// A mistake that only the caller can mend is returned, and nothing is changed then: malformed names or mounts, a volume that no
// plugin or more than one plugin serves, a block device that is mounted, a claim without a store. It matches [volume.ErrInvalid],
// [volume.ErrUnsupported], [volume.ErrNoPlugin] or [volume.ErrMultiplePlugins]. What may come right by itself is no
// error: a claim that is missing or not bound, or a store that cannot be read. The pod is looked at again when that
// changes; [Manager.PodStatus] and the error of a wait say why it is not ready. ctx bounds the reads of the store; when it
// ends before they have, nothing is changed and the error is that of ctx.
func (m *Manager) AddPod(ctx context.Context, pod *v1.Pod) error { return m.populator.Add(ctx, pod) }

// UpdatePod says that a pod that was added has changed: volumes may have come or gone, and those whose plugin asks for
// it are set up again. Errors are those of AddPod; a pod that was not added matches [volume.ErrInvalid]. Another source,
// read-only flag or fsGroup of a volume that the pod has matches [ErrVolumeChanged], and nothing is changed.
func (m *Manager) UpdatePod(ctx context.Context, pod *v1.Pod) error {
	return m.populator.Update(ctx, pod)
}

// RemovePod takes its volumes from a pod. It is the promise that no process of the pod is alive, and will be; nothing
// else takes volumes from a pod. It returns at once: see [Manager.WaitForUnmount]. A pod that was not added is no error:
// what a restart left of it is undone. The pod's directories above its volumes go with the last of them, by rmdir: what
// somebody else keeps there stays. An empty or malformed uid matches [volume.ErrInvalid].
func (m *Manager) RemovePod(uid types.UID) error {
	if err := volume.CheckPathElement(string(uid)); err != nil {
		return fmt.Errorf("UID of the pod to be removed: %w", err)
	}
	m.populator.Remove(uid)
	return nil
}
