package cache

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/internal/rows"
	"github.com/volumekit/volumekit/volume"
)

// setUps holds the volumes that are being set up for each pod, oldest first. Its lock is that of the state.
type setUps map[volume.UniquePodName][]*setUp

// setUp is a volume that is being set up for a pod.
type setUp struct {
	volume v1.UniqueVolumeName
	// outdated says that the pod was updated since the set-up began.
	outdated bool
}

func (s setUps) begin(volumeName v1.UniqueVolumeName, podName volume.UniquePodName) *setUp {
	begun := &setUp{volume: volumeName}
	s[podName] = append(s[podName], begun)
	return begun
}

func (s setUps) end(podName volume.UniquePodName, ended *setUp) {
	isEnded := func(other *setUp) bool { return other == ended }
	rows.SetList(s, podName, slices.DeleteFunc(s[podName], isEnded))
}

// outdate records that a pod was updated.
func (s setUps) outdate(podName volume.UniquePodName) {
	for _, running := range s[podName] {
		running.outdated = true
	}
}

// isOutdated reports whether the pod was updated since the volume's last set-up for it began.
func (s setUps) isOutdated(volumeName v1.UniqueVolumeName, podName volume.UniquePodName) bool {
	for _, running := range slices.Backward(s[podName]) {
		if running.volume == volumeName {
			return running.outdated
		}
	}
	return false
}

// WatchSetUp implements operationexecutor.SetUpWatcher. If the pod is updated during the set-up, the volume must be set up once more.
func (a *ActualStateOfWorld) WatchSetUp(volumeName v1.UniqueVolumeName, podName volume.UniquePodName) (end func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	begun := a.settingUp.begin(volumeName, podName)
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.settingUp.end(podName, begun)
	}
}
