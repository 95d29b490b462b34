package volumemanager

import (
	"cmp"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/reconciler"
)

// This file connects the reconciler with the other parts of the manager.

func (m *Manager) newReconciler() *reconciler.Reconciler {
	return reconciler.New(reconciler.Options{
		Node: m.node(), WorkersPerPlugin: cmp.Or(m.options.WorkersPerPlugin, operationexecutor.DefaultWorkersPerPlugin),
		Desired: m.desired, Actual: m.actual, Changes: &m.changes, OnlyTearsDown: m.run.isStopping,
		Pods: m.populator, Records: m.recovery, Attachments: m.nodeStatus, Expansions: m.expansion, Cleaner: podCleaner{m},
	})
}

// podCleaner removes what remains of a pod when an operation has ended.
type podCleaner struct{ m *Manager }

func (c podCleaner) RemovePodDirs(o operationexecutor.OperationInfo) bool {
	return c.m.orphans.RemovePodDirs(o)
}

func (c podCleaner) LastTornDown(pod volume.UniquePodName) { c.m.recovery.RemoveDirs(pod) }

func (c podCleaner) Ended(pod volume.UniquePodName) {
	c.m.recovery.ForgetRemoval(pod)
	c.m.changes.Notify(pod)
}
