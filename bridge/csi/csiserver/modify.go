package csiserver

import (
	"context"
	"errors"
	"io/fs"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/volume"
)

// ControllerModifyVolume changes attributes of an existing volume. The volume may be in use.
func (c *controller) ControllerModifyVolume(
	ctx context.Context, r *csi.ControllerModifyVolumeRequest,
) (*csi.ControllerModifyVolumeResponse, error) {
	if !c.can.Has(volume.CapModify) {
		return nil, unimplemented("ControllerModifyVolume")
	}
	if err := checkVolumeID(r.GetVolumeId()); err != nil {
		return nil, err
	}
	err := c.locks.exclusively(ctx, idLock(r.GetVolumeId()), func() error {
		return c.volumes.modify(ctx, r.GetVolumeId(), withoutKubernetes(r.GetMutableParameters()))
	})
	if err != nil {
		return nil, err
	}
	return &csi.ControllerModifyVolumeResponse{}, nil
}

func (s *volumes) modify(ctx context.Context, id string, parameters map[string]string) error {
	v, ok := s.state.byID(id)
	if !ok || v.Step != made {
		return noSuchVolume(id)
	}
	plugin, ok := s.plugin.(volume.ModifiableVolumePlugin)
	if !ok {
		return unimplemented("ControllerModifyVolume")
	}
	err := plugin.ModifyVolume(ctx, s.specOfVolume(v), parameters)
	switch {
	case outcome.ClassOf(err) != outcome.Final:
		return err
	case errors.Is(err, fs.ErrNotExist):
		return status.Errorf(codes.NotFound, "volume %s: %v", volume.Quote(id), err)
	case errors.Is(err, volume.ErrInfeasible):
		return status.Error(codes.InvalidArgument, err.Error()) // the code that the specification requires for this call
	}
	return err
}
