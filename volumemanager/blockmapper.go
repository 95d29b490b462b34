package volumemanager

import (
	"context"

	"github.com/volumekit/volumekit/mount/blockmap"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volumemanager/internal/sentinel"
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
	return sentinel.OfMount(b.mapper.MapDevice(ctx, mapping(m)))
}

// UnmapDevice implements [operationexecutor.BlockMapper].
func (b BlockMapper) UnmapDevice(ctx context.Context, m operationexecutor.DeviceMapping) error {
	return sentinel.OfMount(b.mapper.UnmapDevice(ctx, mapping(m)))
}

// ResolveDevice implements [operationexecutor.MapPaths].
func (b BlockMapper) ResolveDevice(ctx context.Context, devicePath string) (string, error) {
	path, err := b.mapper.ResolveDevice(ctx, devicePath)
	return path, sentinel.OfMount(err)
}

// MappedPods implements [operationexecutor.MapPaths].
func (b BlockMapper) MappedPods(ctx context.Context, globalMapPath string) ([]string, error) {
	pods, err := b.mapper.MappedPods(ctx, globalMapPath)
	return pods, sentinel.OfMount(err)
}

// RemoveMapPath implements [operationexecutor.MapPaths].
func (b BlockMapper) RemoveMapPath(ctx context.Context, globalMapPath string) error {
	return sentinel.OfMount(b.mapper.RemoveMapPath(ctx, globalMapPath))
}

func mapping(m operationexecutor.DeviceMapping) blockmap.Mapping {
	return blockmap.Mapping{
		DevicePath: m.DevicePath, GlobalMapPath: m.GlobalMapPath,
		PodMapDir: m.PodMapDir, LinkName: m.LinkName, PodUID: string(m.PodUID),
	}
}
