package orphans

import (
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
)

// RemovePodDirs removes the pod's directories above a volume that was torn down or unmapped, as far as they are empty and the pod is
// gone. They go by rmdir alone, so that what somebody else put there stays, and with it all above. What cannot go now,
// since another volume of the pod is still there, goes after that one. It reports whether nothing is left of the pod.
func (l *List) RemovePodDirs(o operationexecutor.OperationInfo) (gone bool) {
	if l.options.IsKnown(o.PodName) {
		return false // its next set-up may be making them
	}
	host, uid := l.options.Plugins.Host(), types.UID(o.PodName)
	pod := filepath.Join(host.GetPodsDir(), string(uid))
	if l.removeEmptyDirs(filepath.Dir(host.GetPodVolumeDir(uid, o.PluginName, "volume")), pod) ||
		l.removeEmptyDirs(host.GetPodVolumeDeviceDir(uid, o.PluginName), pod) ||
		l.removeEmptyDirs(host.GetPodPluginDir(uid, o.PluginName), pod) {
		return true
	}
	if l.options.HasVolumes(o.PodName) {
		return false
	}
	if _, err := os.Lstat(pod); err == nil {
		l.removeEmptyPod(uid) // A manager that was killed has left more, or somebody else did.
	}
	return false
}

// removeEmptyDirs removes dir and those above it, up to and with top, as far as they are empty, and reports whether top is gone.
func (l *List) removeEmptyDirs(dir, top string) (gone bool) {
	for ; dir == top || strings.HasPrefix(dir, top+string(filepath.Separator)); dir = filepath.Dir(dir) {
		if gone = l.removeEmptyDir(dir); !gone {
			return false // Nor is what is above it empty.
		}
	}
	return gone
}

// removeEmptyDir removes a directory if it is empty and nothing is mounted there, and reports whether it is gone. About one that
// is not there, or in use, nothing is to be done.
func (l *List) removeEmptyDir(dir string) (gone bool) {
	err := rmdir(dir)
	if err == nil || isMissing(err) {
		return true
	}
	if !isOccupied(err) {
		l.options.Logger.Warn("an empty directory of a pod that is gone could not be removed", "path", dir, "error", err)
	}
	return false
}
