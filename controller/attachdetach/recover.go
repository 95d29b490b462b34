package attachdetach

import (
	"context"
	"errors"

	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// recover reads which volumes an earlier controller may have attached, and which volumes pods want, before the first decision. It
// returns false if ctx ends first.
func (c *Controller) recover(ctx context.Context) bool {
	if !c.objects.synced(ctx) || !c.recoverAttachments(ctx) {
		return false
	}
	for _, object := range c.objects.attachments.All() {
		c.foreign.read(object.Name)
	}
	for _, pod := range c.objects.pods.All() {
		c.pods.populate(store.NameOf(pod))
	}
	return true
}

// recoverAttachments puts the attachments of VolumeAttachment objects into the actual state.
func (c *Controller) recoverAttachments(ctx context.Context) bool {
	for failures := 1; ; failures++ {
		found, err := c.records.recorded(ctx)
		if err == nil {
			return c.adopt(found)
		}
		if ctx.Err() != nil {
			return false
		}
		c.options.Logger.Warn("what is attached is not known yet", "error", err)
		pause(ctx, c.options.delay(failures))
	}
}

// adopt puts the attachments that were found into the actual state.
func (c *Controller) adopt(found []recordedAttachment) bool {
	var errs []error
	for _, at := range found {
		errs = append(errs, c.actual.RecoverAttachment(at.AttachedVolume, at.nodeUID))
		if at.attached {
			c.recorded = append(c.recorded, attachment{at.VolumeName, at.NodeName})
		}
	}
	for _, pv := range c.objects.volumes.All() {
		c.setSpec(volume.NewSpecFromPersistentVolume(pv, false))
	}
	if err := errors.Join(errs...); err != nil {
		c.options.Logger.Warn("an attachment that was recorded cannot be taken over", "error", err)
	}
	return true
}

// setSpec sets the spec of the attachments of a PersistentVolume: neither a node's status nor a record has it. Without a spec a volume
// counts as one that many nodes can have.
func (c *Controller) setSpec(spec *volume.Spec) {
	name, err := c.plugins.UniqueVolumeName("", spec)
	if err != nil {
		return // It has no plugin here, or is a pod's own.
	}
	for at := range c.actual.AttachmentsOfVolume(name) {
		c.actual.SetVolumeSpec(name, at.NodeName, spec)
	}
}

// verifyAll checks from time to time with plugins whether volumes are still attached, and which others are, until ctx ends.
func (c *Controller) verifyAll(ctx context.Context) {
	if c.options.VerifyPeriod < 0 {
		return
	}
	c.lister.list(ctx) // An earlier leader may have left attachments without a record.
	for {
		pause(ctx, c.options.untilVerified())
		if ctx.Err() != nil {
			return
		}
		if _, err := c.executor.VerifyVolumesAreAttached(ctx, c.confirmed(), c.actual); err != nil {
			c.options.Logger.Warn("not every volume can be verified", "error", err)
		}
		c.lister.list(ctx)
	}
}
