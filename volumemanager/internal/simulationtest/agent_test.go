package simulationtest_test

import (
	"context"
	"errors"
	"slices"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/simulationtest"
	"github.com/volumekit/volumekit/volumemanager/internal/world"
)

// agent is the program under test on a node: the real executor and caches, and the plainest reconciler that uses them
// rightly. It looks at everything at each kick and begins whatever is not as it should be; the executor refuses what must
// not run now.
type agent struct {
	p        *world.Process
	desired  *cache.DesiredStateOfWorld
	actual   *cache.ActualStateOfWorld
	executor *operationexecutor.Executor
	belief   world.Belief // used again and again
	bug      bug
	// bugs holds what planted bugs remember.
	bugs planted
}

var _ world.Engine = (*agent)(nil)

func startAgent(p *world.Process, b bug) *agent {
	a := &agent{
		p: p, bug: b, desired: cache.NewDesiredStateOfWorld(p.Plugins(), cache.Options{}),
		actual: cache.NewActualStateOfWorld(types.NodeName(p.Node()), p.Plugins(), cache.Options{}),
		belief: world.NewBelief(),
	}
	a.executor = a.newExecutor()
	if !b.startsEmpty {
		a.recover()
	}
	return a
}

func (a *agent) newExecutor() *operationexecutor.Executor {
	return operationexecutor.NewOperationExecutor(operationexecutor.NewOperationGenerator(a.generatorOptions()), simulationtest.ExecutorOptions(a.p))
}

func (a *agent) generatorOptions() operationexecutor.GeneratorOptions {
	options := operationexecutor.GeneratorOptions{Plugins: a.p.Plugins(), Journal: a.p, NodeReader: a.p, BlockMapper: a.p, DeviceUse: a.p}
	if !a.bug.trusts {
		options.Mounts = a.p
	}
	if a.bug.blocks != nil {
		options.BlockMapper = a.bug.blocks(a.p)
	}
	if a.bug.journal != nil {
		options.Journal = a.bug.journal(a.p)
	}
	return options
}

// recover makes the records what is known, as uncertain.
func (a *agent) recover() {
	for _, r := range a.p.Records() {
		v := a.p.Volume(r.Spec.Name())
		must(a.actual.AddReconstructedVolume(operationexecutor.AttachedVolume{
			VolumeName: r.Name, VolumeSpec: r.Spec, PluginName: world.PluginName,
			PluginIsAttachable: v.Attachable, PluginIsDeviceMountable: v.Stageable || r.Staged != "", DeviceMountPath: r.Staged,
		}))
		for uid := range r.Pods {
			pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: string(uid), UID: uid}}
			_, err := a.actual.AddReconstructedPod(operationexecutor.MountedVolume{
				VolumeName: r.Name, PodName: volume.GetUniquePodName(pod), PodUID: uid, Pod: pod, VolumeSpec: r.Spec,
			})
			must(err)
		}
	}
}

// must is for what cannot fail.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// Kick implements world.Engine.
func (a *agent) Kick() {
	a.bugs.kicked(a)
	a.populate()
	for _, name := range a.names() {
		a.reconcile(name)
	}
}

// populate makes the desired state what the orchestrator wishes.
func (a *agent) populate() {
	wanted := a.p.Wanted(a.p.Node())
	for _, pod := range a.desired.GetPods() {
		if !slices.ContainsFunc(wanted, func(p world.Pod) bool { return p.Name == string(pod) }) {
			a.desired.DeletePod(pod)
			a.actual.MarkPodRemoved(pod)
			a.p.Removed(string(pod))
		}
	}
	for _, pod := range wanted {
		for _, v := range pod.Volumes {
			name := a.p.UniqueName(v, pod.Name)
			row, ok := a.desired.VolumeToMount(name, volume.UniquePodName(pod.Name))
			if ok && row.Pod == a.p.Pod(pod.Name) {
				continue
			}
			_, err := a.desired.AddPodToVolume(cache.AddPodOptions{Pod: a.p.Pod(pod.Name), VolumeSpec: a.p.Spec(v), OuterVolumeSpecName: v})
			must(err)
			a.executor.ResetBackoff(operationexecutor.Key{Volume: name, Pod: volume.UniquePodName(pod.Name)})
		}
	}
}

// names returns every volume that is wanted or known, sorted.
func (a *agent) names() []v1.UniqueVolumeName {
	names := append(a.desired.GetVolumeNames(), a.actual.GetVolumeNames()...)
	slices.Sort(names)
	return slices.Compact(names)
}

// reconcile begins what is to be done with one volume.
func (a *agent) reconcile(name v1.UniqueVolumeName) {
	snapshot, known := a.actual.Snapshot(name)
	a.tearDown(name, snapshot)
	rows := a.desired.VolumesToMount(name)
	switch {
	case len(rows) > 0:
		a.setUp(rows, snapshot, known)
	case known && len(snapshot.Mounts) == 0 && (a.bug.forgetsBesideMounts || !a.executor.IsOperationPending(operationexecutor.Key{Volume: name})):
		a.release(name, snapshot)
	}
}

// tearDown takes the volume from each pod that does not want it.
func (a *agent) tearDown(name v1.UniqueVolumeName, snapshot cache.VolumeSnapshot) {
	for _, m := range snapshot.Mounts {
		if a.bug.tearsDownWhatIsWanted && m.Reconstructed || !a.desired.PodExistsInVolume(m.PodName, name) || a.isStale(name, &m) {
			op, err := a.executor.UnmountVolume(a.p.Context(), m.MountedVolume, a.unmounting())
			a.began(op, err)
		}
	}
}

// isStale reports whether a set-up is that of an earlier pod of the name.
func (a *agent) isStale(name v1.UniqueVolumeName, m *cache.MountedVolume) bool {
	return !a.bug.takesWhatIsThere && !m.IsFor(a.desired.Incarnation(name, m.PodName))
}

// setUp attaches the volume, or sets it up for each pod that wants it.
func (a *agent) setUp(rows []operationexecutor.VolumeToMount, snapshot cache.VolumeSnapshot, known bool) {
	first := rows[0]
	node := types.NodeName(a.p.Node())
	if first.PluginIsAttachable && snapshot.AttachState != cache.Attached && a.p.HasController() {
		first.ReportedInUse = first.ReportedInUse || a.bug.mountsUnreported
		op, err := a.executor.VerifyControllerAttachedVolume(a.p.Context(), first, node, a.actual)
		a.began(op, err)
		return
	}
	if first.PluginIsAttachable && snapshot.AttachState != cache.Attached {
		toAttach := operationexecutor.VolumeToAttach{VolumeName: first.VolumeName, VolumeSpec: first.VolumeSpec, NodeName: node}
		op, err := a.executor.AttachVolume(a.p.Context(), toAttach, a.attaching())
		a.began(op, err)
		return
	}
	if !known {
		must(a.actual.MarkVolumeAsAttached(first.VolumeName, first.VolumeSpec, node, ""))
	}
	for _, row := range rows {
		a.mount(row)
	}
}

func (a *agent) mount(row operationexecutor.VolumeToMount) {
	mounted, known := a.actual.GetMountedVolume(row.VolumeName, row.PodName)
	if known && a.isStale(row.VolumeName, &mounted) {
		return
	}
	there := known && mounted.State == operationexecutor.VolumeMounted
	if there && !a.isOutdated(row, mounted) || a.bugs.waits(a) {
		return
	}
	options := operationexecutor.MountOptions{WaitForAttachTimeout: world.Timeout, IsRemount: there}
	op, err := a.executor.MountVolume(a.p.Context(), row, options, a.mounting())
	a.began(op, err)
}

// isOutdated reports whether the volume has to be set up again for an update of the pod. One that came while the volume was
// being set up is told by the pod alone.
func (a *agent) isOutdated(row operationexecutor.VolumeToMount, mounted cache.MountedVolume) bool {
	known, _ := a.actual.GetAttachedVolume(row.VolumeName)
	other := known.PluginRequiresRemount && mounted.Pod != row.Pod
	return mounted.RemountRequired || other && !a.bug.ignoresUpdates
}

// release undoes what is left when no pod has the volume.
func (a *agent) release(name v1.UniqueVolumeName, snapshot cache.VolumeSnapshot) {
	row := snapshot.AttachedVolume.AttachedVolume
	switch {
	case snapshot.DeviceMountState != operationexecutor.DeviceNotMounted:
		op, err := a.deviceExecutor().UnmountDevice(a.p.Context(), row, a.unmountingDevice())
		a.began(op, err)
	case snapshot.PluginIsAttachable && snapshot.AttachState != cache.NotAttached && !a.bug.neverDetaches && !a.p.HasController():
		op, err := a.executor.DetachVolume(a.p.Context(), row, operationexecutor.DetachOptions{}, a.attaching())
		a.began(op, err)
	default:
		must(a.actual.DeleteVolume(name))
		a.executor.Forget(name)
	}
}

// began looks at what the executor said: an operation that does not start now is tried at the next kick. One that did runs
// until it waits for something, so that what begins next finds the same each time.
func (a *agent) began(op *operationexecutor.Operation, err error) {
	var pending *volume.PendingError
	var backoff *volume.BackoffError
	var precondition *operationexecutor.MountPreconditionError
	switch {
	case err == nil:
		synctest.Wait()
		a.bugs.started(a, op)
	case errors.As(err, &pending), errors.As(err, &precondition):
	case errors.As(err, &backoff):
		a.bugs.refused(backoff, a)
	default:
		panic(err)
	}
}

// Belief implements world.Engine.
func (a *agent) Belief() world.Belief {
	b := a.belief
	clear(b.Attached)
	clear(b.Staged)
	clear(b.Mounted)
	clear(b.Ready)
	node := a.p.Node()
	for _, row := range a.actual.GetAttachedVolumes() {
		at := world.At{Node: node, Volume: a.p.Inner(row.VolumeName)}
		if row.PluginIsAttachable {
			b.Attached[at] = world.State(row.AttachState)
		}
		if a.p.Volume(at.Volume).Stageable {
			b.Staged[at] = world.State(row.DeviceMountState)
		}
	}
	for row := range a.actual.AllMountedVolumes() {
		b.Mounted[world.At{Node: node, Volume: a.p.Inner(row.VolumeName), Pod: string(row.PodName)}] = world.State(row.State)
	}
	for _, pod := range a.p.Wanted(node) {
		b.Ready[pod.Name] = a.ready(pod, b)
	}
	return b
}

// ready reports whether a pod may use its volumes: a teardown that runs may already have taken one.
func (a *agent) ready(pod world.Pod, b world.Belief) bool {
	for _, v := range pod.Volumes {
		key := operationexecutor.Key{Volume: a.p.UniqueName(v, pod.Name), Pod: volume.UniquePodName(pod.Name)}
		at := world.At{Node: a.p.Node(), Volume: v, Pod: pod.Name}
		mounted, _ := a.actual.GetMountedVolume(key.Volume, key.Pod)
		if b.Mounted[at] != world.Present || !a.bug.readyTooSoon && (a.isStale(key.Volume, &mounted) || a.executor.IsOperationPending(key)) {
			return false
		}
	}
	return true
}

// InUse implements world.Engine.
func (a *agent) InUse() []v1.UniqueVolumeName { return cache.VolumesInUse(a.desired, a.actual) }

// ReportedInUse implements world.Engine.
func (a *agent) ReportedInUse(names []v1.UniqueVolumeName) { a.desired.MarkVolumesReportedInUse(names) }

// Verify implements world.Engine.
func (a *agent) Verify() {
	var rows []operationexecutor.AttachedVolume
	for _, row := range a.actual.GetAttachedVolumes() {
		rows = append(rows, row.AttachedVolume)
	}
	_, err := a.executor.VerifyVolumesAreAttachedPerNode(a.p.Context(), rows, types.NodeName(a.p.Node()), a.actual)
	must(err)
	synctest.Wait()
}

// PodUpdated implements world.Engine.
func (a *agent) PodUpdated(pod string) { a.actual.MarkRemountRequired(volume.UniquePodName(pod)) }

// MountLost implements world.Engine.
func (a *agent) MountLost(name, pod string) {
	unique := a.p.UniqueName(name, pod)
	if pod == "" {
		row, ok := a.actual.GetAttachedVolume(unique)
		if ok && row.DeviceMountState == operationexecutor.DeviceGloballyMounted {
			must(a.actual.MarkDeviceAsUncertain(unique, "", "", ""))
		}
		return
	}
	m, ok := a.actual.GetMountedVolume(unique, volume.UniquePodName(pod))
	if ok {
		must(a.actual.MarkVolumeMountAsUncertain(operationexecutor.MountedVolume{
			VolumeName: unique, PodName: m.PodName, PodUID: m.PodUID, VolumeSpec: m.VolumeSpec,
		}))
	}
}

// Stop implements world.Engine.
func (a *agent) Stop(ctx context.Context) error { return a.executor.Wait(ctx) }
