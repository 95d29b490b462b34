package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// ReportLimits writes to a node's CSINode object how many volumes of each plugin the node can have; controller/attachdetach
// attaches no more. The limits come from the plugins with volume.CapAttachLimits. If a plugin has several limits, the least
// one counts. Foreign drivers in the object stay as they are. So do the node's id and the topology in a plugin's entry,
// which bridge/csi/csidriver may have written for a CSI driver. Call it when the agent starts, and when a limit may have
// changed.
//
// If a plugin cannot return its limits, its entry stays as it is, and the returned error says so. ReportLimits still writes
// the limits of the other plugins. If other writers come first each of sixteen times, the error matches store.ErrConflict:
// call it again later.
func ReportLimits(ctx context.Context, plugins *volume.VolumePluginMgr, s store.Store, node types.NodeName) error {
	drivers, err := limitedDrivers(ctx, plugins, node)
	if len(drivers) == 0 {
		return err
	}
	if written := untilWritten(ctx, s, node, drivers); written != nil {
		err = errors.Join(err, fmt.Errorf("attach limits of node %q: %w", node, written))
	}
	return err
}

// writesOfLimits bounds how often the limits are written because another write came first.
const writesOfLimits = 16

func untilWritten(ctx context.Context, s store.Store, node types.NodeName, drivers []storagev1.CSINodeDriver) (err error) {
	for range writesOfLimits {
		err = reportDrivers(ctx, s, node, drivers)
		if errors.Is(err, store.ErrAlreadyExists) {
			err = fmt.Errorf("%w: %w", store.ErrConflict, err)
		}
		if !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
	return err
}

// limitedDrivers asks the plugins for their limits, and returns their entries for the CSINode object.
func limitedDrivers(ctx context.Context, plugins *volume.VolumePluginMgr, node types.NodeName) ([]storagev1.CSINodeDriver, error) {
	var drivers []storagev1.CSINodeDriver
	var errs []error
	for _, name := range plugins.PluginNames() {
		plugin, err := plugins.FindAttachLimitPluginByName(name)
		if errors.Is(err, volume.ErrNoPlugin) {
			continue // it has no limits
		}
		var limits map[string]int64
		if err == nil {
			limits, err = plugin.GetVolumeLimits(ctx)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("attach limits of plugin %q: %w", name, err))
			continue
		}
		driver := storagev1.CSINodeDriver{Name: volume.DriverOfPluginName(name), NodeID: string(node)}
		if len(limits) > 0 {
			least := int32(max(min(slices.Min(slices.Collect(maps.Values(limits))), 1<<31-1), 0))
			driver.Allocatable = &storagev1.VolumeNodeResources{Count: &least}
		}
		drivers = append(drivers, driver)
	}
	return drivers, errors.Join(errs...)
}

// reportDrivers writes entries to the CSINode object. They replace the entries with the same names.
func reportDrivers(ctx context.Context, s store.Store, node types.NodeName, drivers []storagev1.CSINodeDriver) error {
	object, err := store.Get[*storagev1.CSINode](ctx, s, "", string(node))
	if errors.Is(err, store.ErrNotFound) {
		_, err = store.Create(ctx, s, &storagev1.CSINode{
			ObjectMeta: metav1.ObjectMeta{Name: string(node)}, Spec: storagev1.CSINodeSpec{Drivers: drivers},
		})
		return err
	}
	if err != nil {
		return err
	}
	changed := object.DeepCopy()
	drivers = slices.Clone(drivers)
	for i := range drivers {
		keepIdentity(&drivers[i], object.Spec.Drivers)
	}
	changed.Spec.Drivers = slices.DeleteFunc(changed.Spec.Drivers, func(d storagev1.CSINodeDriver) bool {
		return slices.ContainsFunc(drivers, func(ours storagev1.CSINodeDriver) bool { return ours.Name == d.Name })
	})
	changed.Spec.Drivers = append(changed.Spec.Drivers, drivers...)
	_, err = store.Update(ctx, s, changed)
	return err
}

// keepIdentity keeps the node's id and the topology that the driver's entry has already.
func keepIdentity(driver *storagev1.CSINodeDriver, known []storagev1.CSINodeDriver) {
	for _, k := range known {
		if k.Name == driver.Name && k.NodeID != "" {
			driver.NodeID, driver.TopologyKeys = k.NodeID, k.TopologyKeys
		}
	}
}
