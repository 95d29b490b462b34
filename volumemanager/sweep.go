package volumemanager

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// The directories of a pod that only one plugin uses go after its volume. A manager that is killed in between leaves them,
// and no record. They go with the last volume of the pod or, when none is left, when the pod is removed once more.

// sweep removes the directories of a pod that was removed and of which no volume is known. It waits, in unswept, until
// all that a restart left is known.
func (m *Manager) sweep(podName volume.UniquePodName) {
	m.mu.Lock()
	later := m.journal != nil && !m.swept
	if later {
		m.unswept[podName] = struct{}{}
	}
	m.mu.Unlock()
	if !later && len(m.volumes.VolumesOfOperations(podName)) == 0 {
		m.sweepNow(podName)
	}
}

// sweepNow removes the directories of a pod of which no volume is known, if any are left.
func (m *Manager) sweepNow(podName volume.UniquePodName) {
	if len(m.actual.GetVolumeNamesForPod(podName)) > 0 || m.isKnown(podName) {
		return
	}
	m.orphans.Sweep(types.UID(podName))
}

// sweepAll is called once, when all that a restart left is known, and before those who wait for that are told.
func (m *Manager) sweepAll() {
	m.mu.Lock()
	m.swept = true
	names := slices.Collect(maps.Keys(m.unswept))
	m.mu.Unlock()
	for _, podName := range names {
		m.sweep(podName)
	}
	m.mu.Lock()
	m.unswept = nil
	m.mu.Unlock()
}
