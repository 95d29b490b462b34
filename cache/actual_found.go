package cache

import (
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// This file fills the actual state at start-up with what an earlier process made.

// ReconstructedVolume is a volume that an earlier process attached or staged, or may have. VolumeName is required.
type ReconstructedVolume struct {
	// VolumeName is the unique name of the volume.
	VolumeName v1.UniqueVolumeName
	// VolumeSpec is the volume; nil when only its name is known.
	VolumeSpec *volume.Spec
	// PluginName is the name of its plugin, which need not be registered. Empty means the plugin named in VolumeName.
	PluginName string
	// PluginIsAttachable says that the volume may be attached and must be detached.
	PluginIsAttachable bool
	// PluginIsDeviceMountable says that the plugin stages this volume.
	PluginIsDeviceMountable bool
	// DevicePath is the absolute path of the device; empty when it is not known.
	DevicePath string
	// DeviceMountPath is the absolute path at which the volume may be staged. Empty means that it is not staged.
	DeviceMountPath string
	// SELinuxMountContext is the context with which the volume may be staged. Empty means without one.
	SELinuxMountContext string
}

// AddReconstructedVolume adds a volume that was found. Its staging is uncertain, and so is its attachment if it needs one.
// Existing knowledge is never overwritten. It calls no plugin.
func (a *ActualStateOfWorld) AddReconstructedVolume(r ReconstructedVolume) error {
	facts := pluginFacts{name: r.PluginName, attachable: r.PluginIsAttachable, deviceMountable: r.PluginIsDeviceMountable}
	if facts.name == "" {
		pluginName, _, err := volume.SplitUniqueName(r.VolumeName)
		if err != nil {
			return err
		}
		facts.name = pluginName
	}
	return a.update(r.VolumeName, func(v *knownVolume) error { return a.found(v, r, facts) })
}

func (a *ActualStateOfWorld) found(v *knownVolume, r ReconstructedVolume, facts pluginFacts) (err error) {
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
