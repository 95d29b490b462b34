package volumemanager

import (
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
)

// doubt marks a certain set-up or staging as uncertain, and reports whether it did.
func (m *Manager) doubt(h podvolume.Key) bool {
	if h.Pod == "" {
		row, ok := m.actual.GetAttachedVolume(h.Volume)
		return ok && row.DeviceMountState == operationexecutor.DeviceGloballyMounted &&
			m.actual.MarkDeviceAsUncertain(h.Volume, row.DevicePath, row.DeviceMountPath, row.SELinuxMountContext) == nil
	}
	row, ok := m.actual.GetMountedVolume(h.Volume, h.Pod)
	return ok && row.State == operationexecutor.VolumeMounted && m.actual.MarkVolumeMountAsUncertain(operationexecutor.MarkVolumeOpts{
		VolumeName: h.Volume, PodName: h.Pod, PodUID: row.PodUID, Pod: row.Pod, VolumeSpec: row.VolumeSpec,
		OuterVolumeSpecNames: row.OuterVolumeSpecNames, Mounter: row.Mounter, BlockVolumeMapper: row.BlockVolumeMapper,
		MountPath: row.MountPath, SELinuxMountContext: row.SELinuxMountContext, VolumeGidValue: row.VolumeGidValue,
	}) == nil
}
