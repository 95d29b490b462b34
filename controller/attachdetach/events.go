package attachdetach

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/cluster"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// The reasons of this package's events. All events are warnings.
const (
	// reasonForcedDetach is for a forced detach, on the node.
	reasonForcedDetach = "ForcedDetachVolume"
	// reasonNodeMissing is for a volume that stays attached to a node without an object, on the volume.
	reasonNodeMissing = "NodeMissing"
	// reasonUnknownAttachment is for an attachment that the storage lists and that has no record, on the volume.
	reasonUnknownAttachment = "UnknownAttachment"
)

// events writes events of pods, volumes and nodes, and counts forced detaches. Its methods may be called from several
// goroutines at once.
type events struct {
	recorder volume.EventRecorder
	logger   *slog.Logger
	desired  *cluster.DesiredStateOfWorld
	nodes    *store.Mirror[*v1.Node]

	mu     sync.Mutex
	forced map[ForceReason]uint64
}

// pods writes a warning for each pod that wants a volume.
func (e *events) pods(want operationexecutor.VolumeToAttach, message string) {
	for _, pod := range want.ScheduledPods {
		e.recorder.Eventf(pod, v1.EventTypeWarning, operationexecutor.ReasonFailedAttachVolume, "%s", message)
	}
}

// multiAttach writes an event for the waiting pods, once, with the nodes and pods that have the volume.
func (e *events) multiAttach(a attachment, want operationexecutor.VolumeToAttach, elsewhere *operationexecutor.MultiAttachError) {
	if !e.desired.MarkMultiAttachErrorReported(a.volume, a.node) {
		return
	}
	e.pods(want, fmt.Sprintf("volume %q can be on one node at a time and is on %s%s: it is attached to node %q when it is detached there",
		want.VolumeSpec.Name(), quoted(elsewhere.Nodes), e.holders(want, elsewhere.Nodes), a.node))
}

// foreign writes an event for the waiting pods, once, with the foreign attachment that has the volume.
func (e *events) foreign(a attachment, want operationexecutor.VolumeToAttach, err error) {
	if e.desired.MarkMultiAttachErrorReported(a.volume, a.node) {
		e.pods(want, fmt.Sprintf("volume %q can be on one node at a time: %v", want.VolumeSpec.Name(), err))
	}
}

// holders names the pods that want the volume on the nodes that have it.
func (e *events) holders(want operationexecutor.VolumeToAttach, nodes []types.NodeName) string {
	var names []string
	for _, held := range e.desired.VolumesToAttach(want.VolumeName) {
		if slices.Contains(nodes, held.NodeName) {
			for _, pod := range held.ScheduledPods {
				names = append(names, pod.Name)
			}
		}
	}
	if len(names) == 0 {
		return ", where no pod wants it any more"
	}
	return ", for the pods " + strings.Join(names, ", ")
}

func quoted(nodes []types.NodeName) string {
	names := make([]string, 0, len(nodes))
	for _, node := range nodes {
		names = append(names, fmt.Sprintf("%q", node))
	}
	return strings.Join(names, ", ")
}

// nodeMissing reports that a volume stays attached to a node without an object. It does nothing if before is an error of
// the same kind, which was reported.
func (e *events) nodeMissing(a attachment, have cluster.Attachment, before, err error) {
	if errors.Is(before, ErrNodeMissing) {
		return
	}
	e.logger.Warn("a volume that no pod wants stays attached", "volume", a.volume, "node", a.node, "error", err)
	if have.VolumeSpec != nil && have.VolumeSpec.PersistentVolume != nil {
		e.recorder.Eventf(have.VolumeSpec.PersistentVolume, v1.EventTypeWarning, reasonNodeMissing, "%v", err)
	}
}

// unknownAttachment reports that a volume without a record is attached.
func (e *events) unknownAttachment(a attachment, pv *v1.PersistentVolume) {
	e.logger.Warn("a volume is attached and was on no record", "volume", a.volume, "node", a.node)
	e.recorder.Eventf(pv, v1.EventTypeWarning, reasonUnknownAttachment,
		"volume %q is attached to node %q, which was on no record: it is detached unless pods want it there or the node uses it", a.volume, a.node)
}

// forcedDetach counts and reports a forced detach.
func (e *events) forcedDetach(a attachment, have cluster.Attachment, reason ForceReason) {
	e.mu.Lock()
	e.forced[reason]++
	e.mu.Unlock()
	e.logger.Warn("a volume is taken from a node by force", "volume", a.volume, "node", a.node, "reason", string(reason), "use", have.InUse.String())
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: string(a.node), UID: have.NodeUID}}
	if seen, there := e.nodes.Get(store.NameOf(node)); there {
		node = seen
	}
	e.recorder.Eventf(node, v1.EventTypeWarning, reasonForcedDetach, "volume %q is %s on this node and is detached by force: %s",
		a.volume, have.InUse, reason)
}

// forcedDetaches returns the number of forced detaches by reason.
func (e *events) forcedDetaches() map[ForceReason]uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.forced)
}

// noEvents drops events.
type noEvents struct{}

func (noEvents) Eventf(runtime.Object, string, string, string, ...any) {}
