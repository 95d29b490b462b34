package volumemanager

import (
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/volumekit/volumekit/operationexecutor"
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
	if !later && len(m.flyingOf(podName)) == 0 {
		m.sweepNow(podName)
	}
}

// sweepNow removes the directories of a pod of which no volume is known, if any are left.
func (m *Manager) sweepNow(podName volume.UniquePodName) {
	dir := filepath.Join(m.plugins.Host().GetPodsDir(), string(podName))
	if _, err := os.Lstat(dir); err != nil || len(m.actualVolumesOf(podName)) > 0 {
		return
	}
	if !m.isKnown(podName) {
		m.removeEmptyVolumes(filepath.Join(dir, "volumes"))
		m.removeEmptyVolumes(filepath.Join(dir, subpathsDir))
	}
	for _, plugin := range m.plugins.PluginNames() {
		m.removePodDirs(operationexecutor.OperationInfo{PodName: podName, PluginName: plugin})
	}
}

// removeEmptyVolumes removes the empty directories in which volumes of a pod, or parts of volumes, were set up or were about to
// be, and dir above them. They go by rmdir, which leaves alone what is mounted, or is not empty. A power cut leaves them, and no
// record.
func (m *Manager) removeEmptyVolumes(dir string) {
	plugins, _ := namesIn(dir) // What cannot be read stays.
	for _, plugin := range plugins {
		names, _ := namesIn(filepath.Join(dir, plugin))
		for _, name := range names {
			m.removeEmptyDir(filepath.Join(dir, plugin, name))
		}
		m.removeEmptyDir(filepath.Join(dir, plugin))
	}
	m.removeEmptyDir(dir)
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
