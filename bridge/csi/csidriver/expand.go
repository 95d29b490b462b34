package csidriver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/volume"
)

// removeEmpty removes a directory if it is empty.
func removeEmpty(dir string) error {
	err := os.Remove(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

// RequiresFSResize implements [volume.ExpandableVolumePlugin]. It is always true: the call on the node is cheap if the
// driver does nothing there.
func (p *Plugin) RequiresFSResize() bool { return true }

// ExpandVolumeDevice implements [volume.ExpandableVolumePlugin]. It does not call a driver that expands volumes only on
// the node.
func (p *Plugin) ExpandVolumeDevice(ctx context.Context, spec *volume.Spec, newSize, oldSize resource.Quantity) (resource.Quantity, error) {
	src, err := p.sourceOf(spec)
	if err != nil {
		return oldSize, err
	}
	if newSize.Cmp(oldSize) < 0 {
		return oldSize, fmt.Errorf("volume %q: a volume is not made smaller: %w", spec.Name(), volume.ErrInvalid)
	}
	s, err := p.client.session(ctx)
	if err != nil {
		return oldSize, err
	}
	if !s.facts.controller[csi.ControllerServiceCapability_RPC_EXPAND_VOLUME] {
		return newSize, nil
	}
	capability, err := src.use().capability(s.facts)
	if err != nil {
		return oldSize, err
	}
	secrets, err := p.options.secret(ctx, src.csi.ControllerExpandSecretRef)
	if err != nil {
		return oldSize, err
	}
	answer, err := call(ctx, s, "ControllerExpandVolume", csi.NewControllerClient(s.conn).ControllerExpandVolume, &csi.ControllerExpandVolumeRequest{
		VolumeId: src.csi.VolumeHandle, CapacityRange: capacityRange(newSize.Value(), 0), Secrets: secrets, VolumeCapability: capability,
	})
	if err != nil {
		return oldSize, err
	}
	made := answer.GetCapacityBytes()
	if made < newSize.Value() {
		return oldSize, s.refuse("ControllerExpandVolume", fmt.Errorf("volume %q has %d bytes and was to have %s", spec.Name(), made, newSize.String()))
	}
	return *resource.NewQuantity(made, resource.BinarySI), nil
}

// NodeExpand implements [volume.NodeExpandableVolumePlugin].
func (p *Plugin) NodeExpand(ctx context.Context, options volume.NodeResizeOptions) (bool, error) {
	src, err := p.sourceOf(options.VolumeSpec)
	if err != nil {
		return false, err
	}
	s, err := p.client.session(ctx)
	if err != nil {
		return false, err
	}
	if !s.facts.node[csi.NodeServiceCapability_RPC_EXPAND_VOLUME] {
		return true, nil
	}
	capability, err := src.use().capability(s.facts)
	if err != nil {
		return false, err
	}
	secrets, err := p.options.secret(ctx, src.csi.NodeExpandSecretRef)
	if err != nil {
		return false, err
	}
	answer, err := call(ctx, s, "NodeExpandVolume", csi.NewNodeClient(s.conn).NodeExpandVolume, &csi.NodeExpandVolumeRequest{
		VolumeId: src.csi.VolumeHandle, CapacityRange: capacityRange(options.NewSize.Value(), 0),
		VolumePath:        cmp.Or(options.DeviceMountPath, options.DeviceStagePath, options.DevicePath),
		StagingTargetPath: options.DeviceStagePath, VolumeCapability: capability, Secrets: secrets,
	})
	if err != nil {
		return false, err
	}
	if made := answer.GetCapacityBytes(); made != 0 && made < options.NewSize.Value() {
		return false, s.refuse("NodeExpandVolume", fmt.Errorf("volume %q has %d bytes and was to have %s", src.pv.Name, made, options.NewSize.String()))
	}
	return true, nil
}
