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

// release does with a volume whose claim is gone what its reclaim policy says. An empty policy is Retain.
func (c *Controller) release(ctx context.Context, pv *v1.PersistentVolume) error {
	if phase := pv.Status.Phase; phase != v1.VolumeFailed && phase != v1.VolumeReleased {
		released, err := c.setPhase(ctx, pv, v1.VolumeReleased, pv.Status.Message)
		if err != nil {
			return err
		}
		pv = released
	}
	switch policy := pv.Spec.PersistentVolumeReclaimPolicy; policy {
	case v1.PersistentVolumeReclaimRetain, "":
		if pv.DeletionTimestamp != nil {
			return c.letGo(ctx, pv)
		}
		_, err := c.setPhase(ctx, pv, pv.Status.Phase, pv.Status.Message) // which protects it
		return err
	case v1.PersistentVolumeReclaimDelete:
		return c.reclaimByDelete(ctx, pv)
	case v1.PersistentVolumeReclaimRecycle:
		return c.reclaimByRecycle(ctx, pv)
	default:
		return c.fail(ctx, pv, ReasonVolumeUnknownReclaimPolicy,
			fmt.Sprintf("reclaim policy %q is not known: use Retain or Delete", policy))
	}
}

// fail writes that the volume needs a person, and tells why, once.
func (c *Controller) fail(ctx context.Context, pv *v1.PersistentVolume, why, message string) error {
	if pv.Status.Phase != v1.VolumeFailed || pv.Status.Message != message {
		failed, err := c.setPhase(ctx, pv, v1.VolumeFailed, message)
		if err != nil {
			return err
		}
		c.options.Events.Eventf(pv, v1.EventTypeWarning, why, "%s", message)
		pv = failed
	}
	return c.abandon(ctx, pv)
}

// abandon lets the object of a volume go that somebody deletes and of which nothing more is done here: it is not bound.
func (c *Controller) abandon(ctx context.Context, pv *v1.PersistentVolume) error {
	if pv.DeletionTimestamp == nil {
		return nil
	}
	return c.dropFinalizers(ctx, pv, FinalizerVolumeProtection)
}

// reclaimByDelete deletes the storage and then the object.
func (c *Controller) reclaimByDelete(ctx context.Context, pv *v1.PersistentVolume) error {
	pv, err := c.reclaimable(ctx, pv, ReasonVolumeDelete)
	if err != nil || pv == nil {
		return err
	}
	if c.isExternal(pv) {
		return c.abandon(ctx, pv)
	}
	plugin, err := c.deleter(pv)
	if err != nil {
		return c.fail(ctx, pv, ReasonVolumeFailedDelete, fmt.Sprintf("nothing here can delete it: %v", err))
	}
	if err := c.callDelete(ctx, plugin, pv); err != nil {
		return c.reclaimFailed(ctx, pv, ReasonVolumeFailedDelete, fmt.Errorf("volume %q is not deleted: %w", pv.Name, err))
	}
	return c.forget(ctx, pv)
}

// reclaimByRecycle deletes what is in the storage and gives the volume to the next claim.
func (c *Controller) reclaimByRecycle(ctx context.Context, pv *v1.PersistentVolume) error {
	pv, err := c.reclaimable(ctx, pv, ReasonVolumeFailedRecycle)
	if err != nil || pv == nil {
		return err
	}
	if c.isExternal(pv) {
		return c.abandon(ctx, pv)
	}
	if pv.DeletionTimestamp != nil {
		return c.letGo(ctx, pv) // There is no next claim.
	}
	plugin, err := c.plugins.FindRecyclablePluginBySpec(volume.NewSpecFromPersistentVolume(pv, false))
	if err != nil {
		return c.fail(ctx, pv, ReasonVolumeFailedRecycle, fmt.Sprintf("nothing here can recycle it: %v", err))
	}
	if err := c.callRecycle(ctx, plugin, pv); err != nil {
		return c.reclaimFailed(ctx, pv, ReasonVolumeFailedRecycle, fmt.Errorf("volume %q is not recycled: %w", pv.Name, err))
	}
	c.options.Events.Eventf(pv, v1.EventTypeNormal, ReasonVolumeRecycled, "nothing is left in the volume")
	return c.unbind(ctx, pv)
}

// reclaimable returns the volume as the store has it when it is to be reclaimed now: its claim is gone, its policy is what it
// was, and nobody uses it; nil when it is not. reason is that of the event that says who uses it.
func (c *Controller) reclaimable(ctx context.Context, pv *v1.PersistentVolume, reason string) (*v1.PersistentVolume, error) {
	if err := c.work.held(item{volumeItem, store.NameOf(pv)}, pv.UID); err != nil {
		return nil, err
	}
	pv, err := c.reverify(ctx, pv)
	if err != nil || pv == nil {
		return nil, err
	}
	used, err := c.usedBy(ctx, pv)
	if err != nil || used.by == "" {
		return pv, err
	}
	message := "its claim is gone, but " + used.by
	if pv.Status.Message == message {
		return nil, used.err
	}
	if _, err := c.setPhase(ctx, pv, v1.VolumeReleased, message); err != nil {
		return nil, err
	}
	c.options.Events.Eventf(pv, v1.EventTypeNormal, reason, "%s", message)
	return nil, used.err
}

// reverify reads from the store what is about to be destroyed. It returns nil when the volume is to be left alone: it is
// gone or another, its policy is another now, or its claim is there after all.
func (c *Controller) reverify(ctx context.Context, pv *v1.PersistentVolume) (*v1.PersistentVolume, error) {
	now, err := store.Get[*v1.PersistentVolume](ctx, c.store, "", pv.Name)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("volume %q is not reclaimed: %w", pv.Name, err)
	case now.UID != pv.UID, now.Spec.ClaimRef == nil, now.Spec.ClaimRef.UID == "",
		now.Spec.PersistentVolumeReclaimPolicy != pv.Spec.PersistentVolumeReclaimPolicy:
		return nil, nil
	}
	claim, err := c.claimOf(ctx, now)
	switch {
	case err != nil:
		return nil, err
	case claim == nil:
		return now, nil
	case claim.Spec.VolumeName != "" && claim.Spec.VolumeName != now.Name && spare(now):
		return now, nil
	}
	return nil, awaitChange(c.claims, claim)
}

// isExternal reports whether somebody else is to delete the storage: the volume was made by a provisioner or, if it was
// made by hand, is of a driver that is none of the plugins here. What else nobody here can delete needs a person.
func (c *Controller) isExternal(pv *v1.PersistentVolume) bool {
	if pv.Annotations[AnnMigratedTo] != "" {
		return true
	}
	owner, ok := pv.Annotations[AnnDynamicallyProvisioned]
	if !ok {
		var driver volume.Driver
		driver, ok = volume.NewSpecFromPersistentVolume(pv, false).Driver()
		owner = driver.PluginName
	}
	return ok && !slices.Contains(c.plugins.PluginNames(), owner)
}

// deleter returns the plugin that made the volume or, if it was made by hand, the one that supports it.
func (c *Controller) deleter(pv *v1.PersistentVolume) (volume.DeletableVolumePlugin, error) {
	if by, ok := pv.Annotations[AnnDynamicallyProvisioned]; ok {
		return c.plugins.FindDeletablePluginByName(by)
	}
	return c.plugins.FindDeletablePluginBySpec(volume.NewSpecFromPersistentVolume(pv, false))
}

// callDelete deletes the storage of pv.
func (c *Controller) callDelete(ctx context.Context, plugin volume.DeletableVolumePlugin, pv *v1.PersistentVolume) error {
	spec := volume.NewSpecFromPersistentVolume(pv.DeepCopy(), false)
	name := pluginCall{plugin: plugin.GetPluginName(), method: "Delete", volume: pv.Name}
	name.secrets = spec.Secrets(c.plugins.PublicKeys(name.plugin))
	return c.call(ctx, name, func(ctx context.Context) error {
		deleter, err := plugin.NewDeleter(spec)
		if err != nil {
			return err
		}
		return deleter.Delete(ctx)
	})
}

// callRecycle deletes what is in the storage of pv. A plugin that has a pod do it may need longer than other calls.
func (c *Controller) callRecycle(ctx context.Context, plugin volume.RecyclableVolumePlugin, pv *v1.PersistentVolume) error {
	spec := volume.NewSpecFromPersistentVolume(pv.DeepCopy(), false)
	call := pluginCall{plugin: plugin.GetPluginName(), method: "Recycle", volume: pv.Name, atLeast: volume.RecyclerTimeout(pv)}
	call.secrets = spec.Secrets(c.plugins.PublicKeys(call.plugin))
	tell := func(eventtype, message string) {
		c.options.Events.Eventf(pv, eventtype, ReasonVolumeRecycled, "%s", call.secrets.RedactText(message))
	}
	return c.call(ctx, call, func(ctx context.Context) error { return plugin.Recycle(ctx, pv.Name, spec, tell) })
}

// reclaimFailed says so; it is tried again.
func (c *Controller) reclaimFailed(ctx context.Context, pv *v1.PersistentVolume, reason string, err error) error {
	failed := &callError{uid: pv.UID, err: err}
	if ctx.Err() != nil {
		return failed
	}
	if errors.Is(err, volume.ErrInUse) && reason == ReasonVolumeFailedDelete {
		c.options.Events.Eventf(pv, v1.EventTypeNormal, ReasonVolumeDelete, "%v; it will be tried again", err)
		return failed
	}
	c.options.Events.Eventf(pv, v1.EventTypeWarning, reason, "%v", err)
	if _, err := c.setPhase(ctx, pv, v1.VolumeFailed, err.Error()); err != nil {
		failed.err = errors.Join(failed.err, err)
	}
	return failed
}

// forget deletes the object of a volume whose storage is gone.
func (c *Controller) forget(ctx context.Context, pv *v1.PersistentVolume) error {
	if err := c.letGo(ctx, pv); err != nil {
		return err
	}
	err := store.Delete(ctx, c.store, pv)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("the storage of volume %q is gone, its object is not: %w", pv.Name, err)
	}
	return nil
}
