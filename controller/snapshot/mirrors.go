package snapshot

import (
	"context"
	"sync"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/internal/work"
	"github.com/volumekit/volumekit/store"
)

// The kinds of items.
const (
	workSnapshot     work.Kind = "snapshot"
	workContent      work.Kind = "content of a snapshot"
	workGroup        work.Kind = "group of snapshots"
	workGroupContent work.Kind = "content of a group"
	workClaim        work.Kind = "claim of a snapshot"
)

// mirrors holds the mirrors of the store and their indexes.
type mirrors struct {
	snapshots     *store.Mirror[*snapshotv1.VolumeSnapshot]
	contents      *store.Mirror[*snapshotv1.VolumeSnapshotContent]
	classes       *store.Mirror[*snapshotv1.VolumeSnapshotClass]
	groups        *store.Mirror[*groupv1.VolumeGroupSnapshot]
	groupContents *store.Mirror[*groupv1.VolumeGroupSnapshotContent]
	groupClasses  *store.Mirror[*groupv1.VolumeGroupSnapshotClass]
	claims        *store.Mirror[*v1.PersistentVolumeClaim]
	volumes       *store.Mirror[*v1.PersistentVolume]

	// snapshotsOf are the snapshots of a claim, snapshotsIn those of a group, snapshotsBy those that name a content.
	snapshotsOf *store.Index[*snapshotv1.VolumeSnapshot, types.NamespacedName]
	snapshotsIn *store.Index[*snapshotv1.VolumeSnapshot, types.NamespacedName]
	snapshotsBy *store.Index[*snapshotv1.VolumeSnapshot, string]
	// protected are the claims of a namespace whose volumes are, or were, being snapshotted.
	protected *store.Index[*v1.PersistentVolumeClaim, string]
	// contentsOf are the contents that name a snapshot.
	contentsOf *store.Index[*snapshotv1.VolumeSnapshotContent, types.NamespacedName]
	// groupContentsOf are those that name a group, groupsBy the groups that name a content.
	groupContentsOf *store.Index[*groupv1.VolumeGroupSnapshotContent, types.NamespacedName]
	groupsBy        *store.Index[*groupv1.VolumeGroupSnapshot, string]
}

func newMirrors(s store.Store, options store.MirrorOptions) *mirrors {
	m := &mirrors{
		snapshots:     store.NewMirror[*snapshotv1.VolumeSnapshot](s, options),
		contents:      store.NewMirror[*snapshotv1.VolumeSnapshotContent](s, options),
		classes:       store.NewMirror[*snapshotv1.VolumeSnapshotClass](s, options),
		groups:        store.NewMirror[*groupv1.VolumeGroupSnapshot](s, options),
		groupContents: store.NewMirror[*groupv1.VolumeGroupSnapshotContent](s, options),
		groupClasses:  store.NewMirror[*groupv1.VolumeGroupSnapshotClass](s, options),
		claims:        store.NewMirror[*v1.PersistentVolumeClaim](s, options),
		volumes:       store.NewMirror[*v1.PersistentVolume](s, options),
	}
	m.snapshotsOf = store.NewIndex(m.snapshots, func(snap *snapshotv1.VolumeSnapshot) []types.NamespacedName {
		return []types.NamespacedName{{Namespace: snap.Namespace, Name: deref(snap.Spec.Source.PersistentVolumeClaimName)}}
	})
	m.snapshotsIn = store.NewIndex(m.snapshots, func(snap *snapshotv1.VolumeSnapshot) []types.NamespacedName {
		return []types.NamespacedName{{Namespace: snap.Namespace, Name: groupOwner(snap).Name}}
	})
	m.snapshotsBy = store.NewIndex(m.snapshots, func(snap *snapshotv1.VolumeSnapshot) []string { return []string{contentNamed(snap)} })
	m.contentsOf = store.NewIndex(m.contents, func(content *snapshotv1.VolumeSnapshotContent) []types.NamespacedName {
		return []types.NamespacedName{nameIn(content.Spec.VolumeSnapshotRef)}
	})
	m.protected = store.NewIndex(m.claims, func(claim *v1.PersistentVolumeClaim) []string {
		if !has(claim, FinalizerSourceClaim) {
			return nil
		}
		return []string{claim.Namespace}
	})
	m.groupContentsOf = store.NewIndex(m.groupContents, func(content *groupv1.VolumeGroupSnapshotContent) []types.NamespacedName {
		return []types.NamespacedName{nameIn(content.Spec.VolumeGroupSnapshotRef)}
	})
	m.groupsBy = store.NewIndex(m.groups, func(group *groupv1.VolumeGroupSnapshot) []string { return []string{groupContentNamed(group)} })
	return m
}

// waker adds the items that depend on a changed object to the queue.
type waker struct {
	mirrors *mirrors
	queue   *work.Queue
}

// follow starts the goroutines that read the store.
func (c *waker) follow(ctx context.Context, feeds *sync.WaitGroup) {
	feeds.Go(func() { c.mirrors.classes.Follow(ctx, c.classChanged) })
	feeds.Go(func() { c.mirrors.groupClasses.Follow(ctx, c.groupClassChanged) })
	feeds.Go(func() { c.mirrors.volumes.Follow(ctx, c.volumeChanged) })
	feeds.Go(func() { c.mirrors.claims.Follow(ctx, c.claimChanged) })
	feeds.Go(func() { c.mirrors.contents.Follow(ctx, c.contentChanged) })
	feeds.Go(func() { c.mirrors.groupContents.Follow(ctx, c.groupContentChanged) })
	feeds.Go(func() { c.mirrors.snapshots.Follow(ctx, c.snapshotChanged) })
	feeds.Go(func() { c.mirrors.groups.Follow(ctx, c.groupChanged) })
}

// synced waits until everything has been listed once, and reports whether that was before ctx ended.
func (s *mirrors) synced(ctx context.Context) bool {
	return s.classes.WaitSynced(ctx) && s.groupClasses.WaitSynced(ctx) && s.volumes.WaitSynced(ctx) && s.claims.WaitSynced(ctx) &&
		s.contents.WaitSynced(ctx) && s.groupContents.WaitSynced(ctx) && s.snapshots.WaitSynced(ctx) && s.groups.WaitSynced(ctx)
}

// What follows wakes the items that depend on a changed object.

func (c *waker) snapshotChanged(snap *snapshotv1.VolumeSnapshot) {
	c.queue.Add(workSnapshot, store.NameOf(snap))
	for _, content := range c.mirrors.contentsOf.Get(store.NameOf(snap)) {
		c.queue.Add(workContent, store.NameOf(content))
	}
	c.wakeClaimOf(snap)
	if group := groupOwner(snap).Name; group != "" {
		c.queue.Add(workGroup, types.NamespacedName{Namespace: snap.Namespace, Name: group})
	}
}

func (c *waker) wakeClaimOf(snap *snapshotv1.VolumeSnapshot) {
	if name := deref(snap.Spec.Source.PersistentVolumeClaimName); name != "" {
		c.queue.Add(workClaim, types.NamespacedName{Namespace: snap.Namespace, Name: name})
	}
}

func (c *waker) contentChanged(content *snapshotv1.VolumeSnapshotContent) {
	c.queue.Add(workContent, store.NameOf(content))
	c.queue.Add(workSnapshot, nameIn(content.Spec.VolumeSnapshotRef))
	if snap, ok := c.mirrors.snapshots.Get(nameIn(content.Spec.VolumeSnapshotRef)); ok {
		c.wakeClaimOf(snap)
	}
	for _, snap := range c.mirrors.snapshotsBy.Get(content.Name) {
		c.queue.Add(workSnapshot, store.NameOf(snap))
	}
}

// classChanged wakes every snapshot that has no content yet, and every content that has no snapshot yet: they may wait for the class.
func (c *waker) classChanged(*snapshotv1.VolumeSnapshotClass) {
	for _, snap := range c.mirrors.snapshots.All() {
		if boundTo(snap) == "" {
			c.queue.Add(workSnapshot, store.NameOf(snap))
		}
	}
	for _, content := range c.mirrors.contents.All() {
		if handleOf(content) == "" {
			c.queue.Add(workContent, store.NameOf(content))
		}
	}
}

func (c *waker) groupClassChanged(*groupv1.VolumeGroupSnapshotClass) {
	c.wakeUnboundGroups("")
	for _, content := range c.mirrors.groupContents.All() {
		if groupHandleOf(content) == "" {
			c.queue.Add(workGroupContent, store.NameOf(content))
		}
	}
}

// wakeUnboundGroups wakes the groups of a namespace that have no content yet; "" means all.
func (c *waker) wakeUnboundGroups(namespace string) {
	for _, group := range c.mirrors.groups.All() {
		if groupBoundTo(group) == "" && (namespace == "" || namespace == group.Namespace) {
			c.queue.Add(workGroup, store.NameOf(group))
		}
	}
}

func (c *waker) groupChanged(group *groupv1.VolumeGroupSnapshot) {
	c.queue.Add(workGroup, store.NameOf(group))
	for _, content := range c.mirrors.groupContentsOf.Get(store.NameOf(group)) {
		c.queue.Add(workGroupContent, store.NameOf(content))
	}
	for _, claim := range c.mirrors.protected.Get(group.Namespace) { // Also those of a group that has no content yet, or never had.
		c.queue.Add(workClaim, store.NameOf(claim))
	}
	for _, snap := range c.mirrors.snapshotsIn.Get(store.NameOf(group)) {
		c.queue.Add(workSnapshot, store.NameOf(snap))
	}
}

func (c *waker) groupContentChanged(content *groupv1.VolumeGroupSnapshotContent) {
	c.queue.Add(workGroupContent, store.NameOf(content))
	c.queue.Add(workGroup, nameIn(content.Spec.VolumeGroupSnapshotRef))
	for _, group := range c.mirrors.groupsBy.Get(content.Name) {
		c.queue.Add(workGroup, store.NameOf(group))
	}
	for _, claim := range c.claimsOf(content) {
		c.queue.Add(workClaim, claim)
	}
}

// claimsOf returns the claims whose volumes a content of a group is made of, as far as they are known.
func (c *waker) claimsOf(content *groupv1.VolumeGroupSnapshotContent) []types.NamespacedName {
	var claims []types.NamespacedName
	for _, name := range sourceVolumes(content) {
		if pv, ok := c.mirrors.volumes.Get(types.NamespacedName{Name: name}); ok && pv.Spec.ClaimRef != nil {
			claims = append(claims, nameIn(*pv.Spec.ClaimRef))
		}
	}
	return claims
}

func (c *waker) claimChanged(claim *v1.PersistentVolumeClaim) {
	name := store.NameOf(claim)
	if has(claim, FinalizerSourceClaim) {
		c.queue.Add(workClaim, name)
	}
	for _, snap := range c.mirrors.snapshotsOf.Get(name) {
		c.queue.Add(workSnapshot, store.NameOf(snap))
	}
	if restored := snapshotNamed(claim); restored != "" {
		c.queue.Add(workSnapshot, types.NamespacedName{Namespace: claim.Namespace, Name: restored})
	}
	c.wakeUnboundGroups(claim.Namespace)
}

func (c *waker) volumeChanged(pv *v1.PersistentVolume) {
	if pv.Spec.ClaimRef == nil {
		return
	}
	for _, snap := range c.mirrors.snapshotsOf.Get(nameIn(*pv.Spec.ClaimRef)) {
		c.queue.Add(workSnapshot, store.NameOf(snap))
	}
	c.wakeUnboundGroups(pv.Spec.ClaimRef.Namespace)
}
