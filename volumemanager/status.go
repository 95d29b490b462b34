package volumemanager

import (
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
)

// Phase is where a volume stands, for people and programs. The text is stable.
type Phase string

// The phases of a volume, in the order of its life. Those of a block volume are the same: it is mapped where another is
// set up.
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
	// PhaseUnmounting: it is being taken away from the pod.
	PhaseUnmounting Phase = "unmounting"
	// PhaseUnstaging: no pod uses it, and it is being unmounted from its staging path.
	PhaseUnstaging Phase = "unstaging"
	// PhaseDetaching: no pod uses it, and it is being detached from this node.
	PhaseDetaching Phase = "detaching"
	// PhaseReleased: no pod uses it, and it is still staged or attached.
	PhaseReleased Phase = "released"
)

// phaseOf is what an operation does to the phase while it runs.
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

// VolumeStatus is where one volume of one pod stands. A pod that refers to one claim under two names has two of them. A
// volume that is attached or staged and that no pod uses has one without a pod.
type VolumeStatus struct {
	// PodUID is the UID of the pod; empty when no pod uses the volume.
	PodUID types.UID
	// PodName is the pod's namespace and name.
	PodName types.NamespacedName
	// OuterName is the name in the pod's spec; empty when no pod uses the volume, or when the pod was removed while it
	// was being set up.
	OuterName string
	// Volume is the unique name; empty while the claim is not resolved.
	Volume v1.UniqueVolumeName
	// Plugin is the name of the plugin; empty while the claim is not resolved.
	Plugin string
	// Phase is where it stands.
	Phase Phase
	// Wanted is true while the pod uses the volume; false while it is being taken away.
	Wanted bool
	// Block is true for a block volume, which the pod gets as a device.
	Block bool
	// Path is the absolute path, as the host sees it, at which the volume is, or may be, set up for the pod: that of the
	// link to its device for a block volume. Empty when it is not, or not known.
	Path string
	// DeviceMountPath is the absolute path at which it is, or may be, staged, or of the directory of a block volume's bind
	// mounts; DevicePath that of its device. Empty when it is not staged or has no device.
	DeviceMountPath, DevicePath string
	// ReadOnly is true when the pod asks for read-only or the volume was set up so.
	ReadOnly bool
	// Err is the last real cause why it is not where it should be; nil when there is none.
	Err error
	// Attempts is how often the operation that is waited for has failed in a row.
	Attempts int
	// NextTry is when it is tried again; zero when it does not wait for a time.
	NextTry time.Time
	// Since is when the operation that runs began; zero when none runs.
	Since time.Time
	// WantedSince is since when the pod wants the volume, and ResolvedSince since when it is known which volume that is; zero for
	// one that the pod does not want, or that is not resolved.
	WantedSince, ResolvedSince time.Time
	// Conditions are the volume's faults and facts worth knowing, in any phase: for example, another program has unmounted
	// it, its server is lost, or a call on it hangs (see HungCall). Empty if no fault is known.
	Conditions []Condition
}

// HungCall returns the call that is in the way of the volume, the oldest if there are several, and false if there is none:
// one that has not returned long after its deadline and was abandoned. It is the cause of a condition with [ReasonHung].
// Nothing more is done about the volume before it returns.
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

// NodeStatus is where every volume on the node stands. It prints as a table, and marshals to JSON with the text of each error.
type NodeStatus struct {
	// Running says that Run has read the records, and does its work. It is false before that, and once Run comes to its end.
	Running bool
	// PodsComplete says that [Manager.PodsComplete] was called. Until then nothing is taken away that an earlier manager set up.
	PodsComplete bool
	// Volumes are sorted by pod and outer name; those without a pod come last.
	Volumes []VolumeStatus
	// Damaged are the records that could not be used at the start. They were moved aside, but for those of a newer manager,
	// which stay until their volume is changed. What they stood for is not known, and was left alone where no plugin knew it.
	Damaged []DamagedRecord
	// Rebuilt is how many volumes were taken over from what was found, by the word of their plugins, because records were
	// missing: the directory of records was new, or some were damaged or of a newer manager.
	Rebuilt int
	// Reused is how often a pod was given a volume as an earlier manager had set it up, without another set-up, since New.
	Reused uint64
	// Orphans are the mounts, directories and loop devices that were found under the root at the start, and are on no record;
	// by path.
	Orphans []Orphan
	// LostData tells of data that may have been lost when volumes were unmounted, the latest last.
	LostData []LostData
	// Planned is how often a volume was looked at since New. It stands still while the manager is idle.
	Planned uint64
}

// DamagedRecord is a record that could not be used.
type DamagedRecord struct {
	// Path is the absolute path at which it lies now.
	Path string
	// Err is what is wrong with it.
	Err error
}
