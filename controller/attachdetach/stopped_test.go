package attachdetach

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/leader"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// stopping is a store as seen by a process that is stopped at some time: its lease is not renewed any more.
type stopping struct {
	*store.Memory
	mu      sync.Mutex
	stopped bool
}

func (s *stopping) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
}

func (s *stopping) Update(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	s.mu.Lock()
	stopped := s.stopped
	s.mu.Unlock()
	if _, renews := obj.(*coordinationv1.Lease); renews && stopped {
		return nil, errors.New("the process is stopped")
	}
	return s.Memory.Update(ctx, obj)
}

// lax is storage that attaches an exclusive volume to a second node.
type lax struct{ *fake.Plugin }

func (l lax) NewAttacher() (volume.Attacher, error) {
	a, err := l.Plugin.NewAttacher()
	return laxAttacher{a}, err
}

type laxAttacher struct{ volume.Attacher }

func (a laxAttacher) Attach(ctx context.Context, spec *volume.Spec, node types.NodeName) (string, error) {
	pv := spec.PersistentVolume.DeepCopy()
	pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}
	return a.Attacher.Attach(ctx, volume.NewSpecFromPersistentVolume(pv, false), node)
}

// standBy has a process run a controller when it is its turn, on storage that does not look at access modes.
func (w *world) standBy(holder string, s store.Store, plugin volume.VolumePlugin) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan struct{})
	options := leader.Options{Name: types.NamespacedName{Namespace: "default", Name: "volumes"}, Holder: holder}
	go func() {
		defer close(ended)
		_ = leader.Run(ctx, s, options, func(ctx context.Context, s store.Store) error {
			host, err := volume.NewHost(volume.HostOptions{RootDir: "/nowhere", NodeName: "controller"})
			if err != nil {
				return err
			}
			plugins := volume.NewVolumePluginMgr(host)
			if err := plugins.InitPlugins(ctx, plugin); err != nil {
				return err
			}
			return New(plugins, s, w.options).Run(ctx)
		})
	}()
	w.t.Cleanup(func() { cancel(); <-ended })
	idle()
}

// moveBeneathAStoppedLeader has a leader stop in the middle of its Attach to node-1, the next one move the volume to node-2, and the
// first one's call go on then.
func moveBeneathAStoppedLeader(t *testing.T, options fake.PluginOptions, then func(t *testing.T, w *world)) {
	t.Helper()
	inWorld(t, []string{"node-1", "node-2"}, []string{"data"}, func(t *testing.T, w *world) {
		options.Mounter, options.Backend = noMounts{}, w.backend
		memory, ok := w.store.(*store.Memory)
		require.True(t, ok)
		wire, first, goOn := &stopping{Memory: memory}, fake.NewPlugin(options), make(chan struct{})
		first.Inject(fake.MethodAttach, fake.HangUninterruptible(goOn))
		w.options.VerifyPeriod = 0
		w.standBy("first", wire, lax{first})
		pod := w.run("old", "node-1", "data")
		wire.stop()
		w.standBy("second", memory, lax{fake.NewPlugin(options)})
		time.Sleep(10 * time.Minute)
		w.delete(pod)
		w.run("new", "node-2", "data")
		time.Sleep(10 * time.Minute)
		require.Equal(t, []types.NodeName{"node-2"}, w.nodesOf("data"))
		close(goOn)
		idle()
		then(t, w)
	})
}

// Storage that compares fencing tokens refuses what a leader finishes after another one has moved the volume.
func TestAStoppedLeaderAttachesNothingToFencingStorage(t *testing.T) {
	moveBeneathAStoppedLeader(t, fake.PluginOptions{}, func(t *testing.T, w *world) {
		assert.Equal(t, []types.NodeName{"node-2"}, w.nodesOf("data"))
		assert.Equal(t, []string{"data node-2"}, w.records())
	})
}

// Storage that does not compare them attaches the volume to a second node. The leader finds that, and detaches what no pod needs.
func TestWhatAStoppedLeaderAttachedIsFoundAndDetached(t *testing.T) {
	moveBeneathAStoppedLeader(t, fake.PluginOptions{IgnoreFencing: true}, func(t *testing.T, w *world) {
		require.Equal(t, []types.NodeName{"node-1", "node-2"}, w.nodesOf("data"), "no check before the call prevents that")
		time.Sleep(2 * defaultVerifyPeriod)
		assert.Equal(t, []types.NodeName{"node-2"}, w.nodesOf("data"))
		assert.Equal(t, []string{"data node-2"}, w.records())
	})
}

// What an earlier leader left is found at the start, counts for exclusive volumes, and is taken from no node that uses it.
func TestAnAttachmentOnNoRecordIsFoundAtTheStart(t *testing.T) {
	inWorld(t, []string{"node-1", "node-2"}, []string{"data", "used", "wanted", "foreign"}, func(t *testing.T, w *world) {
		w.options.VerifyPeriod = 0
		w.uses("node-1", "used")
		attacher, err := w.plugin.NewAttacher()
		require.NoError(t, err)
		for _, handle := range []string{"data", "used", "wanted", "foreign"} {
			pv, err := store.Get[*v1.PersistentVolume](t.Context(), w.store, "", handle)
			require.NoError(t, err)
			_, err = attacher.Attach(t.Context(), volume.NewSpecFromPersistentVolume(pv, false), "node-1")
			require.NoError(t, err)
		}
		other := volume.NewSpecFromPersistentVolume(&v1.PersistentVolume{}, false)
		other.PersistentVolume.Name = "of-another-cluster"
		other.PersistentVolume.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: volume.DriverOfPluginName(fake.DefaultPluginName), VolumeHandle: "other"}
		_, err = attacher.Attach(t.Context(), other, "node-1")
		require.NoError(t, err)
		w.create(foreignAttachmentOf("foreign", "node-1", "other.example.com"))
		w.create(newPod("web", "node-1", "wanted"))
		c, _ := w.start(w.store)
		time.Sleep(time.Second)
		assert.Empty(t, w.nodesOf("data"), "no pod needs it")
		assert.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("wanted"))
		assert.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("foreign"), "its object says whose it is")
		assert.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("other"), "the volume is unknown here")
		assert.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("used"))
		assert.GreaterOrEqual(t, len(w.messages(reasonUnknownAttachment)), 2)
		w.run("rival", "node-2", "used")
		assert.Equal(t, []types.NodeName{"node-1"}, w.nodesOf("used"), "it counts as one who has it")
		assert.Contains(t, w.records(), "used node-1", "so it is not reclaimed")
		require.Len(t, c.Status(), 3)
		w.uses("node-1", "wanted")
		time.Sleep(time.Minute)
		assert.Equal(t, []types.NodeName{"node-2"}, w.nodesOf("used"))
	})
}
