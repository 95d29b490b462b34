package volumemanager

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/populator"
)

// These errors say what keeps a pod from a volume. Match them with errors.Is.
var (
	// ErrClaimNotReady matches a claim that the pod cannot use yet: the claim is missing, not bound, or being deleted, or
	// its PersistentVolume is missing or belongs to another claim. The manager tries again when the store changes.
	ErrClaimNotReady = populator.ErrClaimNotReady
	// ErrVolumeChanged matches the refusal of an update that changes a volume of the pod under the same name: its source,
	// its read-only flag, or the group that owns its files. Remove the pod and add it again.
	ErrVolumeChanged = populator.ErrVolumeChanged
	// ErrPluginAwaited matches a volume that no registered plugin serves while Options.Prober may still find one. The
	// manager tries again when the prober finds a plugin.
	ErrPluginAwaited = populator.ErrPluginAwaited
)

// AddPod adds a pod to this node: the manager makes its volumes available. The manager copies those parts of pod that it
// uses, and the caller may change pod afterwards. It does not keep what containers run, their probes, or scheduling. Adding
// a pod again updates it, as UpdatePod does. After [Manager.RemovePod] the same UID is another pod: the first pod's volumes
// are torn down before anything is set up, and reported ready, for the second. A program that may be killed in between must
// wait for [Manager.WaitForUnmount] before it uses a UID again: the next program cannot tell the two pods apart.
//
// AddPod returns an error, and changes nothing, for a mistake that only the caller can correct: malformed names or mounts, a
// volume that no plugin or more than one plugin serves, a block device that is mounted, a claim without a store. The error
// matches [volume.ErrInvalid], [volume.ErrUnsupported], [volume.ErrNoPlugin] or [volume.ErrMultiplePlugins]. A state that
// may change by itself is no error: a claim that is missing or not bound, or a store that cannot be read. The manager tries
// again when it changes; [Manager.PodStatus] and the error of a wait say why the pod is not ready. ctx bounds the reads of
// the store. If it ends before them, AddPod changes nothing and returns the error of ctx.
func (m *Manager) AddPod(ctx context.Context, pod *v1.Pod) error { return m.populator.Add(ctx, pod) }

// UpdatePod updates a pod that was added: it may gain or lose volumes, and a volume is set up again if its plugin asks for
// it. Errors are those of AddPod; for a pod that was not added, the error matches [volume.ErrInvalid]. An update that
// changes the source, the read-only flag or the fsGroup of a volume that the pod has changes nothing, and the error matches
// [ErrVolumeChanged].
func (m *Manager) UpdatePod(ctx context.Context, pod *v1.Pod) error {
	return m.populator.Update(ctx, pod)
}

// RemovePod tears down the volumes of a pod. By calling it, the caller promises that no process of the pod is alive or will
// start; only RemovePod takes volumes from a pod. It returns at once: see [Manager.WaitForUnmount]. A pod that was not added
// is no error: what a restart has found of it is torn down. With its last volume, the pod's directories above the volumes
// are removed, by rmdir only: foreign files in them stay. For an empty or malformed uid the error matches
// [volume.ErrInvalid].
func (m *Manager) RemovePod(uid types.UID) error {
	if err := volume.CheckPathElement(string(uid)); err != nil {
		return fmt.Errorf("UID of the pod to be removed: %w", err)
	}
	m.populator.Remove(uid)
	return nil
}
