package operationexecutor

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// ReconstructVolume asks the plugin what volume it is that was found at a path, and waits for the answer: with a deadline,
// guarded against panics and among the plugin's bounded calls, like every other call. It changes nothing and holds no key.
// Records of what was done come first: a path tells less. The error is a *volume.Error; it matches volume.ErrUnsupported
// when the plugin cannot tell. The mode of the volume decides what is asked, and must be that of the answer.
func (e *Executor) ReconstructVolume(ctx context.Context, v VolumeToReconstruct) (volume.ReconstructedVolume, error) {
	var reconstructed volume.ReconstructedVolume
	op, err := e.begin(ctx, Key{}, e.generator.GenerateReconstructVolumeFunc(v, func(found volume.ReconstructedVolume) { reconstructed = found }))
	if err != nil {
		return volume.ReconstructedVolume{}, err
	}
	<-op.Done()
	return reconstructed, op.Err()
}

// reconstructing is one operation that asks what was found.
type reconstructing struct {
	*generator
	x *execution
	v VolumeToReconstruct
}

// GenerateReconstructVolumeFunc implements [OperationGenerator]. found is called in the operation's goroutine, before the
// operation is done, and only when it succeeds.
func (g *generator) GenerateReconstructVolumeFunc(v VolumeToReconstruct, found func(volume.ReconstructedVolume)) *Operation {
	info := OperationInfo{Kind: OpReconstruct, PluginName: v.PluginName, PodName: volume.UniquePodName(v.PodUID)}
	return newOperation(info, codeFunc(func(ctx context.Context, x *execution) error {
		x.failed = func(_ context.Context, err error) error {
			return fmt.Errorf("volume %q at %q cannot be reconstructed: %w", v.InnerVolumeSpecName, v.VolumePath, err)
		}
		r := &reconstructing{generator: g, x: x, v: v}
		reconstructed, err := r.run(ctx)
		if err == nil {
			found(reconstructed)
		}
		return err
	}))
}

func (r *reconstructing) run(ctx context.Context) (volume.ReconstructedVolume, error) {
	var reconstructed volume.ReconstructedVolume
	var err error
	if r.v.VolumeMode == v1.PersistentVolumeBlock {
		reconstructed, err = r.block(ctx)
	} else {
		reconstructed, err = r.filesystem(ctx)
	}
	if err != nil {
		return volume.ReconstructedVolume{}, err
	}
	return reconstructed, r.check(reconstructed)
}

func (r *reconstructing) filesystem(ctx context.Context) (volume.ReconstructedVolume, error) {
	plugin, err := construct(ctx, r.x, "FindPlugin", func() (volume.ReconstructableVolumePlugin, error) {
		return r.plugins.FindReconstructablePluginByName(r.v.PluginName)
	})
	if err != nil {
		return volume.ReconstructedVolume{}, err
	}
	return construct(ctx, r.x, "ConstructVolumeSpec", func() (volume.ReconstructedVolume, error) {
		return plugin.ConstructVolumeSpec(r.v.InnerVolumeSpecName, r.v.VolumePath)
	})
}

func (r *reconstructing) block(ctx context.Context) (volume.ReconstructedVolume, error) {
	plugin, err := find(ctx, r.x, func() (volume.BlockVolumePlugin, error) {
		return r.plugins.FindMapperPluginByName(r.v.PluginName)
	})
	if err != nil {
		return volume.ReconstructedVolume{}, err
	}
	spec, err := perform(ctx, r.x, r.x.reading("ConstructBlockVolumeSpec"), func(context.Context) (*volume.Spec, error) {
		return plugin.ConstructBlockVolumeSpec(r.v.PodUID, r.v.InnerVolumeSpecName, r.v.VolumePath)
	})
	return volume.ReconstructedVolume{Spec: spec}, err
}

// check refuses an answer that would be taken for another volume: none, one of another name, or of another mode.
func (r *reconstructing) check(found volume.ReconstructedVolume) error {
	if found.Spec == nil {
		return fmt.Errorf("plugin %q returned neither a spec nor an error: %w", r.v.PluginName, volume.ErrInvalid)
	}
	if name := found.Spec.Name(); name != r.v.InnerVolumeSpecName {
		return fmt.Errorf("plugin %q takes it for volume %q: %w", r.v.PluginName, name, volume.ErrInvalid)
	}
	mode, err := volume.GetVolumeMode(found.Spec)
	if err != nil {
		return err
	}
	if (mode == v1.PersistentVolumeBlock) != (r.v.VolumeMode == v1.PersistentVolumeBlock) {
		return fmt.Errorf("plugin %q takes it for a volume of mode %s: %w", r.v.PluginName, mode, volume.ErrInvalid)
	}
	return nil
}
