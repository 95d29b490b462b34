package volumemanager

import (
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// removePodDirs removes the pod's directories above a volume that was torn down or unmapped, as far as they are empty and the pod is
// gone. They go by rmdir alone, so that what somebody else put there stays, and with it all above. What cannot go now,
// since another volume of the pod is still there, goes after that one.
func (m *Manager) removePodDirs(o operationexecutor.OperationInfo) {
	if m.isKnown(o.PodName) {
		return // its next set-up may be making them
	}
	host, uid := m.plugins.Host(), types.UID(o.PodName)
	pod := filepath.Join(host.GetPodsDir(), string(uid))
	removeEmptyDirs(filepath.Dir(host.GetPodVolumeDir(uid, o.PluginName, "volume")), pod)
	removeEmptyDirs(host.GetPodVolumeDeviceDir(uid, o.PluginName), pod)
	removeEmptyDirs(host.GetPodPluginDir(uid, o.PluginName), pod)
}

// removeEmptyDirs removes dir and those above it, up to and with top, as far as they are empty.
func removeEmptyDirs(dir, top string) {
	for ; dir == top || strings.HasPrefix(dir, top+string(filepath.Separator)); dir = filepath.Dir(dir) {
		_ = rmdir(dir) // not empty, or not there: nothing is to be done about either
	}
}

func (m *Manager) isKnown(podName volume.UniquePodName) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pods[types.UID(podName)] != nil
}
