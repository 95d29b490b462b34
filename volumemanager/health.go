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

// These are the reasons of conditions that the manager itself finds. Plugins have their own.
const (
	ReasonUnmounted          = health.Unmounted          // another program has unmounted it; it is set up again
	ReasonMountedOver        = health.MountedOver        // another program has mounted on top of it or above it
	ReasonMoved              = health.Moved              // another program has moved its mount, or a directory above it
	ReasonFlagsChanged       = health.FlagsChanged       // another program has remounted it with other flags
	ReasonFilesystemReadOnly = health.FilesystemReadOnly // its filesystem has become read-only
	ReasonFilesystemShutDown = health.FilesystemShutDown // its filesystem has shut down after an error
	ReasonFilesystemErrors   = health.FilesystemErrors   // its filesystem, or the device of a btrfs, has errors on record
	ReasonUnreachable        = health.Unreachable        // its server, its daemon or its device no longer serves it
	ReasonHung               = health.Hung               // a call on it does not return: see HungError
	ReasonNotTakenOff        = health.NotTakenOff        // it hangs, and HungUnmount could not unmount it
	ReasonStrayFiles         = health.StrayFiles         // files lie below it, in the directory on which it is staged
	ReasonDataLost           = health.DataLost           // data that was written may be lost
)

// Condition is a fault of a volume, or a fact worth knowing.
type Condition struct {
	volume.HealthCondition

	// Since is when the condition was found.
	Since time.Time
	// Err is the cause, for errors.Is; nil if only the message is known.
	Err error
}

// eventTarget returns the volume's name and the object on which events about the volume are recorded. The object is nil for
// an unknown volume.
func (n *nodeView) eventTarget(h podvolume.Key) (object runtime.Object, name string) {
	name = string(h.Volume)
	var spec *volume.Spec
	if mounted, ok := n.actual.GetMountedVolume(h.Volume, h.Pod); ok && h.Pod != "" {
		spec = mounted.VolumeSpec
		object = podObject(mounted.Pod)
	}
	if entry := n.populator.Pod(types.UID(h.Pod)); entry != nil {
		object = entry.Pod
	}
	if row, ok := n.actual.GetAttachedVolume(h.Volume); ok && spec == nil {
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

// podObject returns pod; for a nil pod it returns a nil interface.
func podObject(pod *v1.Pod) runtime.Object {
	if pod == nil {
		return nil
	}
	return pod
}

// conditionsOf returns the conditions of a volume as a pod has it: those of its set-up, those of its staging, and its calls
// that hang.
func (n *nodeView) conditionsOf(h podvolume.Key) []Condition {
	var found []Condition
	for _, c := range n.health.OfPod(h) {
		found = append(found, Condition(c))
	}
	return append(found, hungConditions(n.executor, h)...)
}

// healthChanged notifies the waiters and the followers of a volume that its health has changed.
func healthChanged(hub *changes.Hub) func(podvolume.Key) {
	return func(key podvolume.Key) {
		hub.Publish(changes.Topic{Volume: key.Volume})
		hub.Notify(key.Pod)
	}
}
