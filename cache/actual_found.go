package cache

import (
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// This file fills the actual state at start-up with what an earlier process made.

// AddReconstructedVolume adds a volume that an earlier process attached or staged, or may have. Its staging at
// DeviceMountPath is uncertain, and so is its attachment if PluginIsAttachable says that it has one. Existing knowledge is
// never overwritten. Only VolumeName is required: an empty PluginName means the plugin named in VolumeName. The plugin need
// not be registered, and is not called. NodeName is not read.
func (a *ActualStateOfWorld) AddReconstructedVolume(attached operationexecutor.AttachedVolume) error {
	facts := pluginFacts{
		name: attached.PluginName, attachable: attached.PluginIsAttachable, deviceMountable: attached.PluginIsDeviceMountable,
	}
	if facts.name == "" {
		pluginName, _, err := volume.SplitUniqueName(attached.VolumeName)
		if err != nil {
			return err
		}
		facts.name = pluginName
	}
	return a.update(attached.VolumeName, func(v *knownVolume) error { return a.found(v, attached, facts) })
}

func (a *ActualStateOfWorld) found(v *knownVolume, r operationexecutor.AttachedVolume, facts pluginFacts) (err error) {
	e := found
	devicePath := ""
	if v == nil {
		v = a.newVolume(r.VolumeName, facts)
		v.spec, devicePath = r.VolumeSpec, r.DevicePath
		if !facts.attachable {
			e = succeeded // A volume that needs no attachment counts as attached.
		}
	}
	if v.attach, err = attachMoves.next(v, v.attach, e); err != nil {
		return err
	}
	v.setPaths(devicePath, "")
	if r.DeviceMountPath == "" || v.device != operationexecutor.DeviceNotMounted {
		return nil
	}
	v.deviceReconstructed, v.seLinuxMountContext = true, r.SELinuxMountContext
	v.setPaths(r.DevicePath, r.DeviceMountPath)
	return v.moveDevice(found)
}

// AddReconstructedPod adds a set-up that was found. The set-up is uncertain and reconstructed. If the pod's mount is known
// already, AddReconstructedPod changes nothing and returns false. The volume must have been added before.
func (a *ActualStateOfWorld) AddReconstructedPod(mounted operationexecutor.MountedVolume) (added bool, err error) {
	err = a.updateKnown(mounted.VolumeName, func(v *knownVolume) error {
		if v.mountOf(mounted.PodName) != nil {
			return errUnchanged
		}
		added = true
		return a.moveMount(v, found, &mounted)
	})
	return added && err == nil, err
}
