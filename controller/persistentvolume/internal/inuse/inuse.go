// Package inuse finds the users of a claim or a volume. A user in a mirror counts. Only the store proves that there is
// none.
package inuse

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/controller/internal/work"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// MountReporter reports mounted volumes.
type MountReporter interface {
	// WaitForVolumeUnused returns nil when nothing uses the volume any more. With an ended context it answers at once.
	WaitForVolumeUnused(ctx context.Context, pv *v1.PersistentVolume) error
}

// Options are the sources of a [Tracker]. All but Mounts and NodeName are required.
type Options struct {
	// Store is read for users that the mirrors do not have; Plugins name volumes; Queue gets the items whose use has
	// ended.
	Store   store.Store
	Plugins *volume.VolumePluginMgr
	Queue   *work.Queue
	// Claims, Volumes, Pods and Attachments are the mirrors of the store; PodsOf returns the pods that refer to a claim,
	// AttachmentsOf the attachments of a volume, each by its name, and VolumesIn the volumes by objects.StoragesAround.
	Claims        *store.Mirror[*v1.PersistentVolumeClaim]
	Volumes       *store.Mirror[*v1.PersistentVolume]
	VolumesIn     *store.Index[*v1.PersistentVolume, string]
	Pods          *store.Mirror[*v1.Pod]
	PodsOf        *store.Index[*v1.Pod, types.NamespacedName]
	Attachments   *store.Mirror[*storagev1.VolumeAttachment]
	AttachmentsOf *store.Index[*storagev1.VolumeAttachment, string]
	// Mounts reports mounted volumes; nil if this process mounts none.
	Mounts MountReporter
	// NodeName is the only node; empty if there are several.
	NodeName types.NodeName
}

// Tracker finds the users of a claim or a volume. Make it with [New]. Its methods may be called from several goroutines
// at once.
type Tracker struct {
	with        Options
	pods        *lookups[podsOf, []*v1.Pod]
	sharers     *lookups[sharersOf, []*v1.PersistentVolume]
	claims      *lists[*v1.PersistentVolumeClaim]
	allPods     *lists[*v1.Pod]
	attachments *lists[*storagev1.VolumeAttachment]
	nodes       *lists[*v1.Node]
}

// New returns a Tracker. It reads nothing yet.
func New(options Options) *Tracker {
	return &Tracker{
		with: options, pods: newLookups[podsOf, []*v1.Pod](), sharers: newLookups[sharersOf, []*v1.PersistentVolume](),
		claims: newLists[*v1.PersistentVolumeClaim](options.Store), allPods: newLists[*v1.Pod](options.Store),
		attachments: newLists[*storagev1.VolumeAttachment](options.Store), nodes: newLists[*v1.Node](options.Store),
	}
}

// Use is the use of a claim or a volume.
type Use struct {
	// By describes the user; empty if there is none.
	By string
	// Err is the result of the item's sync: nil if an event will report the end of the use.
	Err error
}

// Claim returns the use of a claim. If only the store can tell, the error is [work.ErrAwaited], and the claim is queued
// again when the store has answered.
func (t *Tracker) Claim(ctx context.Context, claim *v1.PersistentVolumeClaim) (Use, error) {
	name := store.NameOf(claim)
	item := work.Item{Kind: work.Claim, Name: name}
	pod, err := t.user(item, podsOf{claim.UID, name}, func(pod *v1.Pod) bool { return mayUse(pod, claim) })
	if err != nil {
		return Use{}, err
	}
	if pod != nil {
		return Use{By: t.usedByPod(pod), Err: work.AwaitChange(t.with.Pods, pod)}, nil
	}
	if pv, there := t.with.Volumes.Get(objects.Named(claim.Spec.VolumeName)); there && objects.OwnedBy(pv, claim) {
		if by := t.mountedBy(ctx, item, pv); by != "" {
			return Use{By: by}, nil
		}
	}
	if claim.Spec.VolumeName == "" {
		return Use{}, nil // There is nothing to copy.
	}
	return t.copiedBy(ctx, claim)
}

// copiedBy returns which claim may have a volume begun that is a copy of that of claim. Only a call with the same source finds such a
// volume, or says that there is none.
func (t *Tracker) copiedBy(ctx context.Context, claim *v1.PersistentVolumeClaim) (Use, error) {
	claims, err := t.claims.all(ctx, claim.Namespace)
	if err != nil {
		return Use{}, fmt.Errorf("the claims that may copy claim %q: %w", store.NameOf(claim), err)
	}
	for _, other := range claims {
		if slices.Contains(other.Finalizers, objects.FinalizerProvisioning) && objects.ClaimToCopy(other) == claim.Name {
			return Use{
				By:  fmt.Sprintf("a volume for claim %q is made of it, or may be", store.NameOf(other)),
				Err: work.AwaitChange(t.with.Claims, other),
			}, nil
		}
	}
	return Use{}, nil
}

// Volume returns the use of the storage of a volume whose claim is gone. If only the store can tell, the error is
// [work.ErrAwaited], and the volume is queued again when the store has answered.
func (t *Tracker) Volume(ctx context.Context, pv *v1.PersistentVolume) (Use, error) {
	if at := t.with.AttachmentsOf.Get(pv.Name); len(at) > 0 {
		return Use{By: attachedTo(at[0])}, nil
	}
	item := work.Item{Kind: work.Volume, Name: store.NameOf(pv)}
	pod, err := t.podUsing(item, pv)
	if err != nil {
		return Use{}, err
	}
	if pod != nil {
		return Use{By: t.usedByPod(pod), Err: work.AwaitChange(t.with.Pods, pod)}, nil
	}
	if shared, err := t.sharedWith(ctx, item, pv); err != nil || shared.By != "" {
		return shared, err
	}
	at, err := t.attachmentOf(ctx, pv)
	if err != nil {
		return Use{}, err
	}
	if at != nil {
		return Use{By: attachedTo(at), Err: work.AwaitChange(t.with.Attachments, at)}, nil
	}
	node, err := t.reportedBy(ctx, item, pv)
	if err != nil || node != "" {
		return Use{By: node}, err
	}
	if by := t.mountedBy(ctx, item, pv); by != "" {
		return Use{By: by}, nil
	}
	return t.sharedSince(ctx, item, pv)
}

// DropAnswers drops the answers for an item whose sync has ended: they would be outdated in the next one. A sync that
// returned [work.ErrAwaited] has not ended.
func (t *Tracker) DropAnswers(item work.Item) {
	t.pods.drop(item)
	t.sharers.drop(item)
}

// mountedBy describes who has a volume mounted, by the report of Mounts, or returns "". If a mount is reported, the
// item is queued again after its end.
func (t *Tracker) mountedBy(ctx context.Context, item work.Item, pv *v1.PersistentVolume) string {
	if t.with.Mounts == nil {
		return ""
	}
	now, cancel := context.WithCancel(ctx)
	cancel()
	err := t.with.Mounts.WaitForVolumeUnused(now, pv)
	if err == nil {
		return ""
	}
	t.with.Queue.Await(ctx, item, func(ctx context.Context) error { return t.with.Mounts.WaitForVolumeUnused(ctx, pv) })
	var users *volume.NotReadyError
	if !errors.As(err, &users) || len(users.Volumes) == 0 {
		return fmt.Sprintf("whether it is mounted is not known: %v", err)
	}
	if first := users.Volumes[0]; first.PodName.Name != "" {
		return fmt.Sprintf("pod %q has it mounted, or may have", first.PodName)
	}
	return "its node has not let go of it yet"
}

// reportedBy describes the node whose status lists a volume as in use, or returns "". It reads the store, again after a
// back-off. A node may list a volume without an attachment if its status is late, or after a detach by force.
func (t *Tracker) reportedBy(ctx context.Context, item work.Item, pv *v1.PersistentVolume) (string, error) {
	name, err := t.with.Plugins.UniqueVolumeName("", volume.NewSpecFromPersistentVolume(pv, false))
	if err != nil {
		return "", nil //nolint:nilerr // No plugin here can name it, so none here attaches, mounts or deletes it.
	}
	nodes, err := t.nodes.all(ctx, "")
	if err != nil {
		return "", fmt.Errorf("the nodes that may use volume %q: %w", pv.Name, err)
	}
	for _, node := range nodes {
		switch {
		case store.LostVolumesInUse(node):
			t.with.Queue.AddLater(item)
			return fmt.Sprintf("node %q may use it: another program has emptied its list of volumes in use", node.Name), nil
		case slices.Contains(node.Status.VolumesInUse, name):
			t.with.Queue.AddLater(item)
			return fmt.Sprintf("node %q lists it as in use", node.Name), nil
		}
	}
	return "", nil
}

// attachmentOf returns an attachment of a volume from the store, or nil.
func (t *Tracker) attachmentOf(ctx context.Context, pv *v1.PersistentVolume) (*storagev1.VolumeAttachment, error) {
	attachments, err := t.attachments.all(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("the attachments of volume %q: %w", pv.Name, err)
	}
	for _, at := range attachments {
		if name := at.Spec.Source.PersistentVolumeName; name != nil && *name == pv.Name {
			return at, nil
		}
	}
	return nil, nil
}

// mayUse reports whether a pod refers to a claim, except to an ephemeral claim that was created for another pod.
func mayUse(pod *v1.Pod, claim *v1.PersistentVolumeClaim) bool {
	for i := range pod.Spec.Volumes {
		ref, ok := volume.ClaimOfVolume(pod, &pod.Spec.Volumes[i])
		if ok && ref.Name == store.NameOf(claim) && ref.OwnedBy(claim, pod) {
			return true
		}
	}
	return false
}

// podUsing returns a pod that uses, or may use, a volume whose claim is gone, or nil. If another claim has the name
// now, the pods that refer to it do not count, provided that the only node reports the mounts of the old volume.
func (t *Tracker) podUsing(item work.Item, pv *v1.PersistentVolume) (*v1.Pod, error) {
	name := objects.ClaimNameOf(pv)
	if _, there := t.with.Claims.Get(name); there && t.with.NodeName != "" && t.with.Mounts != nil {
		return nil, nil
	}
	return t.user(item, podsOf{pv.UID, name}, t.mayUseVolumeOf(name))
}

// mayUseVolumeOf returns whether a pod that refers to a claim of that name may use the volume of an earlier claim of that name. If
// another claim has the name now, its pods do not.
func (t *Tracker) mayUseVolumeOf(claim types.NamespacedName) func(pod *v1.Pod) bool {
	next, there := t.with.Claims.Get(claim)
	return func(pod *v1.Pod) bool {
		return !there || !metav1.IsControlledBy(next, pod) && !next.CreationTimestamp.Before(&pod.CreationTimestamp)
	}
}

// usedByPod is the use of a volume by a pod, with its node if that is known.
func (t *Tracker) usedByPod(pod *v1.Pod) string {
	node := cmp.Or(pod.Spec.NodeName, string(t.with.NodeName))
	if node == "" {
		return fmt.Sprintf("pod %q, which names no node, may use it", store.NameOf(pod))
	}
	return fmt.Sprintf("pod %q on node %q may use it", store.NameOf(pod), node)
}

func attachedTo(at *storagev1.VolumeAttachment) string {
	return fmt.Sprintf("it is attached to node %q, or may be", at.Spec.NodeName)
}
