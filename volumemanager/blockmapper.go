package volumemanager

import (
	"context"

	"github.com/volumekit/volumekit/mount/blockmap"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volumemanager/internal/sentinel"
)

// DeviceMapper is the port operationexecutor.BlockMapper on real devices. A manager has one; a program that uses the executor
// alone gives it one as GeneratorOptions.BlockMapper. Make it with [NewDeviceMapper].
type DeviceMapper struct{ mapper *blockmap.Mapper }

var _ operationexecutor.BlockMapper = DeviceMapper{}

// NewDeviceMapper returns a port that maps with mapper.
func NewDeviceMapper(mapper *blockmap.Mapper) DeviceMapper { return DeviceMapper{mapper} }

// MapDevice implements [operationexecutor.BlockMapper]. Errors of all methods keep their class, and what they match in
// the packages of mount; those of a device that is held match volume.ErrInUse too.
func (b DeviceMapper) MapDevice(ctx context.Context, m operationexecutor.DeviceMapping) error {
	return sentinel.OfMount(b.mapper.MapDevice(ctx, mapping(m)))
}

// UnmapDevice implements [operationexecutor.BlockMapper].
func (b DeviceMapper) UnmapDevice(ctx context.Context, m operationexecutor.DeviceMapping) error {
	return sentinel.OfMount(b.mapper.UnmapDevice(ctx, mapping(m)))
}

// ResolveDevice implements [operationexecutor.MapPaths].
func (b DeviceMapper) ResolveDevice(ctx context.Context, devicePath string) (string, error) {
	path, err := b.mapper.ResolveDevice(ctx, devicePath)
	return path, sentinel.OfMount(err)
}

// MappedPods implements [operationexecutor.MapPaths].
func (b DeviceMapper) MappedPods(ctx context.Context, globalMapPath string) ([]string, error) {
	pods, err := b.mapper.MappedPods(ctx, globalMapPath)
	return pods, sentinel.OfMount(err)
}

// RemoveMapPath implements [operationexecutor.MapPaths].
func (b DeviceMapper) RemoveMapPath(ctx context.Context, globalMapPath string) error {
	return sentinel.OfMount(b.mapper.RemoveMapPath(ctx, globalMapPath))
}

func mapping(m operationexecutor.DeviceMapping) blockmap.Mapping {
	return blockmap.Mapping{
		DevicePath: m.DevicePath, GlobalMapPath: m.GlobalMapPath,
		PodMapDir: m.PodMapDir, LinkName: m.LinkName, PodUID: string(m.PodUID),
	}
}
