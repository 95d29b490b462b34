package cache

import (
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// pluginFacts is what a state needs to know of a volume's plugin. It is asked once, outside of all locks.
type pluginFacts struct {
	name            string
	attachable      bool
	deviceMountable bool
	// remountable says that the volume is set up again at each update of the pod.
	remountable bool
}

// factsOf asks the registry for the plugin of spec; when spec is nil, for the plugin that name begins with.
func factsOf(plugins *volume.VolumePluginMgr, spec *volume.Spec, name v1.UniqueVolumeName) (pluginFacts, error) {
	if spec == nil {
		pluginName, _, err := volume.SplitUniqueName(name)
		capabilities := plugins.Capabilities(pluginName)
		return pluginFacts{
			name:            pluginName,
			attachable:      capabilities.Has(volume.CapAttach),
			deviceMountable: capabilities.Has(volume.CapDeviceMount),
		}, err
	}
	plugin, err := plugins.FindPluginBySpec(spec)
	if err != nil {
		return pluginFacts{}, err
	}
	facts := pluginFacts{name: plugin.GetPluginName()}
	if facts.attachable, err = plugins.IsAttachable(spec); err != nil {
		return pluginFacts{}, err
	}
	if facts.deviceMountable, err = plugins.IsDeviceMountable(spec); err != nil {
		return pluginFacts{}, err
	}
	facts.remountable, err = plugins.RequiresRemount(spec)
	return facts, err
}
