package fake

import (
	"context"
	"fmt"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// NewBlockVolumeMapper implements [volume.BlockVolumePlugin].
func (p *Plugin) NewBlockVolumeMapper(spec *volume.Spec, pod *v1.Pod) (volume.BlockVolumeMapper, error) {
	if pod == nil {
		return nil, fmt.Errorf("plugin %q: volume %q: pod is nil: %w", p.options.Name, spec.Name(), volume.ErrInvalid)
	}
	v, err := p.volumeOf(spec)
	if err != nil {
		return nil, err
	}
	mapper, err := p.newBlock(v.name, pod.UID)
	if err != nil {
		return nil, err
	}
	mapper.handle = v.handle
	return mapper, nil
}

// NewBlockVolumeUnmapper implements [volume.BlockVolumePlugin].
func (p *Plugin) NewBlockVolumeUnmapper(name string, podUID types.UID) (volume.BlockVolumeUnmapper, error) {
	return p.newBlock(name, podUID)
}

// ConstructBlockVolumeSpec implements [volume.BlockVolumePlugin].
func (p *Plugin) ConstructBlockVolumeSpec(_ types.UID, volumeName, mapPath string) (*volume.Spec, error) {
	if err := checkNames(volumeName); err != nil {
		return nil, fmt.Errorf("plugin %q: device mapped at %s: %w", p.options.Name, mapPath, err)
	}
	return p.constructSpec(volumeName, v1.PersistentVolumeBlock), nil
}

// newBlock returns the block of a volume and a pod. podUID is empty for TearDownDevice, which is not for one pod.
func (p *Plugin) newBlock(name string, podUID types.UID) (*block, error) {
	host, err := p.host.get()
	if err == nil {
		err = checkNames(name)
	}
	if err == nil && podUID != "" {
		err = checkPodUID(podUID)
	}
	if err != nil {
		return nil, fmt.Errorf("plugin %q: %w", p.options.Name, err)
	}
	return &block{plugin: p, host: host, name: name, pod: podUID}, nil
}

// block implements the mappers and unmappers of raw block volumes, and the custom ones.
type block struct {
	plugin *Plugin
	host   volume.VolumeHost
	name   string
	handle string // empty if only the name is known
	pod    types.UID
}

var (
	_ volume.CustomBlockVolumeMapper   = (*block)(nil)
	_ volume.CustomBlockVolumeUnmapper = (*block)(nil)
)

func (b *block) GetGlobalMapPath(spec *volume.Spec) (string, error) {
	v, err := b.plugin.volumeOf(spec)
	if err != nil {
		return "", err
	}
	id := v.handle
	if id == "" {
		id = v.name
	}
	return filepath.Join(b.host.GetVolumeDevicePluginDir(b.plugin.options.Name), id), nil
}

func (b *block) GetPodDeviceMapPath() (dir, linkName string) {
	return b.host.GetPodVolumeDeviceDir(b.pod, b.plugin.options.Name), b.name
}

// GetStagingPath returns "", because pods use the device that WaitForAttach returned.
func (b *block) GetStagingPath() string { return "" }

func (b *block) SetUpDevice(ctx context.Context, args volume.SetUpDeviceArgs) (string, error) {
	return "", b.run(ctx, MethodSetUpDevice, args.DevicePath)
}

// MapPodDevice returns a path only if args has none: a volume that needs no attachment has no device path before.
func (b *block) MapPodDevice(ctx context.Context, args volume.MapPodDeviceArgs) (string, error) {
	own := ""
	if args.DevicePath == "" {
		own = devicePath(b.handle)
	}
	return own, b.run(ctx, MethodMapPodDevice, args.DevicePath)
}

func (b *block) UnmapPodDevice(ctx context.Context, args volume.UnmapPodDeviceArgs) error {
	return b.run(ctx, MethodUnmapPodDevice, args.GlobalMapPath)
}

func (b *block) TearDownDevice(ctx context.Context, args volume.TearDownDeviceArgs) error {
	return b.run(ctx, MethodTearDownDevice, args.DevicePath)
}

func (b *block) run(ctx context.Context, method Method, path string) error {
	call := Call{Method: method, Volume: b.name, Pod: b.pod, Path: path}
	return b.plugin.log.run(ctx, call, func() error { return nil })
}
