package persistentvolume

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// This file asks those who mount volumes whether one is used.

// MountReporter knows what is mounted. A *volumemanager.Manager is one, for its node.
type MountReporter interface {
	// WaitForVolumeUnused returns nil when nothing uses the volume pv any more: nothing of it is, or may be, mounted, and no pod is
	// about to mount it. With a context that has ended it answers at once. Any error means that the volume is, or may be, used; a
	// [*volume.NotReadyError] names its users. It must return when ctx ends. pv must not be changed. It may be called from several
	// goroutines at once.
	WaitForVolumeUnused(ctx context.Context, pv *v1.PersistentVolume) error
}

// mountedBy returns, in words, who has a volume mounted by the report of [Options].Mounts, or "". by is looked at again when nobody
// has.
func (c *Controller) mountedBy(ctx context.Context, by item, pv *v1.PersistentVolume) string {
	if c.options.Mounts == nil {
		return ""
	}
	now, cancel := context.WithCancel(ctx)
	cancel()
	err := c.options.Mounts.WaitForVolumeUnused(now, pv)
	if err == nil {
		return ""
	}
	c.work.await(ctx, by, func(ctx context.Context) error { return c.options.Mounts.WaitForVolumeUnused(ctx, pv) })
	var users *volume.NotReadyError
	if !errors.As(err, &users) || len(users.Volumes) == 0 {
		return fmt.Sprintf("whether it is mounted is not known: %v", err)
	}
	if first := users.Volumes[0]; first.PodName.Name != "" {
		return fmt.Sprintf("pod %q has it mounted, or may have", first.PodName)
	}
	return "its node has not let go of it yet"
}

// reportedBy returns, in words, which node's status lists a volume as in use, or "". The store is asked, and asked again after a
// while: this comes after the attachments are gone, when a node was late or its volume was taken by force.
func (c *Controller) reportedBy(ctx context.Context, by item, pv *v1.PersistentVolume) (string, error) {
	name, err := c.plugins.UniqueVolumeName("", volume.NewSpecFromPersistentVolume(pv, false))
	if err != nil {
		return "", nil //nolint:nilerr // No plugin here names it, so that nobody here attaches, mounts or deletes it.
	}
	nodes, err := c.liveNodes.all(ctx, "")
	if err != nil {
		return "", fmt.Errorf("the nodes that may use volume %q: %w", pv.Name, err)
	}
	for _, node := range nodes {
		switch {
		case store.LostVolumesInUse(node):
			c.work.addLater(by)
			return fmt.Sprintf("node %q may use it: somebody else has emptied its list of volumes in use", node.Name), nil
		case slices.Contains(node.Status.VolumesInUse, name):
			c.work.addLater(by)
			return fmt.Sprintf("node %q lists it as in use", node.Name), nil
		}
	}
	return "", nil
}

// usedBy returns who uses the storage of a volume whose claim is gone. Nobody is believed by the store alone.
func (c *Controller) usedBy(ctx context.Context, pv *v1.PersistentVolume) (use, error) {
	if at := c.attachmentsOf.Get(pv.Name); len(at) > 0 {
		return use{by: attachedTo(at[0])}, nil
	}
	by := item{volumeItem, store.NameOf(pv)}
	pod, err := c.podUsing(by, pv)
	if err != nil {
		return use{}, err
	}
	if pod != nil {
		return use{by: c.usedByPod(pod), err: awaitChange(c.pods, pod)}, nil
	}
	at, err := c.attachmentOf(ctx, pv)
	if err != nil {
		return use{}, err
	}
	if at != nil {
		return use{by: attachedTo(at), err: awaitChange(c.attachments, at)}, nil
	}
	node, err := c.reportedBy(ctx, by, pv)
	if err != nil || node != "" {
		return use{by: node}, err
	}
	return use{by: c.mountedBy(ctx, by, pv)}, nil
}
