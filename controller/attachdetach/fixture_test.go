package attachdetach

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// noMounts is the mounter of a plugin that mounts nothing here.
type noMounts struct{ mount.Interface }

// world is a store, storage and controllers on them. It lives in a bubble of synctest.
type world struct {
	t       *testing.T
	store   store.Store
	backend *fake.Backend
	plugin  *fake.Plugin
	events  *fake.Recorder
	options Options
}

// inWorld runs test in a bubble, with a world of nodes that are ready and claims that are bound to a volume of the same name.
func inWorld(t *testing.T, nodes, claims []string, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{
			t: t, store: store.NewMemory(store.MemoryOptions{}), backend: fake.NewBackend(),
			events: &fake.Recorder{}, options: Options{VerifyPeriod: -1},
		}
		w.newPlugin()
		for _, name := range nodes {
			w.create(newNode(name))
		}
		for _, name := range claims {
			w.claim(name)
		}
		test(t, w)
	})
}

func (w *world) newPlugin() {
	w.plugin = fake.NewPlugin(fake.PluginOptions{Mounter: noMounts{}, Backend: w.backend})
}

// start runs a controller on s until stop is called or the test ends.
func (w *world) start(s store.Store) (c *Controller, stop func()) {
	w.t.Helper()
	host, err := volume.NewHost(volume.HostOptions{RootDir: "/nowhere", NodeName: "controller"})
	require.NoError(w.t, err)
	plugins := volume.NewVolumePluginMgr(host)
	require.NoError(w.t, plugins.InitPlugins(w.t.Context(), w.plugin))
	options := w.options
	options.Recorder = w.events
	c = New(plugins, s, options)
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(w.t, <-ended)
	})
	w.t.Cleanup(stop)
	idle()
	return c, stop
}

// idle waits until nothing is going on, writes that lost against others included. That takes less time of the bubble than any
// back-off.
func idle() {
	time.Sleep(50 * time.Millisecond)
	synctest.Wait()
}

func newNode(name string) *v1.Node {
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status:     v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}},
	}
}

func (w *world) create(obj store.Object) {
	w.t.Helper()
	_, err := w.store.Create(w.t.Context(), obj)
	require.NoError(w.t, err)
}

func (w *world) delete(obj store.Object) {
	w.t.Helper()
	key, err := store.KeyOf(obj)
	require.NoError(w.t, err)
	require.NoError(w.t, w.store.Delete(w.t.Context(), key, store.Preconditions{}))
	idle()
}

// claim makes a claim of namespace "default" and a PersistentVolume of the same name that are bound to each other.
func (w *world) claim(name string, modes ...v1.PersistentVolumeAccessMode) {
	w.t.Helper()
	if len(modes) == 0 {
		modes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	}
	uid := types.UID("uid-of-claim-" + name)
	w.create(&v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: uid},
		Spec:       v1.PersistentVolumeClaimSpec{VolumeName: name},
		Status:     v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound},
	})
	pv := newExclusive(name)
	pv.Spec.AccessModes = modes
	pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "default", Name: name, UID: uid}
	w.create(pv)
}

// newExclusive returns a PersistentVolume that one node alone may have and that has no claim.
func newExclusive(name string) *v1.PersistentVolume {
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PersistentVolumeSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
				Driver: volume.DriverOfPluginName(fake.DefaultPluginName), VolumeHandle: name,
			}},
		},
	}
}

// nameOf is the unique name of the volume of a claim.
func nameOf(claim string) v1.UniqueVolumeName {
	return v1.UniqueVolumeName(fake.DefaultPluginName + "/" + claim)
}

func newPod(name, node string, claims ...string) *v1.Pod {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-of-" + name)},
		Spec:       v1.PodSpec{NodeName: node},
	}
	for _, claim := range claims {
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: claim, VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}})
	}
	return pod
}

// run makes a pod and waits until nothing is going on.
func (w *world) run(name, node string, claims ...string) *v1.Pod {
	w.t.Helper()
	pod := newPod(name, node, claims...)
	w.create(pod)
	idle()
	return pod
}

func (w *world) node(name string) *v1.Node {
	w.t.Helper()
	node, err := store.Get[*v1.Node](w.t.Context(), w.store, "", name)
	require.NoError(w.t, err)
	return node
}

// change changes a node as the node itself or its operator does, and waits until nothing is going on.
func (w *world) change(name string, f func(node *v1.Node)) {
	w.t.Helper()
	for {
		node := w.node(name)
		f(node)
		_, err := store.Update(w.t.Context(), w.store, node)
		if !errors.Is(err, store.ErrConflict) {
			require.NoError(w.t, err)
			break
		}
	}
	idle()
}

// uses makes a node say which volumes it uses.
func (w *world) uses(node string, claims ...string) {
	w.t.Helper()
	w.change(node, func(n *v1.Node) {
		n.Status.VolumesInUse = nil
		for _, claim := range claims {
			n.Status.VolumesInUse = append(n.Status.VolumesInUse, nameOf(claim))
		}
	})
}

func (w *world) sicken(node string) {
	w.t.Helper()
	w.change(node, func(n *v1.Node) { n.Status.Conditions[0].Status = v1.ConditionUnknown })
}

// told returns the volumes that a node's status lists as attached, by claim.
func (w *world) told(node string) []string {
	w.t.Helper()
	var names []string
	for _, at := range w.node(node).Status.VolumesAttached {
		require.NotEmpty(w.t, at.DevicePath)
		names = append(names, strings.TrimPrefix(string(at.Name), fake.DefaultPluginName+"/"))
	}
	return names
}

// nodesOf returns the nodes to which the storage of a claim is attached, as the storage says.
func (w *world) nodesOf(claim string) []types.NodeName { return w.backend.Nodes(claim) }

// calls returns the calls of a method, each as volume and node.
func (w *world) calls(method fake.Method) []string {
	var calls []string
	for _, call := range w.plugin.Calls() {
		if call.Method == method {
			calls = append(calls, call.Volume+" "+string(call.Node))
		}
	}
	return calls
}

// messages returns the messages of all events of a reason, in order.
func (w *world) messages(reason string) []string {
	var messages []string
	for _, e := range w.events.Events() {
		if e.Reason == reason {
			messages = append(messages, e.Message)
		}
	}
	return messages
}

// records returns the names of the VolumeAttachments' nodes.
func (w *world) records() []string {
	w.t.Helper()
	objects, _, err := store.ListOf[*storagev1.VolumeAttachment](w.t.Context(), w.store, "")
	require.NoError(w.t, err)
	var names []string
	for _, object := range objects {
		names = append(names, strings.TrimPrefix(object.Annotations[annUniqueVolumeName], fake.DefaultPluginName+"/")+" "+object.Spec.NodeName)
	}
	slices.Sort(names)
	return names
}

// lagging is a store whose watches of one kind are late.
type lagging struct {
	store.Store
	kind schema.GroupVersionKind
	by   time.Duration
}

func (s *lagging) Watch(ctx context.Context, kind schema.GroupVersionKind, namespace, version string) (<-chan store.Event, error) {
	events, err := s.Store.Watch(ctx, kind, namespace, version)
	if err != nil || kind != s.kind {
		return events, err
	}
	late := make(chan store.Event)
	go func() {
		defer close(late)
		for event := range events {
			pause(ctx, s.by)
			select {
			case late <- event:
			case <-ctx.Done():
			}
		}
	}()
	return late, nil
}
