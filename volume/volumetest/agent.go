package volumetest

import (
	"context"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
)

// agent is one life of the node's process. It finds what the calls of the plugin are made on.
type agent struct {
	*caseRun
	registry     *volume.VolumePluginMgr
	plugin       volume.VolumePlugin
	capabilities volume.Capabilities
}

func (a *agent) attacher(spec *volume.Spec) volume.Attacher {
	a.t.Helper()
	plugin, err := a.registry.FindAttachablePluginBySpec(spec)
	a.must("finding the attacher", err)
	attacher, err := plugin.NewAttacher()
	a.must("NewAttacher", err)
	return attacher
}

func (a *agent) detacher() volume.Detacher {
	a.t.Helper()
	plugin, err := a.registry.FindAttachablePluginByName(a.plugin.GetPluginName())
	a.must("finding the detacher", err)
	detacher, err := plugin.NewDetacher()
	a.must("NewDetacher", err)
	return detacher
}

func (a *agent) deviceMounter(spec *volume.Spec) volume.DeviceMounter {
	a.t.Helper()
	plugin, err := a.registry.FindDeviceMountablePluginBySpec(spec)
	a.must("finding the device mounter", err)
	mounter, err := plugin.NewDeviceMounter()
	a.must("NewDeviceMounter", err)
	return mounter
}

func (a *agent) deviceUnmounter() volume.DeviceUnmounter {
	a.t.Helper()
	plugin, err := a.registry.FindDeviceMountablePluginByName(a.plugin.GetPluginName())
	a.must("finding the device unmounter", err)
	unmounter, err := plugin.NewDeviceUnmounter()
	a.must("NewDeviceUnmounter", err)
	return unmounter
}

// provisionable returns the plugin as one that makes volumes.
func (a *agent) provisionable() volume.ProvisionableVolumePlugin {
	a.t.Helper()
	plugin, err := a.registry.FindProvisionablePluginByName(a.plugin.GetPluginName())
	a.must("finding the provisioner", err)
	return plugin
}

// provisioner returns what makes a volume.
func (a *agent) provisioner(options volume.VolumeOptions) volume.Provisioner {
	a.t.Helper()
	provisioner, err := a.provisionable().NewProvisioner(options)
	a.must("NewProvisioner", err)
	return provisioner
}

// tryProvision provisions what may be refused.
func (a *agent) tryProvision(options volume.VolumeOptions) (*v1.PersistentVolume, error) {
	a.t.Helper()
	provisioner, err := a.provisionable().NewProvisioner(options)
	if err != nil {
		return nil, err
	}
	return provisioner.Provision(a.ctx(), nil, nil)
}

// deleter returns what deletes the volume of spec.
func (a *agent) deleter(spec *volume.Spec) volume.Deleter {
	a.t.Helper()
	plugin, err := a.registry.FindDeletablePluginBySpec(spec)
	a.must("finding the deleter", err)
	deleter, err := plugin.NewDeleter(spec)
	a.must("NewDeleter", err)
	return deleter
}

// tryDelete deletes a volume that the suite has provisioned, if the plugin can.
func (a *agent) tryDelete(spec *volume.Spec) {
	plugin, err := a.registry.FindDeletablePluginBySpec(spec)
	if err != nil {
		return
	}
	deleter, err := plugin.NewDeleter(spec)
	if err != nil {
		return
	}
	if err := deleter.Delete(context.WithoutCancel(a.ctx())); err != nil {
		a.t.Logf("clean-up: deleting volume %q: %v", spec.Name(), err)
	}
}

func (a *agent) volumeNameOf(pv *v1.PersistentVolume) string {
	a.t.Helper()
	name, err := a.plugin.GetVolumeName(volume.NewSpecFromPersistentVolume(pv, false))
	a.must("GetVolumeName", err)
	return name
}

func (a *agent) snapshotter() volume.SnapshottableVolumePlugin {
	a.t.Helper()
	plugin, err := a.registry.FindSnapshottablePluginByName(a.plugin.GetPluginName())
	a.must("finding what makes snapshots", err)
	return plugin
}

func (a *agent) groupSnapshotter() volume.GroupSnapshottableVolumePlugin {
	a.t.Helper()
	plugin, err := a.registry.FindGroupSnapshottablePluginByName(a.plugin.GetPluginName())
	a.must("finding what makes snapshots of groups", err)
	return plugin
}
