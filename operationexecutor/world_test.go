package operationexecutor_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

const node = types.NodeName("node-1")

// world is one executor with a scripted plugin, the real cache, and ports that keep what they are told.
type world struct {
	t *testing.T
	*history
	plugin    *plugin
	actual    *cache.ActualStateOfWorld
	executor  *operationexecutor.Executor
	journal   *journal
	nodes     *nodeReader
	devices   *deviceUse
	recorder  *recorder
	reporter  *reporter
	generator operationexecutor.OperationGenerator
	able      *ablePlugin // nil unless setup.abilities says otherwise
}

// setup says how a world is made.
type setup struct {
	attachable, stageable bool
	withReporter          bool
	block                 bool                // the plugin serves devices
	mounting              bool                // the plugin says that it mounts
	mounts                *mountTable         // nil: mounts are not checked
	abilities             volume.Capabilities // beside the plain ones; 0: none
	executor              operationexecutor.ExecutorOptions
	// generator changes the options of the generator; nil leaves them.
	generator func(o *operationexecutor.GeneratorOptions)
}

func newWorld(t *testing.T, s setup) *world {
	t.Helper()
	host, err := volume.NewHost(volume.HostOptions{RootDir: "/var/lib/agent", NodeName: node})
	require.NoError(t, err)
	h := &history{}
	w := &world{
		t: t, history: h, journal: &journal{history: h, records: map[string]operationexecutor.IntentEnd{}},
		plugin: &plugin{
			history: h, attachable: s.attachable, stageable: s.stageable, script: map[string]func(context.Context) error{},
		},
		nodes: &nodeReader{}, devices: &deviceUse{}, recorder: &recorder{}, reporter: &reporter{history: h},
	}
	plugins := volume.NewVolumePluginMgr(host)
	switch {
	case s.block:
		require.NoError(t, plugins.InitPlugins(t.Context(), &blockPlugin{w.plugin}))
	case s.abilities == 0:
		require.NoError(t, plugins.InitPlugins(t.Context(), w.plugin))
	default:
		w.able = &ablePlugin{plugin: w.plugin, abilities: s.abilities}
		require.NoError(t, plugins.InitPlugins(t.Context(), w.able))
	}
	w.actual = cache.NewActualStateOfWorld(node, plugins, cache.Options{})
	options := operationexecutor.GeneratorOptions{
		Plugins: plugins, Journal: w.journal, DeviceUse: w.devices, NodeReader: w.nodes, Recorder: w.recorder,
	}
	w.plugin.mounting = s.mounting
	if s.mounts != nil {
		options.Mounts = s.mounts
	}
	if s.withReporter {
		options.Reporter = w.reporter
	}
	if s.generator != nil {
		s.generator(&options)
	}
	w.generator = operationexecutor.NewOperationGenerator(options)
	if s.executor.Backoff.Jitter == 0 {
		s.executor.Backoff.Jitter = -1
	}
	w.executor = operationexecutor.NewOperationExecutor(w.generator, s.executor)
	return w
}

// stagedWorld is a world whose plugin attaches and stages, with volume "data" attached.
func stagedWorld(t *testing.T) *world {
	w := newWorld(t, setup{attachable: true, stageable: true})
	w.attached("data")
	return w
}

func (w *world) attached(name string) {
	require.NoError(w.t, w.actual.MarkVolumeAsAttached(volumeName(name), spec(name), node, ""))
}

func volumeName(name string) v1.UniqueVolumeName { return volume.GetUniqueVolumeName(pluginName, name) }

// spec returns a PersistentVolume that one node may have.
func spec(name string) *volume.Spec {
	return volume.NewSpecFromPersistentVolume(&v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1.PersistentVolumeSpec{AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}},
	}, false)
}

func pod(name string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)}}
}

func (w *world) toMount(name, podName string) operationexecutor.VolumeToMount {
	return operationexecutor.VolumeToMount{
		VolumeName: volumeName(name), PodName: volume.UniquePodName(podName), VolumeSpec: spec(name), Pod: pod(podName),
		OuterVolumeSpecNames: []string{"outer"}, PluginName: pluginName,
		PluginIsAttachable: w.plugin.attachable, PluginIsDeviceMountable: w.plugin.stageable,
		DevicePath: w.attachedVolume(name).DevicePath,
	}
}

func (w *world) mounted(name, podName string) operationexecutor.MountedVolume {
	return operationexecutor.MountedVolume{
		VolumeName: volumeName(name), PodName: volume.UniquePodName(podName), PodUID: types.UID(podName), Pod: pod(podName),
		VolumeSpec: spec(name), InnerVolumeSpecName: name, PluginName: pluginName,
	}
}

func (w *world) attachedVolume(name string) operationexecutor.AttachedVolume {
	if w.actual != nil {
		if v, ok := w.actual.GetAttachedVolume(volumeName(name)); ok {
			return v.AttachedVolume
		}
	}
	return operationexecutor.AttachedVolume{VolumeName: volumeName(name), VolumeSpec: spec(name), NodeName: node, PluginName: pluginName}
}

func (w *world) attach(name string) (*operationexecutor.Operation, error) {
	return w.executor.AttachVolume(w.t.Context(), operationexecutor.VolumeToAttach{
		VolumeName: volumeName(name), VolumeSpec: spec(name), NodeName: node, ScheduledPods: []*v1.Pod{pod("p"), pod("q")},
	}, w.actual)
}

func (w *world) detach(name string) (*operationexecutor.Operation, error) {
	return w.executor.DetachVolume(w.t.Context(), w.attachedVolume(name), operationexecutor.DetachOptions{VerifySafeToDetach: true}, w.actual)
}

func (w *world) mount(name, podName string) (*operationexecutor.Operation, error) {
	return w.executor.MountVolume(w.t.Context(), w.toMount(name, podName), operationexecutor.MountOptions{}, w.actual)
}

func (w *world) remount(name, podName string) (*operationexecutor.Operation, error) {
	return w.executor.MountVolume(w.t.Context(), w.toMount(name, podName), operationexecutor.MountOptions{IsRemount: true}, w.actual)
}

func (w *world) unmount(name, podName string) (*operationexecutor.Operation, error) {
	return w.executor.UnmountVolume(w.t.Context(), w.mounted(name, podName), w.actual)
}

func (w *world) unmountDevice(name string) (*operationexecutor.Operation, error) {
	return w.executor.UnmountDevice(w.t.Context(), w.attachedVolume(name), w.actual)
}

// ended waits for an operation that must have started, forgets its back-off and returns it.
func (w *world) ended(op *operationexecutor.Operation, err error) *operationexecutor.Operation {
	w.t.Helper()
	require.NoError(w.t, err, "the operation must start")
	awaitDone(w.t, op)
	w.executor.Forget(op.Info().VolumeName)
	return op
}

// awaitDone waits for the end of an operation. It fails before the time limit of all tests, so that the failure names the
// test.
func awaitDone(t *testing.T, op *operationexecutor.Operation) {
	t.Helper()
	patience := 30 * time.Second
	if time.Now().Year() == 2000 { // The clock of a bubble of synctest, in which much time passes at no cost.
		patience = 24 * time.Hour
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	select {
	case <-op.Done():
	case <-ctx.Done():
		require.Fail(t, "the operation does not end")
	}
}

// succeeded waits for an operation that must succeed.
func (w *world) succeeded(op *operationexecutor.Operation, err error) {
	w.t.Helper()
	require.NoError(w.t, w.ended(op, err).Err())
}

// failed waits for an operation that must fail, and returns its error.
func (w *world) failed(op *operationexecutor.Operation, err error) error {
	w.t.Helper()
	cause := w.ended(op, err).Err()
	require.Error(w.t, cause)
	var wrapped *volume.Error
	require.ErrorAs(w.t, cause, &wrapped)
	require.NotErrorAs(w.t, wrapped.Err, &wrapped, "the cause is wrapped once")
	return cause
}

func (w *world) device(name string) operationexecutor.DeviceMountState {
	return w.actual.GetDeviceMountState(volumeName(name))
}

func (w *world) pod(name, podName string) operationexecutor.VolumeMountState {
	return w.actual.GetVolumeMountState(volumeName(name), volume.UniquePodName(podName))
}

// journal keeps what intents became.
type journal struct {
	*history
	mu      sync.Mutex
	records map[string]operationexecutor.IntentEnd
	err     error
	// replaced is the error of each check of the root.
	replaced error
	// onIntend is called after each intent.
	onIntend func()
}

func operationOf(i operationexecutor.Intent) string {
	switch {
	case i.NodeName != "":
		return "attachment"
	case i.PodUID != "":
		return "set-up"
	}
	return "staging"
}

func (j *journal) Intend(_ context.Context, i operationexecutor.Intent) error {
	if err := cmp.Or(j.err, j.replaced); err != nil {
		return err
	}
	j.add("intend", operationOf(i))
	j.set(i, operationexecutor.IntentUncertain)
	if j.onIntend != nil {
		j.onIntend()
	}
	return nil
}

func (j *journal) CheckRoot(context.Context) error { return j.replaced }

func (j *journal) Conclude(ctx context.Context, i operationexecutor.Intent, end operationexecutor.IntentEnd) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	j.add("conclude", operationOf(i), [...]string{"done", "uncertain", "forgotten"}[end])
	j.set(i, end)
	return nil
}

func (j *journal) set(i operationexecutor.Intent, end operationexecutor.IntentEnd) {
	j.mu.Lock()
	defer j.mu.Unlock()
	key := fmt.Sprint(i.VolumeName, operationOf(i), i.PodUID)
	j.records[key] = end
	if end == operationexecutor.IntentForgotten {
		delete(j.records, key)
	}
}

// record returns what the record of a volume's set-up for a pod says.
func (j *journal) record(name, podName string) operationexecutor.IntentEnd {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.records[fmt.Sprint(volumeName(name), "set-up", types.UID(podName))]
}

type nodeReader struct {
	*history // nil: nothing is kept
	inUse    []v1.UniqueVolumeName
	attached map[v1.UniqueVolumeName]string
	err      error
}

func (n *nodeReader) VolumesInUse(_ context.Context, nodeName types.NodeName) ([]v1.UniqueVolumeName, error) {
	n.asked("VolumesInUse", nodeName)
	return n.inUse, n.err
}

func (n *nodeReader) VolumesAttached(_ context.Context, nodeName types.NodeName) (map[v1.UniqueVolumeName]string, error) {
	n.asked("VolumesAttached", nodeName)
	return n.attached, n.err
}

func (n *nodeReader) asked(what string, nodeName types.NodeName) {
	if n.history != nil {
		n.add(what, string(nodeName))
	}
}

type deviceUse struct {
	opened bool
	err    error
}

func (d *deviceUse) DeviceOpened(context.Context, string) (bool, error) { return d.opened, d.err }

// recorder keeps the reasons of events with the name of their object.
type recorder struct {
	mu     sync.Mutex
	events []string
}

func (r *recorder) Eventf(object runtime.Object, eventtype, reason, _ string, _ ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	named, _ := object.(metav1.Object)
	r.events = append(r.events, eventtype+" "+reason+" "+named.GetName())
}

func (r *recorder) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}
