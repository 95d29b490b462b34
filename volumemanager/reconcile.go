package volumemanager

import (
	"cmp"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
	"github.com/volumekit/volumekit/volumemanager/internal/reconciler"
)

// This file gives the reconciler what it needs of the manager.

func (m *Manager) newReconciler() *reconciler.Reconciler {
	return reconciler.New(reconciler.Options{
		Node: m.node(), WorkersPerPlugin: cmp.Or(m.options.WorkersPerPlugin, operationexecutor.DefaultWorkersPerPlugin),
		Desired: m.desired, Actual: m.actual, Changes: &m.changes, OnlyTakesAway: func() bool { return isOpen(m.stopping.begun.given) },
		Pods: podUses{m}, Records: m.recovery, Attachments: m.exchange, Expansions: m.growth, Cleaner: podCleaner{m},
	})
}

// podUses tells which volumes pods use.
type podUses struct{ m *Manager }

func (u podUses) Uses(pod volume.UniquePodName, name v1.UniqueVolumeName) bool {
	u.m.mu.Lock()
	defer u.m.mu.Unlock()
	return u.m.pods[types.UID(pod)].uses(name)
}

func (u podUses) MayUse(pod volume.UniquePodName) bool {
	u.m.mu.Lock()
	defer u.m.mu.Unlock()
	return u.m.mayUse(pod)
}

func (u podUses) MayBeWanted(name v1.UniqueVolumeName) bool { return u.m.recovery.MayBeWanted(name) }

// mayUse reports whether it is not known which volumes a pod uses: some of its claims were never resolved, or the pod
// was not added yet. Manager.mu must be held.
func (m *Manager) mayUse(podName volume.UniquePodName) bool {
	if entry := m.pods[types.UID(podName)]; entry != nil {
		return !entry.isComplete()
	}
	return m.recovery.MayUseVolumes(podName)
}

// podCleaner removes what is left of a pod when an operation has ended.
type podCleaner struct{ m *Manager }

func (c podCleaner) RemovePodDirs(o operationexecutor.OperationInfo) bool {
	return c.m.orphans.RemovePodDirs(o)
}

func (c podCleaner) LastTornDown(pod volume.UniquePodName) { c.m.recovery.RemoveDirs(pod) }

func (c podCleaner) Ended(pod volume.UniquePodName) {
	c.m.recovery.Settle(pod)
	c.m.changes.Notify(pod)
}

// retry has a volume planned again as if nothing had failed for its pod before.
func (m *Manager) retry(h podvolume.Key) { m.volumes.Retry(h) }

// retryAll has volumes planned again as if nothing had failed before.
func (m *Manager) retryAll(names []v1.UniqueVolumeName) {
	for _, name := range names {
		m.volumes.Retry(podvolume.Key{Volume: name})
	}
}
