package volumemanager

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/reconciler"
	sim "github.com/volumekit/volumekit/volumemanager/internal/world"
)

// simulatedOrder stops the goroutines of a reconciler at the points at which they read or report a state that others change
// meanwhile. At most points a goroutine goes on at once. At some it waits until the others that run are blocked. At a few it waits
// until the driver lets it go on, but not between the check of the pods and the begin of an operation: the world cannot tell then
// for which pod of a name the operation is. The seed decides.
type simulatedOrder struct {
	p    *sim.Process
	seed uint64

	mu sync.Mutex
	// passed counts how often each point was passed.
	passed map[string]int
}

// stopsAt has the seed decide in which order the goroutines of a manager go on.
func (o *simulatedOrder) stopsAt(r *reconciler.Reconciler) {
	r.Pods, r.Cleaner = orderedPods{r.Pods, o}, orderedCleaner{r.Cleaner, o}
	if actual, ok := r.Actual.(*actualState); ok { // Otherwise a planted bug is in its place.
		r.Actual = orderedActual{actual, o}
	}
}

// point is a point at which a goroutine may be stopped until the driver lets it go on.
func (o *simulatedOrder) point(name string, of v1.UniqueVolumeName, pod volume.UniquePodName) {
	if label := o.label(name, of, pod); o.chosen(label)%16 == 0 {
		o.p.Pause(label)
		return
	}
	o.yield(name, of, pod)
}

// yield lets the others that run go first, or not.
func (o *simulatedOrder) yield(name string, of v1.UniqueVolumeName, pod volume.UniquePodName) {
	if chosen := o.chosen(o.label(name, of, pod)); chosen%4 == 0 {
		// Another time for each volume, so that no two go on at once.
		time.Sleep(time.Duration(16*(1+chosen>>8%4) + uint64(1+slices.Index(o.p.Storages(), o.p.Inner(of)))))
	}
}

func (o *simulatedOrder) label(name string, of v1.UniqueVolumeName, pod volume.UniquePodName) string {
	return strings.Join([]string{o.p.Inner(of), string(pod), name}, ":")
}

// chosen returns what the seed has chosen for the next time that a point is passed.
func (o *simulatedOrder) chosen(label string) uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.passed[label]++
	hash := fnv.New64a()
	_, _ = fmt.Fprint(hash, o.seed, label, o.passed[label]) // It never fails.
	return hash.Sum64() >> 16
}

// The ports below are those of a manager. They stop their callers before a read, and after it.
type (
	orderedActual struct {
		*actualState
		order *simulatedOrder
	}
	orderedPods struct {
		reconciler.Pods
		order *simulatedOrder
	}
	orderedCleaner struct {
		reconciler.Cleaner
		order *simulatedOrder
	}
)

// SnapshotInto implements reconciler.ActualState.
func (a orderedActual) SnapshotInto(s *cache.VolumeSnapshot, name v1.UniqueVolumeName) bool {
	a.order.point("read", name, "")
	defer a.order.point("has-read", name, "")
	return a.actualState.SnapshotInto(s, name)
}

// SnapshotOfPodInto implements reconciler.ActualState.
func (a orderedActual) SnapshotOfPodInto(s *cache.VolumeSnapshot, name v1.UniqueVolumeName, pod volume.UniquePodName) bool {
	a.order.point("read", name, pod)
	defer a.order.point("has-read", name, pod)
	return a.actualState.SnapshotOfPodInto(s, name, pod)
}

// VolumesOfPodNamed implements reconciler.ActualState.
func (a orderedActual) VolumesOfPodNamed(pod volume.UniquePodName, plugin, inner string) []v1.UniqueVolumeName {
	at := volume.GetUniqueVolumeName(plugin, inner)
	a.order.yield("read-path", at, pod)
	defer a.order.yield("has-read-path", at, pod)
	return a.actualState.VolumesOfPodNamed(pod, plugin, inner)
}

// Uses implements reconciler.Pods.
func (p orderedPods) Uses(pod volume.UniquePodName, name v1.UniqueVolumeName) bool {
	p.order.yield("ask-pod", name, pod)
	defer p.order.yield("has-asked-pod", name, pod)
	return p.Pods.Uses(pod, name)
}

// RemovePodDirs implements reconciler.Cleaner.
func (c orderedCleaner) RemovePodDirs(o operationexecutor.OperationInfo) bool {
	c.order.point("remove-dirs", o.VolumeName, o.PodName)
	return c.Cleaner.RemovePodDirs(o)
}

// LastTornDown implements reconciler.Cleaner.
func (c orderedCleaner) LastTornDown(pod volume.UniquePodName) {
	c.order.point("last", "", pod)
	c.Cleaner.LastTornDown(pod)
}

// Ended implements reconciler.Cleaner.
func (c orderedCleaner) Ended(pod volume.UniquePodName) {
	c.order.point("ended", "", pod)
	c.Cleaner.Ended(pod)
}
