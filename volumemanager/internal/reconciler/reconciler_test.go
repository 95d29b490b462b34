package reconciler

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/internal/workqueue"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/changes"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
	"github.com/volumekit/volumekit/volumemanager/internal/retry"
)

const testNode = "node-1"

// testPods are pods that use volumes, and pods of which that is not known.
type testPods struct {
	use     map[podvolume.Key]bool
	unknown map[volume.UniquePodName]bool
}

func (p testPods) Uses(pod volume.UniquePodName, name v1.UniqueVolumeName) bool {
	return p.use[podvolume.Key{Volume: name, Pod: pod}]
}
func (p testPods) MayUse(pod volume.UniquePodName) bool      { return p.unknown[pod] }
func (p testPods) MayBeWanted(name v1.UniqueVolumeName) bool { return false }

// nothing is what a reconciler finds on a node that attaches by itself, that keeps no records and where nothing grows.
type nothing struct{}

func (nothing) Prove(v1.UniqueVolumeName) error { return nil }
func (nothing) Reuse(context.Context, *operationexecutor.VolumeToMount, *cache.MountedVolume) bool {
	return false
}
func (nothing) Forget(v1.UniqueVolumeName) {}
func (nothing) AttachedBy(v1.UniqueVolumeName, *cache.VolumeSnapshot) (controller, contradicted bool) {
	return false, false
}
func (nothing) Planned(v1.UniqueVolumeName, bool, bool) {}
func (nothing) Forgot(v1.UniqueVolumeName)              {}
func (nothing) Explain(missing *operationexecutor.MountPreconditionError) error {
	return missing
}
func (nothing) MustExpand(*operationexecutor.VolumeToMount, resource.Quantity) bool { return false }
func (nothing) Watch(v1.UniqueVolumeName, v1.ObjectReference, bool)                 {}
func (nothing) IsExpanding(v1.UniqueVolumeName) bool                                { return false }
func (nothing) Awaits(v1.UniqueVolumeName, error) bool                              { return false }
func (nothing) RemovePodDirs(operationexecutor.OperationInfo) bool                  { return false }
func (nothing) LastTornDown(volume.UniquePodName)                                   {}
func (nothing) Ended(volume.UniquePodName)                                          {}

// newTestReconciler returns a reconciler that has not been started, and its states.
func newTestReconciler(t *testing.T, pods testPods) (*Reconciler, *cache.DesiredStateOfWorld, *cache.ActualStateOfWorld) {
	t.Helper()
	plugins := volume.NewVolumePluginMgr(fake.NewHost(testNode))
	require.NoError(t, plugins.InitPlugins(t.Context(), fake.NewPlugin(fake.PluginOptions{Mounter: fake.NewMounter(fake.MounterOptions{})})))
	desired := cache.NewDesiredStateOfWorld(plugins, cache.Options{})
	actual := cache.NewActualStateOfWorld(testNode, plugins, cache.Options{})
	r := New(Options{
		Node: testNode, WorkersPerPlugin: 1, Desired: desired, Actual: actual, Changes: &changes.Hub{},
		OnlyTearsDown: func() bool { return false },
		Pods:          pods, Records: nothing{}, Attachments: nothing{}, Expansions: nothing{}, Cleaner: nothing{},
	})
	generator := operationexecutor.NewOperationGenerator(operationexecutor.GeneratorOptions{Plugins: plugins})
	r.executor = operationexecutor.NewOperationExecutor(generator, operationexecutor.ExecutorOptions{})
	return r, desired, actual
}

func testPod(name string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name)}}
}

// takeMarks empties the queue, and reports whether the volume was in it.
func takeMarks(r *Reconciler, name v1.UniqueVolumeName) bool {
	_, ok := r.queue.volumes[name]
	clear(r.queue.marked)
	clear(r.queue.volumes)
	return ok
}

// TestAPlanThatIsOvertakenDoesNothing: what was planned is looked at once more in the moment in which it begins.
func TestAPlanThatIsOvertakenDoesNothing(t *testing.T) {
	const name = v1.UniqueVolumeName("example.com/plugin/one")
	r, _, _ := newTestReconciler(t, testPods{
		use: map[podvolume.Key]bool{{Volume: name, Pod: "here"}: true}, unknown: map[volume.UniquePodName]bool{"unread": true},
	})
	v := &view{name: name, wanted: []operationexecutor.VolumeToMount{{PodName: "gone"}}}
	begun := map[action]bool{
		{verb: verbUnmount, pod: "here"}:   false,
		{verb: verbUnmount, pod: "gone"}:   true,
		{verb: verbUnmount, pod: "unread"}: false, // What the pod uses is not known.
		{verb: verbMount, pod: "here"}:     true,
		{verb: verbRemount, pod: "here"}:   true,
		{verb: verbMount, pod: "gone"}:     false,
		{verb: verbRemount, pod: "gone"}:   false,
		{verb: verbAttach}:                 false,
		{verb: verbUnmountDevice}:          true,
		{verb: verbDetach}:                 true,
	}
	for a, want := range begun {
		op := r.enter(v, a)
		assert.Equal(t, want, op != nil, "%s of %q", a.verb, a.pod)
		assert.Equal(t, want, !r.IsQuiet(), "%s of %q", a.verb, a.pod)
		if op != nil {
			r.removeOperation(op)
		}
	}
	assert.True(t, r.IsQuiet())
}

// TestAVolumeThatIsForgottenAndWantedIsPlannedAgain: who waited for it to go gets it now.
func TestAVolumeThatIsForgottenAndWantedIsPlannedAgain(t *testing.T) {
	r, desired, _ := newTestReconciler(t, testPods{})
	pod := testPod("web")
	spec := volume.NewSpecFromVolume(&v1.Volume{Name: "scratch", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "fake.example.com"}}})
	name, err := desired.AddPodToVolume(cache.AddPodOptions{Pod: pod, VolumeSpec: spec, OuterVolumeSpecName: "scratch"})
	require.NoError(t, err)
	r.forget(name)
	assert.True(t, takeMarks(r, name))
	desired.DeletePod(volume.GetUniquePodName(pod))
	r.forget(name)
	assert.False(t, takeMarks(r, name), "no pod wants it")
}

// TestAFailureIsToldOnceItCanBeRead: a follower that has read the state after the plan reads it again.
func TestAFailureIsToldOnceItCanBeRead(t *testing.T) {
	const name = v1.UniqueVolumeName("example.com/plugin/one")
	r, _, _ := newTestReconciler(t, testPods{})
	defer r.Stop()
	told := workqueue.New[changes.Topic]()
	defer r.Changes.Join(told)()
	failures := map[changes.Topic]podvolume.Key{
		{Volume: name}: {Volume: name},
		{Pod: "web"}:   {Volume: name, Pod: "web"},
	}
	for topic, key := range failures {
		backoff := &volume.BackoffError{Err: volume.ErrInUse, Attempts: 13, Until: time.Now().Add(time.Hour)}
		r.deferOperation(&view{name: name}, action{verb: verbUnmountDevice, pod: key.Pod}, backoff)
		require.Equal(t, 1, told.Len(), "%v", topic)
		got, _ := told.Get(t.Context())
		assert.Equal(t, topic, got)
		why, _ := r.Failure(key)
		assert.Equal(t, 13, why.Attempts)
	}
}

// TestAVolumeThatCannotBeForgottenIsNotDetachedAgainAtOnce: the plan alone would do so without end.
func TestAVolumeThatCannotBeForgottenIsNotDetachedAgainAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const name = v1.UniqueVolumeName("example.com/plugin/one")
		r, _, _ := newTestReconciler(t, testPods{})
		defer r.Stop()
		for attempt := range 3 {
			r.Forgot(name, volume.ErrInUse)
			for _, next := range []verb{verbDetach, verbForget} {
				assert.False(t, (&worker{Reconciler: r}).begin(t.Context(), &view{name: name}, action{verb: next}))
				why, ok := r.Failure(podvolume.Key{Volume: name})
				require.True(t, ok)
				require.ErrorIs(t, why.Err, volume.ErrInUse)
				assert.Equal(t, attempt+1, why.Attempts)
				assert.True(t, why.Until.After(time.Now()))
			}
		}
		time.Sleep(retry.Last)
		_, waits := r.mustWait(name, verbDetach)
		assert.False(t, waits)
		_, waits = r.mustWait(name, verbMount)
		assert.False(t, waits)
		assert.Empty(t, r.failures.forgetting, "another step ends the wait")

		r.Forgot(name, volume.ErrInUse)
		_, waits = r.mustWait(name, verbDetach)
		assert.True(t, waits)
		r.forget(name)
		assert.Empty(t, r.failures.forgetting)
	})
}

// pathTaken is an actual state in which another volume is set up at each path of a pod.
type pathTaken struct {
	ActualState
	by v1.UniqueVolumeName
}

func (p pathTaken) VolumesOfPodNamed(volume.UniquePodName, string, string) []v1.UniqueVolumeName {
	return []v1.UniqueVolumeName{p.by}
}

// endings reads, at each end of an operation of a pod, whether the pod still has an operation.
type endings struct {
	nothing
	r    *Reconciler
	busy []bool
}

func (e *endings) Ended(pod volume.UniquePodName) {
	e.busy = append(e.busy, len(e.r.VolumesOfOperations(pod)) > 0)
}

// TestASetUpThatWaitsForItsPathEndsLikeOthers: another operation of the pod may have ended while the set-up was entered. Its end saw
// the pod busy and left what it is for to the set-up.
func TestASetUpThatWaitsForItsPathEndsLikeOthers(t *testing.T) {
	const name, other = v1.UniqueVolumeName("example.com/plugin/new"), v1.UniqueVolumeName("example.com/plugin/old")
	r, _, actual := newTestReconciler(t, testPods{use: map[podvolume.Key]bool{{Volume: name, Pod: "web"}: true}})
	ends := &endings{r: r}
	r.Cleaner, r.Actual = ends, pathTaken{ActualState: actual, by: other}
	spec := volume.NewSpecFromVolume(&v1.Volume{Name: "data"})
	v := &view{name: name, wanted: []operationexecutor.VolumeToMount{{PodName: "web", PluginName: "example.com/plugin", VolumeSpec: spec}}}
	assert.Nil(t, r.enter(v, action{verb: verbMount, pod: "web"}))
	assert.Equal(t, []bool{false}, ends.busy, "the pod's waiters look again, and find it without an operation")
	why, _ := r.Failure(podvolume.Key{Volume: name, Pod: "web"})
	require.ErrorIs(t, why.Err, volume.ErrInUse)
	r.queueWaitingForPath("web")
	assert.True(t, takeMarks(r, name), "it is planned when the other volume has gone")
}

// pathRead is pathTaken whose read of a path is the moment for something else.
type pathRead struct {
	pathTaken
	during func()
}

func (p pathRead) VolumesOfPodNamed(pod volume.UniquePodName, plugin, inner string) []v1.UniqueVolumeName {
	p.during()
	return p.pathTaken.VolumesOfPodNamed(pod, plugin, inner)
}

// TestATeardownThatFoundASetUpAtItsPathIsTriedAgain: a set-up is entered, and finds the first volume at its path. Between the
// two, the teardown of the first volume finds the set-up running. One of them has to go on, or the pod waits for ever.
func TestATeardownThatFoundASetUpAtItsPathIsTriedAgain(t *testing.T) {
	const name, other = v1.UniqueVolumeName("example.com/plugin/new"), v1.UniqueVolumeName("example.com/plugin/old")
	r, _, actual := newTestReconciler(t, testPods{use: map[podvolume.Key]bool{{Volume: name, Pod: "web"}: true}})
	spec := volume.NewSpecFromVolume(&v1.Volume{Name: "data"})
	setUp := &view{name: name, wanted: []operationexecutor.VolumeToMount{{PodName: "web", PluginName: "example.com/plugin", VolumeSpec: spec}}}
	setUp.inputs.pods = []podView{{name: "web", wanted: true}}
	tearDown := &view{name: other}
	mounted := operationexecutor.MountedVolume{PodName: "web", PluginName: "example.com/plugin", InnerVolumeSpecName: "data"}
	tearDown.actual.Mounts = []cache.MountedVolume{{MountedVolume: mounted}}
	r.Actual = pathRead{pathTaken{ActualState: actual, by: other}, func() {
		assert.Nil(t, r.enter(tearDown, action{verb: verbUnmount, pod: "web"}), "the set-up has the path")
	}}
	assert.Nil(t, r.enter(setUp, action{verb: verbMount, pod: "web"}))
	assert.Contains(t, r.queue.volumes, other, "the teardown is planned again")
	assert.NotContains(t, r.queue.volumes, name, "the set-up waits for the end of the teardown")
	assert.NotNil(t, r.enter(tearDown, action{verb: verbUnmount, pod: "web"}))
}

// TestAPlanForAPodThatWasAddedAgainDoesNothing: the pod was removed and added between the plan and its begin. What is set up for the
// first one is to be torn down, and no set-up begins on it.
func TestAPlanForAPodThatWasAddedAgainDoesNothing(t *testing.T) {
	use := map[podvolume.Key]bool{}
	r, desired, _ := newTestReconciler(t, testPods{use: use})
	pod := testPod("web")
	name := volume.GetUniquePodName(pod)
	spec := volume.NewSpecFromVolume(&v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{FlexVolume: &v1.FlexVolumeSource{Driver: "example.com/fake"}}})
	want := cache.AddPodOptions{Pod: pod, VolumeSpec: spec, OuterVolumeSpecName: "data"}
	volumeName, err := desired.AddPodToVolume(want)
	require.NoError(t, err)
	use[podvolume.Key{Volume: volumeName, Pod: name}] = true
	var planned view
	r.read(&planned, volumeName, name)
	desired.DeletePod(name)
	assert.Nil(t, r.enter(&planned, action{verb: verbMount, pod: name}), "the pod does not want it yet")
	_, err = desired.AddPodToVolume(want)
	require.NoError(t, err)
	assert.Nil(t, r.enter(&planned, action{verb: verbMount, pod: name}))
	r.read(&planned, volumeName, name)
	assert.NotNil(t, r.enter(&planned, action{verb: verbMount, pod: name}), "a plan of the present pod")
}
