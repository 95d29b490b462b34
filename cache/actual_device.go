package cache

import (
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/operationexecutor"
)

// MarkDeviceAsMounted implements the executor's mounter updater. An empty path does not replace one that is known.
func (a *ActualStateOfWorld) MarkDeviceAsMounted(volumeName v1.UniqueVolumeName, devicePath, deviceMountPath, seLinuxMountContext string) error {
	return a.markDevice(volumeName, succeeded, staging{devicePath, deviceMountPath, seLinuxMountContext})
}

// MarkDeviceAsUncertain implements the executor's mounter updater. An empty path or context does not replace one that is
// known: it may still be so mounted.
func (a *ActualStateOfWorld) MarkDeviceAsUncertain(volumeName v1.UniqueVolumeName, devicePath, deviceMountPath, seLinuxMountContext string) error {
	return a.markDevice(volumeName, unproven, staging{devicePath, deviceMountPath, seLinuxMountContext})
}

// MarkDeviceAsUnmounted implements the executor's mounter updater. It refuses, with an error that matches
// volume.ErrInUse, while the volume is or may be set up for a pod.
func (a *ActualStateOfWorld) MarkDeviceAsUnmounted(volumeName v1.UniqueVolumeName) error {
	return a.updateKnown(volumeName, func(v *knownVolume) error {
		if err := v.moveDevice(undone); err != nil {
			return err
		}
		v.deviceMountPath, v.seLinuxMountContext, v.deviceReconstructed = "", "", false
		return nil
	})
}

// staging is how a device is staged.
type staging struct{ devicePath, deviceMountPath, seLinuxMountContext string }

func (a *ActualStateOfWorld) markDevice(volumeName v1.UniqueVolumeName, e event, s staging) error {
	return a.updateKnown(volumeName, func(v *knownVolume) error {
		if err := v.moveDevice(e); err != nil {
			return err
		}
		v.setPaths(s.devicePath, s.deviceMountPath)
		if e == succeeded || s.seLinuxMountContext != "" {
			v.seLinuxMountContext = s.seLinuxMountContext
		}
		if e == succeeded {
			v.deviceReconstructed = false
		}
		return nil
	})
}

func (v *knownVolume) moveDevice(e event) (err error) {
	v.device, err = deviceMoves.next(v, v.device, e)
	return err
}

// GetDeviceMountState implements the executor's mounter updater. Nothing is staged of a volume that is not known.
func (a *ActualStateOfWorld) GetDeviceMountState(volumeName v1.UniqueVolumeName) operationexecutor.DeviceMountState {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if v := a.volumes[volumeName]; v != nil {
		return v.device
	}
	return operationexecutor.DeviceNotMounted
}
