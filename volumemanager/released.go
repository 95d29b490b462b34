package volumemanager

import (
	"maps"
	"slices"

	"github.com/volumekit/volumekit/volume"
)

// A pod that was removed before PodsComplete is remembered as long as anything is, or may be, left of it: what is set up
// for it is then known not to be wanted. It is forgotten with the last of that, so that an orchestrator which never calls
// PodsComplete does not make the list grow for ever.

// settle forgets that a pod was removed when nothing is left of it.
func (m *Manager) settle(podName volume.UniquePodName) {
	m.mu.Lock()
	removal, ok := m.released[podName]
	done := ok && m.recovered
	m.mu.Unlock()
	// What runs is looked at first: the actual state learns of it before it has ended. No operation begins for the pod
	// any more, but after an AddPod, which makes the next removal another one.
	if !done || len(m.volumes.VolumesOfOperations(podName)) > 0 || len(m.actual.GetVolumeNamesForPod(podName)) > 0 {
		return
	}
	m.mu.Lock()
	if m.released[podName] == removal {
		delete(m.released, podName)
	}
	m.mu.Unlock()
}

// settleAll is called once all that a restart left is in the actual state.
func (m *Manager) settleAll() {
	m.mu.Lock()
	m.recovered = true
	names := slices.Collect(maps.Keys(m.released))
	m.mu.Unlock()
	for _, podName := range names {
		m.settle(podName)
	}
}
