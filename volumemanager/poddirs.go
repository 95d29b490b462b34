package volumemanager

import (
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// removePodDirs removes the pod's directories above a volume that was torn down or unmapped, as far as they are empty and the pod is
// gone. They go by rmdir alone, so that what somebody else put there stays, and with it all above. What cannot go now,
// since another volume of the pod is still there, goes after that one. It reports whether nothing is left of the pod.
func (m *Manager) removePodDirs(o operationexecutor.OperationInfo) (gone bool) {
	if m.isKnown(o.PodName) {
		return false // its next set-up may be making them
	}
	host, uid := m.plugins.Host(), types.UID(o.PodName)
	pod := filepath.Join(host.GetPodsDir(), string(uid))
	if m.removeEmptyDirs(filepath.Dir(host.GetPodVolumeDir(uid, o.PluginName, "volume")), pod) ||
		m.removeEmptyDirs(host.GetPodVolumeDeviceDir(uid, o.PluginName), pod) ||
		m.removeEmptyDirs(host.GetPodPluginDir(uid, o.PluginName), pod) {
		return true
	}
	if len(m.actual.GetVolumeNamesForPod(o.PodName)) > 0 {
		return false
	}
	if _, err := os.Lstat(pod); err == nil {
		m.removeEmptyPod(uid) // A manager that was killed has left more, or somebody else did.
	}
	return false
}

// removeEmptyDirs removes dir and those above it, up to and with top, as far as they are empty, and reports whether top is gone.
func (m *Manager) removeEmptyDirs(dir, top string) (gone bool) {
	for ; dir == top || strings.HasPrefix(dir, top+string(filepath.Separator)); dir = filepath.Dir(dir) {
		if gone = m.removeEmptyDir(dir); !gone {
			return false // Nor is what is above it empty.
		}
	}
	return gone
}

// removeEmptyDir removes a directory if it is empty and nothing is mounted there, and reports whether it is gone. About one that
// is not there, or in use, nothing is to be done.
func (m *Manager) removeEmptyDir(dir string) (gone bool) {
	err := rmdir(dir)
	if err == nil || isMissing(err) {
		return true
	}
	if !isInUse(err) {
		m.options.Logger.Warn("an empty directory of a pod that is gone could not be removed", "path", dir, "error", err)
	}
	return false
}

func (m *Manager) isKnown(podName volume.UniquePodName) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pods[types.UID(podName)] != nil
}
