package csiserver

import (
	"context"
	"log/slog"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// resolved is the plugin, initialised, with what the registry has resolved of it and what the options say of its use.
type resolved struct {
	options Options
	plugin  volume.VolumePlugin
	name    string // of the driver
	can     volume.Capabilities
	public  []string
	plugins *volume.VolumePluginMgr
	host    *volume.Host
	mounter mount.Interface
	logger  *slog.Logger
}

// resolve initialises the plugin and resolves what it can do.
func (s *Server) resolve(ctx context.Context) (*resolved, error) {
	plugins := volume.NewVolumePluginMgr(s.host)
	if err := plugins.InitPlugins(ctx, s.plugin); err != nil {
		return nil, err
	}
	name := s.plugin.GetPluginName()
	return &resolved{
		options: s.options, plugin: s.plugin, name: s.name, can: plugins.Capabilities(name), public: plugins.PublicKeys(name),
		plugins: plugins, host: s.host, mounter: s.options.Mounter, logger: s.logger,
	}, nil
}

// Can the driver do this? Each follows from the plugin's capabilities and the options.

func (s *resolved) makes() bool { return s.can.Has(volume.CapProvision | volume.CapDelete) }

func (s *resolved) attachesByController() bool {
	return s.can.Has(volume.CapAttach) && s.options.Attach == AttachByController
}

func (s *resolved) attachesOnNode() bool {
	return s.can.Has(volume.CapAttach) && s.options.Attach == AttachOnNode
}

func (s *resolved) stages() bool {
	return s.can.Has(volume.CapDeviceMount) || s.can.Has(volume.CapBlock)
}
