package csidriver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// Nodes returns what drivers have reported about nodes. [StoredNodes] reads it from CSINode objects.
type Nodes interface {
	// DriverNode returns the driver's id of a node and the keys of its topology.
	DriverNode(ctx context.Context, driver string, node types.NodeName) (storagev1.CSINodeDriver, error)
}

// StoredNodes reads the CSINode objects of a store. [Driver.Register] or Kubernetes' kubelet writes them.
func StoredNodes(s store.Store) Nodes { return storedNodes{s} }

type storedNodes struct{ store store.Store }

// DriverNode implements [Nodes].
func (n storedNodes) DriverNode(ctx context.Context, driver string, node types.NodeName) (storagev1.CSINodeDriver, error) {
	object, err := store.Get[*storagev1.CSINode](ctx, n.store, "", string(node))
	if err != nil {
		return storagev1.CSINodeDriver{}, fmt.Errorf("CSINode %q: %w", node, err)
	}
	for _, known := range object.Spec.Drivers {
		if known.Name == driver {
			return known, nil
		}
	}
	return storagev1.CSINodeDriver{}, fmt.Errorf("CSINode %q does not have driver %q: the driver has not been registered there", node, driver)
}

// Register writes the driver's report of this node for controllers and schedulers: its id, its limit and the keys of
// its topology into the CSINode of that name, and its topology into the labels of the Node, if there is one. It keeps
// the entries of other drivers. Call it when the agent starts, and after an update of the driver. If other writers come
// first each of sixteen times, the error matches [store.ErrConflict]: call it again later.
func (d *Driver) Register(ctx context.Context, s store.Store, node types.NodeName) error {
	session, err := d.client.session(ctx)
	if err != nil {
		return err
	}
	entry := session.facts.csiNodeDriver()
	if entry.NodeID == "" {
		return fmt.Errorf("driver %q reports no id of this node: %w", d.options.Driver, volume.ErrUnsupported)
	}
	if err := untilWritten(ctx, func() error { return writeCSINode(ctx, s, node, entry) }); err != nil {
		return fmt.Errorf("registering driver %q on node %q: %w", d.options.Driver, node, err)
	}
	if err := untilWritten(ctx, func() error { return writeLabels(ctx, s, node, session.facts.topology) }); err != nil {
		return fmt.Errorf("topology of driver %q on node %q: %w", d.options.Driver, node, err)
	}
	return nil
}

func (f facts) csiNodeDriver() storagev1.CSINodeDriver {
	entry := storagev1.CSINodeDriver{Name: f.name, NodeID: f.nodeID, TopologyKeys: slices.Sorted(maps.Keys(f.topology))}
	if f.maxVolumes > 0 {
		count := int32(min(f.maxVolumes, 1<<31-1)) //nolint:gosec // It fits.
		entry.Allocatable = &storagev1.VolumeNodeResources{Count: &count}
	}
	return entry
}

// registrationWrites bounds how often an object is written because another write came first.
const registrationWrites = 16

// untilWritten repeats a write after a conflict with another writer. After sixteen conflicts the error matches
// [store.ErrConflict].
func untilWritten(ctx context.Context, write func() error) (err error) {
	for range registrationWrites {
		err = write()
		if errors.Is(err, store.ErrAlreadyExists) {
			err = fmt.Errorf("%w: %w", store.ErrConflict, err)
		}
		if ctx.Err() != nil || !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
	return err
}

func writeCSINode(ctx context.Context, s store.Store, node types.NodeName, entry storagev1.CSINodeDriver) error {
	object, err := store.Get[*storagev1.CSINode](ctx, s, "", string(node))
	if errors.Is(err, store.ErrNotFound) {
		_, err = store.Create(ctx, s, &storagev1.CSINode{
			ObjectMeta: metav1.ObjectMeta{Name: string(node)}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{entry}},
		})
		return err
	}
	if err != nil {
		return err
	}
	changed := object.DeepCopy()
	changed.Spec.Drivers = append(slices.DeleteFunc(changed.Spec.Drivers, func(known storagev1.CSINodeDriver) bool {
		return known.Name == entry.Name
	}), entry)
	_, err = store.Update(ctx, s, changed)
	return err
}

func writeLabels(ctx context.Context, s store.Store, name types.NodeName, topology map[string]string) error {
	if len(topology) == 0 {
		return nil
	}
	node, err := store.Get[*v1.Node](ctx, s, "", string(name))
	if errors.Is(err, store.ErrNotFound) {
		return nil // A program without Node objects knows its topology itself.
	}
	if err != nil {
		return err
	}
	changed := node.DeepCopy()
	if changed.Labels == nil {
		changed.Labels = map[string]string{}
	}
	maps.Copy(changed.Labels, topology)
	if maps.Equal(changed.Labels, node.Labels) {
		return nil
	}
	_, err = store.Update(ctx, s, changed)
	return err
}

// driverNode returns the driver's report of a node: for this node from the driver itself, for others from
// [Options].Nodes.
func (p *Plugin) driverNode(ctx context.Context, f facts, node types.NodeName) (storagev1.CSINodeDriver, error) {
	if f.nodeID != "" && node == p.host.GetNodeName() {
		return f.csiNodeDriver(), nil
	}
	if p.options.Nodes == nil {
		return storagev1.CSINodeDriver{}, fmt.Errorf("driver %q: its id of node %q is not known: set Options.Nodes: %w", f.name, node, volume.ErrUnsupported)
	}
	known, err := p.options.Nodes.DriverNode(ctx, p.options.Driver, node)
	if err == nil && known.NodeID == "" {
		err = errors.New("it has no id there")
	}
	if err != nil {
		return known, volume.Transient(fmt.Errorf("driver %q on node %q: %w", f.name, node, err))
	}
	return known, nil
}
