package cache

import (
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// pluginFacts is what a state needs to know of a volume's plugin. It is asked outside of all locks and kept with the
// volume.
type pluginFacts struct {
	name            string
	attachable      bool
	deviceMountable bool
	// remountable says that the volume is set up again at each update of the pod.
	remountable bool
	// seLinuxMount says that it can be mounted with an SELinux context.
	seLinuxMount bool
	// nodeExpandable says that the node grows what is on it.
	nodeExpandable bool
	// asked says that the plugin was asked about the spec, so that all of this is known.
	asked bool
}

func factsFrom(r volume.Resolved) pluginFacts {
	return pluginFacts{
		name:            r.PluginName,
		attachable:      r.Attachable,
		deviceMountable: r.DeviceMountable,
		remountable:     r.RequiresRemount,
		seLinuxMount:    r.SELinuxMount,
		nodeExpandable:  r.NodeExpandable,
		asked:           true,
	}
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
	r, err := plugins.Resolve(spec)
	if err != nil {
		return pluginFacts{}, err
	}
	return factsFrom(r), nil
}

// learn returns the facts with what only the plugin knows, as it answers now. What is to be undone stays as it was:
// whether a volume is attached and staged is a matter of what was done.
func (f pluginFacts) learn(now pluginFacts) pluginFacts {
	now.name, now.attachable, now.deviceMountable = f.name, f.attachable, f.deviceMountable
	return now
}
