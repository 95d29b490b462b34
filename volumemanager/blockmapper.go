package volumemanager

import (
	"context"
	"errors"
	"fmt"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/blockmap"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// BlockMapper is the executor's port of that name on real devices. A manager has one; a program that uses the executor
// alone gives it one as GeneratorOptions.BlockMapper. Make it with [NewBlockMapper].
type BlockMapper struct{ mapper *blockmap.Mapper }

var _ operationexecutor.BlockMapper = BlockMapper{}

// NewBlockMapper returns a port that maps with mapper.
func NewBlockMapper(mapper *blockmap.Mapper) BlockMapper { return BlockMapper{mapper} }

// MapDevice implements [operationexecutor.BlockMapper]. Errors of all methods keep their class, and what they match in
// the packages of mount; those of a device that is held match volume.ErrInUse too.
func (b BlockMapper) MapDevice(ctx context.Context, m operationexecutor.DeviceMapping) error {
	return alsoOfVolume(b.mapper.MapDevice(ctx, mapping(m)))
}

// UnmapDevice implements [operationexecutor.BlockMapper].
func (b BlockMapper) UnmapDevice(ctx context.Context, m operationexecutor.DeviceMapping) error {
	return alsoOfVolume(b.mapper.UnmapDevice(ctx, mapping(m)))
}

// ResolveDevice implements [operationexecutor.MapPaths].
func (b BlockMapper) ResolveDevice(ctx context.Context, devicePath string) (string, error) {
	path, err := b.mapper.ResolveDevice(ctx, devicePath)
	return path, alsoOfVolume(err)
}

// MappedPods implements [operationexecutor.MapPaths].
func (b BlockMapper) MappedPods(ctx context.Context, globalMapPath string) ([]string, error) {
	pods, err := b.mapper.MappedPods(ctx, globalMapPath)
	return pods, alsoOfVolume(err)
}

// RemoveMapPath implements [operationexecutor.MapPaths].
func (b BlockMapper) RemoveMapPath(ctx context.Context, globalMapPath string) error {
	return alsoOfVolume(b.mapper.RemoveMapPath(ctx, globalMapPath))
}

func mapping(m operationexecutor.DeviceMapping) blockmap.Mapping {
	return blockmap.Mapping{
		DevicePath: m.DevicePath, GlobalMapPath: m.GlobalMapPath,
		PodMapDir: m.PodMapDir, LinkName: m.LinkName, PodUID: string(m.PodUID),
	}
}

// alsoOfVolume makes an error of the mount layer match the sentinel of package volume that means the same.
func alsoOfVolume(err error) error {
	for theirs, ours := range map[error]error{
		loop.ErrInUse: volume.ErrInUse, mount.ErrUnsupported: volume.ErrUnsupported, mount.ErrInvalid: volume.ErrInvalid,
	} {
		if errors.Is(err, theirs) && !errors.Is(err, ours) {
			err = fmt.Errorf("%w (%w)", err, ours)
		}
	}
	return err
}
