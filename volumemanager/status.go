package volumemanager

import (
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
)

// Phase is the phase of a volume, for people and programs. The text is stable.
type Phase string

// The phases of a volume, in the order of its life. A block volume has the same phases: it is mapped instead of set up.
const (
	// PhaseUnresolved: the claim or its PersistentVolume is not ready, or could not be read.
	PhaseUnresolved Phase = "unresolved"
	// PhaseWaiting: nothing has begun, or an operation waits before it is tried again.
	PhaseWaiting Phase = "waiting"
	// PhaseAttaching: it is being attached to this node.
	PhaseAttaching Phase = "attaching"
	// PhaseMounting: it is being staged or set up.
	PhaseMounting Phase = "mounting"
	// PhaseMounted: it is set up, and can be used.
	PhaseMounted Phase = "mounted"
	// PhaseUncertain: the volume may be set up. That is so after an operation with an unknown end, and after a restart.
	PhaseUncertain Phase = "uncertain"
	// PhaseUnmounting: it is being torn down for the pod.
	PhaseUnmounting Phase = "unmounting"
	// PhaseUnstaging: no pod uses it, and it is being unmounted from its staging path.
	PhaseUnstaging Phase = "unstaging"
	// PhaseDetaching: no pod uses it, and it is being detached from this node.
	PhaseDetaching Phase = "detaching"
	// PhaseReleased: no pod uses it, and it is still staged or attached.
	PhaseReleased Phase = "released"
)

// phaseOf maps an operation to the phase of the volume while it runs.
var phaseOf = map[operationexecutor.OperationKind]Phase{
	operationexecutor.OpAttach:                   PhaseAttaching,
	operationexecutor.OpVerifyControllerAttached: PhaseAttaching,
	operationexecutor.OpMount:                    PhaseMounting,
	operationexecutor.OpMap:                      PhaseMounting,
	operationexecutor.OpExpandInUse:              PhaseMounted,
	operationexecutor.OpUnmount:                  PhaseUnmounting,
	operationexecutor.OpUnmap:                    PhaseUnmounting,
	operationexecutor.OpUnmountDevice:            PhaseUnstaging,
	operationexecutor.OpUnmapDevice:              PhaseUnstaging,
	operationexecutor.OpDetach:                   PhaseDetaching,
}

// VolumeStatus is the status of one volume of one pod. A pod that refers to one claim under two names has two of them. A volume that is
// attached or staged, and that no pod uses, has one without a pod.
type VolumeStatus struct {
	// PodUID is the UID of the pod; empty if no pod uses the volume.
	PodUID types.UID
	// PodName is the pod's namespace and name.
	PodName types.NamespacedName
	// OuterName is the name in the pod's spec. It is empty if no pod uses the volume, or if the pod was removed during the set-up.
	OuterName string
	// Volume is the unique name; empty while the claim is not resolved.
	Volume v1.UniqueVolumeName
	// Plugin is the name of the plugin; empty while the claim is not resolved.
	Plugin string
	// Phase is the phase of the volume.
	Phase Phase
	// Wanted is true while the pod wants the volume, and false while the volume is removed.
	Wanted bool
	// Block is true for a block volume, which the pod gets as a device.
	Block bool
	// Path is the absolute path, as the host sees it, at which the volume is, or may be, set up for the pod. For a block volume it is
	// the link to the device. It is empty if the volume is not set up, or if the path is not known.
	Path string
	// DeviceMountPath is the absolute path at which the volume is, or may be, staged. For a block volume it is the directory of the
	// bind mounts. DevicePath is the path of the device. Each is empty if the volume has none.
	DeviceMountPath, DevicePath string
	// ReadOnly is true if the pod requests read-only, or if the volume was set up read-only.
	ReadOnly bool
	// Err is the last real cause why the volume is not in the wanted state; nil if there is none.
	Err error
	// Attempts is how many times in a row the next operation has failed.
	Attempts int
	// NextTry is when the next attempt begins; zero if no back-off runs.
	NextTry time.Time
	// Since is when the running operation began; zero if none runs.
	Since time.Time
	// WantedSince is when the pod began to want the volume, and ResolvedSince when its claim was resolved. They are zero for a volume
	// that the pod does not want, or that is not resolved.
	WantedSince, ResolvedSince time.Time
	// Conditions are the known faults of the volume, in any phase: for example, another program has unmounted it, its server is lost,
	// or a call hangs (see HungCall). Empty if no fault is known.
	Conditions []Condition
}

// HungCall returns the oldest abandoned call that blocks the volume; false if there is none. The manager abandons a call that has not
// returned long after its deadline. The call is the cause of a condition with [ReasonHung]. The manager does nothing more with the
// volume before the call returns.
func (s VolumeStatus) HungCall() (operationexecutor.HungCall, bool) {
	var oldest operationexecutor.HungCall
	for _, c := range s.Conditions {
		var hung *HungError
		if errors.As(c.Err, &hung) && (oldest.Since.IsZero() || hung.Call.Since.Before(oldest.Since)) {
			oldest = hung.Call
		}
	}
	return oldest, !oldest.Since.IsZero()
}

// NodeStatus is the status of every volume on the node. It prints as a table, and marshals to JSON with the text of each error.
type NodeStatus struct {
	// Running says that Run has read the records and is working. It is false before that, and when Run begins to end.
	Running bool
	// PodsComplete says that [Manager.PodsComplete] was called. Until then the manager removes nothing that an earlier manager set up.
	PodsComplete bool
	// Volumes are sorted by pod and outer name; those without a pod come last.
	Volumes []VolumeStatus
	// Damaged are the records that could not be used at this start or an earlier one. They were moved aside, and are listed by every
	// start until a person removes the file. Records of a newer manager stay until their volume changes. The volumes of these
	// records are not known. The manager leaves them alone unless a pod wants them or a plugin recognizes them.
	Damaged []DamagedRecord
	// Rebuilt is how many volumes were found on the node without a record and rebuilt by their plugins. Records are missing if their
	// directory is new, or if they were damaged or of a newer manager.
	Rebuilt int
	// Reused is how many times since New a pod got a volume as an earlier manager had set it up, without another set-up.
	Reused uint64
	// Orphans are the mounts, directories and loop devices without a record that were found under the root at the start, sorted by
	// path.
	Orphans []Orphan
	// LostData lists unmounts that may have lost data, the latest last.
	LostData []LostData
	// Planned counts the plans of volumes since New. It does not change while the manager is idle.
	Planned uint64
}

// DamagedRecord is a record that could not be used.
type DamagedRecord struct {
	// Path is the present absolute path of the record.
	Path string
	// Err is what is wrong with it.
	Err error
}
