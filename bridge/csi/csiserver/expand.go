package csiserver

import (
	"context"
	"errors"
	"io/fs"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/volume"
)

// ControllerExpandVolume makes the storage of a volume that was made larger.
func (c *controller) ControllerExpandVolume(
	ctx context.Context, r *csi.ControllerExpandVolumeRequest,
) (*csi.ControllerExpandVolumeResponse, error) {
	if !c.can.Has(volume.CapExpand) {
		return nil, unimplemented("ControllerExpandVolume")
	}
	if err := checkVolumeID(r.GetVolumeId()); err != nil {
		return nil, err
	}
	if r.GetCapacityRange() == nil {
		return nil, status.Error(codes.InvalidArgument, "capacity_range is missing")
	}
	required, limit, err := sizesOf(r.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	var v volumeRecord
	err = c.locks.exclusively(ctx, idLock(r.GetVolumeId()), func() error {
		v, err = c.volumes.expand(ctx, r.GetVolumeId(), required, limit)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &csi.ControllerExpandVolumeResponse{
		CapacityBytes: v.PV.Spec.Capacity.Storage().Value(), NodeExpansionRequired: c.volumes.growsOnNode(v),
	}, nil
}

// growsOnNode reports whether a node must do the rest.
func (s *volumes) growsOnNode(v volumeRecord) bool {
	plugin, ok := s.plugin.(volume.ExpandableVolumePlugin)
	return ok && plugin.RequiresFSResize() && s.can.Has(volume.CapNodeExpand) && !*originOf(v.PV).Block
}

func (s *volumes) expand(ctx context.Context, id string, required, limit int64) (volumeRecord, error) {
	v, ok := s.state.byID(id)
	if !ok || v.Step != made {
		return v, noSuchVolume(id)
	}
	plugin, ok := s.plugin.(volume.ExpandableVolumePlugin)
	if !ok {
		return v, unimplemented("ControllerExpandVolume")
	}
	old := v.PV.Spec.Capacity[v1.ResourceStorage]
	if limit > 0 && old.Value() > limit {
		return v, status.Errorf(codes.OutOfRange, "the volume has %d bytes, more than limit_bytes, and is never made smaller", old.Value())
	}
	size, err := plugin.ExpandVolumeDevice(ctx, s.specOfVolume(v), *resource.NewQuantity(required, resource.BinarySI), old)
	if errors.Is(err, fs.ErrNotExist) {
		return v, status.Errorf(codes.NotFound, "volume %s: %v", volume.Quote(id), err)
	}
	if err != nil {
		return v, err
	}
	v.PV = v.PV.DeepCopy() // the one in the table is shared
	v.PV.Spec.Capacity = storage(size.Value())
	if err := s.state.volumes.Put(v.Name, v); err != nil {
		return v, volume.Uncertain(err)
	}
	return v, nil
}
