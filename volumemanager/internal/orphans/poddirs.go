package orphans

import (
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
)

// RemovePodDirs removes the empty directories of a pod that is gone, above a volume that was torn down or unmapped. It uses
// rmdir only: a foreign file or directory stays, and so do the directories above it. A directory that still holds another
// volume of the pod is removed after that volume. It reports whether nothing is left of the pod.
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
		l.removeEmptyPod(uid) // A manager that was killed may have left more, and so may others.
	}
	return false
}

// removeEmptyDirs removes dir and its parents, up to and including top, as long as they are empty. It reports whether top is
// gone.
func (l *List) removeEmptyDirs(dir, top string) (gone bool) {
	for ; dir == top || strings.HasPrefix(dir, top+string(filepath.Separator)); dir = filepath.Dir(dir) {
		if gone = l.removeEmptyDir(dir); !gone {
			return false // The directories above it are not empty either.
		}
	}
	return gone
}

// removeEmptyDir removes a directory if it is empty and no mount point, and reports whether it is gone. It logs no failure
// for a directory that is missing or in use.
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
