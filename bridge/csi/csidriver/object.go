package csidriver

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// Objects returns CSIDriver objects. [StoredObjects] reads them from a store.
type Objects interface {
	// CSIDriver returns the object of a driver; nil without an error if there is none.
	CSIDriver(ctx context.Context, driver string) (*storagev1.CSIDriver, error)
}

// StoredObjects reads the CSIDriver objects of a store.
func StoredObjects(s store.Store) Objects { return storedObjects{s} }

type storedObjects struct{ store store.Store }

// CSIDriver implements [Objects].
func (o storedObjects) CSIDriver(ctx context.Context, driver string) (*storagev1.CSIDriver, error) {
	object, err := store.Get[*storagev1.CSIDriver](ctx, o.store, "", driver)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("CSIDriver %q: %w", driver, err)
	}
	return object, nil
}

// Reread reads the driver's CSIDriver again from [Options].Objects. Call it after a change of the object; a new
// connection to the driver reads it too. A change of attachRequired, also by a deletion of the object, has no effect on
// the plugins of a Driver after the first [Plugin.Init]: their volumes stay attached, or not attached, until the program
// makes another Driver.
func (d *Driver) Reread(ctx context.Context) error { return d.client.readObject(ctx) }

// readObject reads the CSIDriver, if the options have a source. If the read fails, the last object stays.
func (c *client) readObject(ctx context.Context) error {
	if c.options.Objects == nil {
		return nil
	}
	object, err := c.options.Objects.CSIDriver(ctx, c.options.Driver)
	if err != nil {
		return volume.Transient(err)
	}
	c.object.Store(object)
	return nil
}

// spec returns the spec of the CSIDriver; the zero value if there is none.
func (c *client) spec() storagev1.CSIDriverSpec {
	if object := c.object.Load(); object != nil {
		return object.Spec
	}
	return storagev1.CSIDriverSpec{}
}

// attachmentRule is attachRequired of a CSIDriver.
type attachmentRule struct{ required, exists bool }

// fixAttachRequired sets attachRequired for all plugins of the driver; only the first call has an effect. A volume that
// is in use must not become one that need not be attached: it would be detached, or published without its publish
// context.
func (c *client) fixAttachRequired(rule attachmentRule) {
	c.fixed.CompareAndSwap(nil, &rule)
}

// attachRequired returns attachRequired of the CSIDriver; exists is false if there is no CSIDriver. After
// fixAttachRequired it is always the same.
func (c *client) attachRequired() (required, exists bool) {
	if fixed := c.fixed.Load(); fixed != nil {
		return fixed.required, fixed.exists
	}
	object := c.object.Load()
	if object == nil {
		return false, false
	}
	if object.Spec.AttachRequired == nil {
		return true, true // The default of the object.
	}
	return *object.Spec.AttachRequired, true
}

// checkMode refuses volumes of a lifecycle mode that the CSIDriver does not list. Without an object, or with an empty
// list, only PersistentVolumes are allowed.
func (c *client) checkMode(mode storagev1.VolumeLifecycleMode) error {
	modes := c.spec().VolumeLifecycleModes
	if len(modes) == 0 {
		modes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
	}
	if slices.Contains(modes, mode) {
		return nil
	}
	return fmt.Errorf("driver %q is not for volumes of kind %s: its CSIDriver must list that in volumeLifecycleModes: %w",
		c.options.Driver, mode, volume.ErrUnsupported)
}

// attaches reports whether volumes of the driver must be attached.
func (c *client) attaches() bool {
	if required, exists := c.attachRequired(); exists {
		return required
	}
	return c.known().controller[csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME]
}

// stages reports whether volumes of the driver must be staged.
func (c *client) stages() bool {
	return c.known().node[csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME]
}
