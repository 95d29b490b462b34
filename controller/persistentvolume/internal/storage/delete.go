package storage

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/controller/internal/call"
	"github.com/volumekit/volumekit/controller/internal/objects"
	"github.com/volumekit/volumekit/volume"
)

// IsExternal reports whether another program must delete the storage: an external provisioner made the volume, or it
// was created by hand for a driver without a plugin here.
func (p *Plugins) IsExternal(pv *v1.PersistentVolume) bool {
	if pv.Annotations[objects.AnnMigratedTo] != "" {
		return true
	}
	owner, ok := pv.Annotations[objects.AnnDynamicallyProvisioned]
	if !ok {
		var driver volume.Driver
		driver, ok = volume.NewSpecFromPersistentVolume(pv, false).Driver()
		owner = driver.PluginName
	}
	return ok && !slices.Contains(p.plugins.PluginNames(), owner)
}

// Deleter returns the plugin that provisioned the volume; for a volume created by hand, the one that supports it.
func (p *Plugins) Deleter(pv *v1.PersistentVolume) (volume.DeletableVolumePlugin, error) {
	if by, ok := pv.Annotations[objects.AnnDynamicallyProvisioned]; ok {
		return p.plugins.FindDeletablePluginByName(by)
	}
	return p.plugins.FindDeletablePluginBySpec(volume.NewSpecFromPersistentVolume(pv, false))
}

// Delete calls the plugin to delete the storage of pv.
func (p *Plugins) Delete(ctx context.Context, plugin volume.DeletableVolumePlugin, pv *v1.PersistentVolume) error {
	spec := volume.NewSpecFromPersistentVolume(pv.DeepCopy(), false)
	name := call.Call{Plugin: plugin.GetPluginName(), Method: "Delete", Object: object(pv.Name)}
	name.Secrets = spec.Secrets(p.plugins.PublicKeys(name.Plugin))
	return p.calls.Do(ctx, name, func(ctx context.Context) error {
		deleter, err := plugin.NewDeleter(spec)
		if err != nil {
			return err
		}
		return deleter.Delete(ctx)
	})
}

// Recycle calls the plugin to delete the content of pv's storage, and forwards its messages. A plugin that recycles
// with a pod may have a longer deadline than other calls.
func (p *Plugins) Recycle(
	ctx context.Context, plugin volume.RecyclableVolumePlugin, pv *v1.PersistentVolume, report func(eventType, message string),
) error {
	spec := volume.NewSpecFromPersistentVolume(pv.DeepCopy(), false)
	recycling := call.Call{Plugin: plugin.GetPluginName(), Method: "Recycle", Object: object(pv.Name), AtLeast: volume.RecyclerTimeout(pv)}
	recycling.Secrets = spec.Secrets(p.plugins.PublicKeys(recycling.Plugin))
	redacted := func(eventType, message string) { report(eventType, recycling.Secrets.RedactText(message)) }
	return p.calls.Do(ctx, recycling, func(ctx context.Context) error { return plugin.Recycle(ctx, pv.Name, spec, redacted) })
}
