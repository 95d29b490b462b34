package snapshot

import (
	"context"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/controller/internal/call"
	"github.com/volumekit/volumekit/volume"
)

// plugins calls the plugins.
type plugins struct {
	mgr   *volume.VolumePluginMgr
	calls *call.Calls
}

// served returns the name of the plugin that driver means; "" when it is none of those here, and another program serves it.
func (p *plugins) served(driver string) string {
	for _, name := range p.mgr.PluginNames() {
		if volume.IsDriverOfPlugin(driver, name) {
			return name
		}
	}
	return ""
}

// source is a volume that is snapshotted.
type source struct {
	spec   *volume.Spec
	handle string // the name that the plugin has for the volume
	plugin volume.SnapshottableVolumePlugin
}

// sourceOf returns a volume as its plugin knows it. An error matches volume.ErrNoPlugin or volume.ErrUnsupported if no snapshot can be
// made of it.
func (p *plugins) sourceOf(pv *v1.PersistentVolume) (source, error) {
	spec := volume.NewSpecFromPersistentVolume(pv.DeepCopy(), false)
	plugin, err := p.mgr.FindSnapshottablePluginBySpec(spec)
	if err != nil {
		return source{}, fmt.Errorf("no snapshot can be made of volume %q: %w", pv.Name, err)
	}
	handle, err := plugin.GetVolumeName(spec)
	if err != nil {
		return source{}, fmt.Errorf("plugin %q names volume %q: %w", plugin.GetPluginName(), pv.Name, err)
	}
	return source{spec: spec, handle: handle, plugin: plugin}, nil
}

// create has the plugin make the snapshot of a name.
func (p *plugins) create(ctx context.Context, from source, name string, parameters map[string]string) (made volume.Snapshot, err error) {
	c := call.Call{Plugin: from.plugin.GetPluginName(), Method: "CreateSnapshot", Object: object("snapshot", name)}
	c.Secrets = from.spec.Secrets(p.mgr.PublicKeys(c.Plugin))
	options := volume.SnapshotOptions{Name: name, Source: from.spec, Parameters: maps.Clone(parameters)}
	err = p.calls.Do(ctx, c, func(ctx context.Context) (err error) {
		made, err = from.plugin.CreateSnapshot(ctx, options)
		return err
	})
	if err == nil && made.Handle == "" {
		err = volume.Uncertain(fmt.Errorf("%s returned no handle: %w", c, volume.ErrInvalid))
	}
	return made, err
}

// get returns the snapshot of a handle. An error that matches volume.ErrUnsupported says that the plugin cannot report snapshots.
func (p *plugins) get(ctx context.Context, plugin volume.SnapshottableVolumePlugin, handle string) (found volume.Snapshot, err error) {
	c := call.Call{Plugin: plugin.GetPluginName(), Method: "GetSnapshot", Object: object("snapshot", handle)}
	err = p.calls.Do(ctx, c, func(ctx context.Context) (err error) {
		found, err = plugin.GetSnapshot(ctx, handle)
		return err
	})
	if err == nil && found.Handle != handle {
		err = fmt.Errorf("%s returned snapshot %q: %w", c, found.Handle, volume.ErrInvalid)
	}
	return found, err
}

func (p *plugins) delete(ctx context.Context, plugin volume.SnapshottableVolumePlugin, handle string) error {
	c := call.Call{Plugin: plugin.GetPluginName(), Method: "DeleteSnapshot", Object: object("snapshot", handle)}
	return p.calls.Do(ctx, c, func(ctx context.Context) error { return plugin.DeleteSnapshot(ctx, handle) })
}

func (p *plugins) createGroup(
	ctx context.Context, plugin volume.GroupSnapshottableVolumePlugin, options volume.GroupSnapshotOptions,
) (made volume.GroupSnapshot, err error) {
	c := call.Call{Plugin: plugin.GetPluginName(), Method: "CreateGroupSnapshot", Object: object("group", options.Name)}
	var secrets []volume.Secrets
	for _, spec := range options.Sources {
		secrets = append(secrets, spec.Secrets(p.mgr.PublicKeys(c.Plugin)))
	}
	options.Parameters = maps.Clone(options.Parameters)
	err = p.calls.Do(ctx, c, func(ctx context.Context) (err error) {
		made, err = plugin.CreateGroupSnapshot(ctx, options)
		for _, s := range secrets {
			err = s.Redact(err)
		}
		return err
	})
	if err == nil && (made.Handle == "" || len(made.Snapshots) != len(options.Sources)) {
		err = volume.Uncertain(fmt.Errorf("%s returned handle %q and %d snapshots of %d volumes: %w",
			c, made.Handle, len(made.Snapshots), len(options.Sources), volume.ErrInvalid))
	}
	return made, err
}

func (p *plugins) getGroup(
	ctx context.Context, plugin volume.GroupSnapshottableVolumePlugin, handle string, members []string,
) (found volume.GroupSnapshot, err error) {
	c := call.Call{Plugin: plugin.GetPluginName(), Method: "GetGroupSnapshot", Object: object("group", handle)}
	err = p.calls.Do(ctx, c, func(ctx context.Context) (err error) {
		found, err = plugin.GetGroupSnapshot(ctx, handle, slices.Clone(members))
		return err
	})
	if err == nil && found.Handle != handle {
		err = fmt.Errorf("%s returned group %q: %w", c, found.Handle, volume.ErrInvalid)
	}
	return found, err
}

func (p *plugins) deleteGroup(
	ctx context.Context, plugin volume.GroupSnapshottableVolumePlugin, handle string, members []string,
) error {
	c := call.Call{Plugin: plugin.GetPluginName(), Method: "DeleteGroupSnapshot", Object: object("group", handle)}
	return p.calls.Do(ctx, c, func(ctx context.Context) error {
		return plugin.DeleteGroupSnapshot(ctx, handle, slices.Clone(members))
	})
}
