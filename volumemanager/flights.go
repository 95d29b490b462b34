package volumemanager

import (
	"cmp"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// flight is an operation from the moment in which it is certain that it will begin until its key is free. The actual
// state does not know of it yet, or still knows what it is taking away; so who waits for a pod has to look at both, at
// the flights first.
type flight struct {
	volume v1.UniqueVolumeName
	pod    volume.UniquePodName            // empty: it concerns the volume as a whole
	kind   operationexecutor.OperationKind // that of a filesystem, for block volumes too
}

// flights are those of each pod, and those of each volume as a whole, which are few. A flight may be there twice, since a key
// is free a moment before that is told: the next operation may have begun by then.
type flights map[flightOwner][]flight

// flightOwner is a pod, or the volume of a flight that concerns no pod.
type flightOwner struct {
	pod    volume.UniquePodName
	volume v1.UniqueVolumeName
}

func (f flight) owner() flightOwner {
	if f.pod != "" {
		return flightOwner{pod: f.pod}
	}
	return flightOwner{volume: f.volume}
}

// ofPod returns the flights for a pod.
func (fs flights) ofPod(podName volume.UniquePodName) []flight { return fs[flightOwner{pod: podName}] }

// isLast reports whether a pod, or a volume, has no other flight than this one.
func (fs flights) isLast(f flight) bool {
	of := fs[f.owner()]
	return len(of) == 1 && of[0] == f
}

// kindOf is the operation that an action begins.
var kindOf = map[verb]operationexecutor.OperationKind{
	verbUnmount:       operationexecutor.OpUnmount,
	verbAttach:        operationexecutor.OpAttach,
	verbVerify:        operationexecutor.OpVerifyControllerAttached,
	verbMount:         operationexecutor.OpMount,
	verbRemount:       operationexecutor.OpMount,
	verbExpand:        operationexecutor.OpExpandInUse,
	verbUnmountDevice: operationexecutor.OpUnmountDevice,
	verbDetach:        operationexecutor.OpDetach,
}

// asOfFilesystem are the operations that the executor begins for a block volume where others get those of a filesystem.
var asOfFilesystem = map[operationexecutor.OperationKind]operationexecutor.OperationKind{
	operationexecutor.OpMap:         operationexecutor.OpMount,
	operationexecutor.OpUnmap:       operationexecutor.OpUnmount,
	operationexecutor.OpUnmapDevice: operationexecutor.OpUnmountDevice,
}

// flightOf returns the flight of an operation that was begun.
func flightOf(o operationexecutor.OperationInfo) flight {
	return flight{volume: o.VolumeName, pod: o.PodName, kind: cmp.Or(asOfFilesystem[o.Kind], o.Kind)}
}

// depart enters the flight of an action, unless its pod has come or gone since it was planned. Who changed the pod has
// marked the volume dirty after that, so that it is planned again.
func (m *Manager) depart(s *subject, a action) (flight, bool) {
	f := flight{volume: s.name, pod: a.pod, kind: kindOf[a.verb]}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.isDue(s, a) {
		return f, false
	}
	m.flights[f.owner()] = append(m.flights[f.owner()], f)
	return f, true
}

// isDue reports whether an action is still right. Manager.mu must be held.
func (m *Manager) isDue(s *subject, a action) bool {
	switch a.verb {
	case verbUnmount:
		return s.hasStale(a.pod) || !m.pods[types.UID(a.pod)].uses(s.name) && !m.mayUse(a.pod)
	case verbMount, verbRemount, verbExpand:
		return m.pods[types.UID(a.pod)].uses(s.name)
	case verbAttach, verbVerify:
		for i := range s.wanted {
			if m.pods[types.UID(s.wanted[i].PodName)].uses(s.name) {
				return true
			}
		}
		return false
	default:
		// Pods that came since wait for the volume's key, and get it staged and attached again.
		return true
	}
}

// mayUse reports whether it is not known which volumes a pod uses: some of its claims were never resolved, or the pod
// was not added yet. Manager.mu must be held.
func (m *Manager) mayUse(podName volume.UniquePodName) bool {
	if entry := m.pods[types.UID(podName)]; entry != nil {
		return !entry.isComplete()
	}
	_, released := m.released[podName]
	return !m.podsComplete && !released
}

// land takes out the flight of an operation that did not begin, or whose key is free.
func (m *Manager) land(f flight) {
	m.mu.Lock()
	last := f.kind == operationexecutor.OpUnmount && m.flights.isLast(f)
	if !last {
		m.takeOut(f)
	}
	m.mu.Unlock()
	if last {
		// Of two that end at once, one comes here; who waits for the pod waits for this too.
		m.sweepNow(f.pod)
		m.mu.Lock()
		m.takeOut(f)
		m.mu.Unlock()
	}
	m.mu.Lock()
	_, released := m.released[f.pod]
	m.mu.Unlock()
	if released {
		m.settle(f.pod)
	}
	m.changes.notify(f.pod)
}

// takeOut takes a flight out. Manager.mu must be held.
func (m *Manager) takeOut(f flight) {
	of := m.flights[f.owner()]
	at := slices.Index(of, f)
	if at < 0 {
		return // It was not planned: a verification.
	}
	if of = slices.Delete(of, at, at+1); len(of) == 0 {
		delete(m.flights, f.owner())
		return
	}
	m.flights[f.owner()] = of
}

// keyFreed is told by the executor when an operation has ended and all of its calls have returned.
func (m *Manager) keyFreed(o operationexecutor.OperationInfo) {
	f := flightOf(o)
	if f.kind == operationexecutor.OpUnmount {
		m.removePodDirs(o)
	}
	if o.VolumeName == "" {
		return // It was about several volumes, or about none that is known.
	}
	m.land(f)
	m.dirty.Add(o.VolumeName)
}

// isLeaving reports whether a volume is being taken away from a pod.
func (m *Manager) isLeaving(name v1.UniqueVolumeName, podName volume.UniquePodName) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Contains(m.flights.ofPod(podName), flight{volume: name, pod: podName, kind: operationexecutor.OpUnmount})
}

// flyingOf returns the volumes that are being set up for a pod, or taken away from it.
func (m *Manager) flyingOf(podName volume.UniquePodName) []v1.UniqueVolumeName {
	m.mu.Lock()
	defer m.mu.Unlock()
	names := make([]v1.UniqueVolumeName, 0, len(m.flights.ofPod(podName)))
	for _, f := range m.flights.ofPod(podName) {
		names = append(names, f.volume)
	}
	return names
}

// allFlights returns every flight.
func (m *Manager) allFlights() []flight {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Concat(slices.Collect(maps.Values(m.flights))...)
}

// isQuiet reports whether no operation runs.
func (m *Manager) isQuiet() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.flights) == 0
}
