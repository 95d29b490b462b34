package operationexecutor

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/volume"
)

// ErrExpansionNotRequested says that a node cannot expand a volume yet, because the claim does not say that the storage
// behind it is ready for that, or says that a node found it can never be. It is transient.
var ErrExpansionNotRequested = errors.New("the claim does not ask a node to expand the volume")

// ExpandInUseVolume begins to expand a volume where it is mounted or mapped, to the size that its PersistentVolume has been
// given. currentSize is the size that it has on this node. It succeeds, too, when the plugin says that the volume cannot be
// expanded as long as it is used; the actual state is told.
func (e *Executor) ExpandInUseVolume(ctx context.Context, v VolumeToMount, actualState ActualStateOfWorldMounterUpdater, currentSize resource.Quantity) (*Operation, error) {
	return e.begin(ctx, Key{Volume: v.VolumeName}, e.generator.GenerateExpandInUseVolumeFunc(v, actualState, currentSize))
}

// expandingInUse is one expansion of a volume that a pod has.
type expandingInUse struct{ nodeExpansion }

// GenerateExpandInUseVolumeFunc implements [OperationGenerator].
func (g *generator) GenerateExpandInUseVolumeFunc(v VolumeToMount, actualState ActualStateOfWorldMounterUpdater, currentSize resource.Quantity) *Operation {
	info := OperationInfo{Kind: OpExpandInUse, PluginName: v.PluginName, VolumeName: v.VolumeName, PodName: v.PodName}
	return newOperation(info, &expandingInUse{nodeExpansion{generator: g, v: v, state: actualState, current: currentSize}})
}

func (e *expandingInUse) run(ctx context.Context, x *execution) error {
	e.x = x
	if e.claims == nil {
		return errors.New("the claim of the volume cannot be asked: give GeneratorOptions Claims")
	}
	if e.state.GetVolumeMountState(e.v.VolumeName, e.v.PodName) != VolumeMounted {
		return volume.Transient(fmt.Errorf("pod %q does not have the volume any more, or not for certain: it is expanded when it is mounted", e.v.PodName))
	}
	spec := e.copyOf(e.x, e.v.VolumeSpec)
	plugin, err := find(ctx, e.x, func() (volume.VolumePlugin, error) { return e.plugins.FindPluginBySpec(spec) })
	if err != nil {
		return err
	}
	expands, err := e.prepare(ctx)
	if err != nil {
		return err
	}
	if !expands {
		e.state.MarkVolumeAsResized(e.v.VolumeName, e.v.DesiredPersistentVolumeSize)
		return nil // The storage grew, and there is nothing else to grow.
	}
	if err := e.findPaths(ctx, plugin); err != nil {
		return err
	}
	return e.expand(ctx)
}

func (e *expandingInUse) expand(ctx context.Context) (err error) {
	if e.claim, err = e.readClaim(ctx, e.x, e.v.VolumeSpec); err != nil {
		return err
	}
	plan := e.plan()
	if plan.step != nodeWait {
		return e.do(ctx, plan)
	}
	if resizeStatus(e.claim) == v1.PersistentVolumeClaimNodeResizeInfeasible {
		return volume.Transient(fmt.Errorf("%w: a node found that it can never be: %w", ErrExpansionNotRequested, volume.ErrInfeasible))
	}
	return volume.Transient(ErrExpansionNotRequested)
}

// findPaths asks the plugin where the volume is reached.
func (e *expandingInUse) findPaths(ctx context.Context, plugin volume.VolumePlugin) error {
	e.paths.DevicePath = e.v.DevicePath
	filesystem, err := volume.CheckVolumeModeFilesystem(e.v.VolumeSpec)
	if err != nil {
		return err
	}
	if !filesystem {
		return e.findMapPaths(ctx)
	}
	v := e.forPlugins()
	e.paths.DeviceMountPath, err = construct(ctx, e.x, "GetPath", func() (string, error) { return mounterPath(plugin, v) })
	if err != nil || !e.v.PluginIsDeviceMountable {
		return err
	}
	e.paths.DeviceStagePath, err = construct(ctx, e.x, "GetDeviceMountPath", func() (string, error) { return e.stagePath(v) })
	return err
}

// forPlugins is the volume as plugins get it.
func (e *expandingInUse) forPlugins() VolumeToMount {
	v := e.v
	v.VolumeSpec = e.copyOf(e.x, v.VolumeSpec)
	return v
}

func mounterPath(plugin volume.VolumePlugin, v VolumeToMount) (string, error) {
	mounter, err := plugin.NewMounter(v.VolumeSpec, podOf(&v))
	if err != nil {
		return "", err
	}
	return mounter.GetPath(), nil
}

func (e *expandingInUse) stagePath(v VolumeToMount) (string, error) {
	plugin, err := e.plugins.FindDeviceMountablePluginBySpec(v.VolumeSpec)
	if err != nil {
		return "", err
	}
	mounter, err := plugin.NewDeviceMounter()
	if err != nil {
		return "", err
	}
	return mounter.GetDeviceMountPath(v.VolumeSpec)
}

// findMapPaths is findPaths for a block volume. A plugin that stages nothing has the device alone.
func (e *expandingInUse) findMapPaths(ctx context.Context) (err error) {
	v := e.forPlugins()
	e.paths.DeviceStagePath, err = construct(ctx, e.x, "GetStagingPath", func() (string, error) { return e.blockStagePath(v) })
	return err
}

func (e *expandingInUse) blockStagePath(v VolumeToMount) (string, error) {
	plugin, err := e.plugins.FindMapperPluginBySpec(v.VolumeSpec)
	if err != nil {
		return "", err
	}
	mapper, err := plugin.NewBlockVolumeMapper(v.VolumeSpec, podOf(&v))
	if err != nil {
		return "", err
	}
	if custom, ok := mapper.(volume.CustomBlockVolumeMapper); ok {
		return custom.GetStagingPath(), nil
	}
	return "", nil
}
