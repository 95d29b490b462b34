package volumemanager

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/changes"
	"github.com/volumekit/volumekit/volumemanager/internal/health"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
)

// The reasons of conditions that the manager itself finds out. A plugin has its own.
const (
	ReasonUnmounted          = health.Unmounted          // somebody has unmounted it; it is set up again
	ReasonMountedOver        = health.MountedOver        // somebody has mounted on top of it or above it
	ReasonFlagsChanged       = health.FlagsChanged       // somebody has remounted it with other flags
	ReasonFilesystemReadOnly = health.FilesystemReadOnly // its filesystem has become read-only
	ReasonFilesystemShutDown = health.FilesystemShutDown // its filesystem has shut down after an error
	ReasonFilesystemErrors   = health.FilesystemErrors   // its filesystem, or the device of a btrfs, has errors on record
	ReasonUnreachable        = health.Unreachable        // its server, its daemon or its device does not serve it any more
	ReasonHung               = health.Hung               // a call on it does not return: see HungError
	ReasonNotTakenOff        = health.NotTakenOff        // it hangs, and HungUnmount has failed
	ReasonStrayFiles         = health.StrayFiles         // files lie below it, in the directory on which it is staged
	ReasonDataLost           = health.DataLost           // data that was written may be lost
)

// The reasons of the events about conditions: Kubernetes' own, and its counterpart when all is well again.
const (
	EventVolumeConditionAbnormal = health.EventAbnormal
	EventVolumeConditionNormal   = health.EventNormal
)

// Condition is one thing that is wrong with a volume, or worth knowing.
type Condition struct {
	volume.HealthCondition

	// Since is when it was found out.
	Since time.Time
	// Err is the cause, for errors.Is; nil when there is none but the message.
	Err error
}

// eventTarget returns the object that gets the events about a volume, as long as something is known of it, and the volume's name.
func (m *Manager) eventTarget(h podvolume.Key) (object runtime.Object, name string) {
	name = string(h.Volume)
	var spec *volume.Spec
	if mounted, ok := m.actual.GetMountedVolume(h.Volume, h.Pod); ok && h.Pod != "" {
		spec = mounted.VolumeSpec
		object = podObject(mounted.Pod)
	}
	if entry := m.populator.Pod(types.UID(h.Pod)); entry != nil {
		object = entry.Pod
	}
	if row, ok := m.actual.GetAttachedVolume(h.Volume); ok && spec == nil {
		spec = row.VolumeSpec
	}
	if spec != nil {
		name = spec.Name()
		if object == nil && spec.PersistentVolume != nil {
			object = spec.PersistentVolume
		}
	}
	return object, name
}

// podObject returns pod, or a plain nil.
func podObject(pod *v1.Pod) runtime.Object {
	if pod == nil {
		return nil
	}
	return pod
}

// conditionsOf returns what is wrong with a volume as a pod has it: with its set-up, with its staging, and what hangs.
func (m *Manager) conditionsOf(h podvolume.Key) []Condition {
	var found []Condition
	for _, c := range m.health.OfPod(h) {
		found = append(found, Condition(c))
	}
	return append(found, hungConditions(m.executor, h)...)
}

// healthChanged tells those who wait for a volume, or follow it, that its health has changed.
func healthChanged(hub *changes.Hub) func(podvolume.Key) {
	return func(key podvolume.Key) {
		hub.Tell(changes.Topic{Volume: key.Volume})
		hub.Notify(key.Pod)
	}
}
