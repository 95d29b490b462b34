package attachdetach

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/internal/crashstore"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

const volumesToConfirm = 40

// attachedBefore has a controller attach volumes to four nodes, and ends it.
func (w *world) attachedBefore() (claims []string) {
	w.t.Helper()
	for i := range volumesToConfirm {
		claims = append(claims, fmt.Sprintf("data-%02d", i))
		w.claim(claims[i])
		w.create(newPod("pod-"+claims[i], nodeFor(i), claims[i]))
	}
	_, stop := w.start(w.store)
	require.Len(w.t, w.calls(fake.MethodAttach), volumesToConfirm)
	stop()
	return claims
}

func nodeFor(i int) string { return fmt.Sprintf("node-%d", i%4) }

func fourNodes() []string { return []string{"node-0", "node-1", "node-2", "node-3"} }

// requireAllAttached checks that every node is told of its volumes.
func (w *world) requireAllAttached(c *Controller) {
	w.t.Helper()
	for _, status := range c.Status() {
		require.Equal(w.t, PhaseAttached, status.Phase, status.Volume)
		require.NotEmpty(w.t, status.DevicePath)
	}
	told := 0
	for _, node := range fourNodes() {
		told += len(w.told(node))
	}
	require.Equal(w.t, volumesToConfirm, told)
}

// TestWhatIsOnRecordIsConfirmedInBulk: a controller that starts again asks the plugin once, and attaches nothing, and writes nothing.
func TestWhatIsOnRecordIsConfirmedInBulk(t *testing.T) {
	inWorld(t, fourNodes(), nil, func(t *testing.T, w *world) {
		w.attachedBefore()
		w.newPlugin()
		writes := crashstore.New(w.store, crashstore.Crash{After: math.MaxInt})
		c, _ := w.start(writes)
		assert.Empty(t, w.calls(fake.MethodAttach))
		assert.Empty(t, w.calls(fake.MethodVolumesAreAttached))
		assert.Len(t, w.plugin.Calls(), 1+initCalls(w.plugin), "one question for all")
		w.requireAllAttached(c)
		assert.Zero(t, writes.Steps(), "nothing has changed")
	})
}

// initCalls counts the calls that come before any volume's.
func initCalls(plugin *fake.Plugin) int {
	count := 0
	for _, call := range plugin.Calls() {
		if call.Method == fake.MethodInit {
			count++
		}
	}
	return count
}

// TestWhatIsOnRecordIsConfirmedNodeByNode is for a plugin that cannot be asked about several nodes at once.
func TestWhatIsOnRecordIsConfirmedNodeByNode(t *testing.T) {
	inWorld(t, fourNodes(), nil, func(t *testing.T, w *world) {
		w.attachedBefore()
		w.plugin = fake.NewPlugin(fake.PluginOptions{
			Mounter: noMounts{}, Backend: w.backend, Without: volume.CapBulkVerify,
		})
		c, _ := w.start(w.store)
		assert.Empty(t, w.calls(fake.MethodAttach))
		assert.Len(t, w.calls(fake.MethodVolumesAreAttached), len(fourNodes()))
		w.requireAllAttached(c)
	})
}

// TestWhatIsNotThereAnyMoreIsAttachedAgain: the record of one is wrong, and the record of another says that its call did not end.
func TestWhatIsNotThereAnyMoreIsAttachedAgain(t *testing.T) {
	inWorld(t, fourNodes(), nil, func(t *testing.T, w *world) {
		claims := w.attachedBefore()
		detacher, err := w.plugin.NewDetacher()
		require.NoError(t, err)
		require.NoError(t, detacher.Detach(t.Context(), claims[5], "node-1"))
		unsure, err := store.Get[*storagev1.VolumeAttachment](t.Context(), w.store, "", recordName(nameOf(claims[6]), anyNode))
		require.NoError(t, err)
		unsure.Status = storagev1.VolumeAttachmentStatus{}
		_, err = store.Update(t.Context(), w.store, unsure)
		require.NoError(t, err)
		w.newPlugin()
		c, _ := w.start(w.store)
		assert.ElementsMatch(t, []string{claims[5] + " node-1", claims[6] + " node-2"}, w.calls(fake.MethodAttach))
		w.requireAllAttached(c)
	})
}

// TestAConfirmationThatFailsCostsOneAttachEach: the plugin cannot answer, so each volume is attached again, as after a record
// without an answer.
func TestAConfirmationThatFailsCostsOneAttachEach(t *testing.T) {
	for name, fault := range map[string]func() fake.Fault{
		"it fails": func() fake.Fault { return fake.Fail(errors.New("no answer")) },
		"it hangs": func() fake.Fault { return fake.Fault{Until: make(chan struct{})} },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, fourNodes(), nil, func(t *testing.T, w *world) {
				w.attachedBefore()
				w.newPlugin()
				w.plugin.Inject(fake.MethodBulkVerifyVolumes, fault())
				c, _ := w.start(w.store)
				time.Sleep(time.Hour)
				assert.Len(t, w.calls(fake.MethodAttach), volumesToConfirm)
				w.requireAllAttached(c)
			})
		})
	}
}

// TestWhatIsBeingConfirmedHoldsUpNothingElse: a plugin that does not answer about what is on record attaches what is new.
func TestWhatIsBeingConfirmedHoldsUpNothingElse(t *testing.T) {
	inWorld(t, fourNodes(), nil, func(t *testing.T, w *world) {
		w.attachedBefore()
		w.newPlugin()
		answered := make(chan struct{})
		w.plugin.Inject(fake.MethodBulkVerifyVolumes, fake.Fault{Until: answered, Effect: fake.EffectDone})
		c, _ := w.start(w.store)
		assert.Empty(t, w.calls(fake.MethodAttach))
		w.claim("new")
		w.run("new", "node-0", "new")
		assert.Equal(t, []string{"new node-0"}, w.calls(fake.MethodAttach))
		close(answered)
		idle()
		assert.Len(t, w.calls(fake.MethodAttach), 1)
		assert.Len(t, c.Status(), volumesToConfirm+1)
		for _, status := range c.Status() {
			assert.Equal(t, PhaseAttached, status.Phase)
		}
	})
}

// TestWhatIsBeingConfirmedIsNotDetached: an answer of the plugin would make the detach fail, with an event and a back-off.
func TestWhatIsBeingConfirmedIsNotDetached(t *testing.T) {
	inWorld(t, []string{"node-1"}, []string{"data"}, func(t *testing.T, w *world) {
		_, stop := w.start(w.store)
		pod := w.run("job", "node-1", "data")
		stop()
		w.delete(pod)
		w.newPlugin()
		answered := make(chan struct{})
		w.plugin.Inject(fake.MethodVolumesAreAttached, fake.Fault{Until: answered, Effect: fake.EffectDone})
		w.start(w.store)
		assert.Empty(t, w.calls(fake.MethodDetach))
		close(answered)
		idle()
		assert.Equal(t, []string{"data node-1"}, w.calls(fake.MethodDetach))
		assert.Empty(t, w.messages("FailedDetachVolume"))
		assert.Empty(t, w.records())
	})
}

// TestALeaderAttachesAgainWhereStorageFences: a question shows the storage no token, so that an earlier leader's late call would be
// carried out. Without fencing a leader verifies, as any process does.
func TestALeaderAttachesAgainWhereStorageFences(t *testing.T) {
	for _, fences := range []bool{true, false} {
		t.Run(fmt.Sprint(fences), func(t *testing.T) {
			inWorld(t, fourNodes(), nil, func(t *testing.T, w *world) {
				claims := w.attachedBefore()
				w.plugin = fake.NewPlugin(fake.PluginOptions{Mounter: noMounts{}, Backend: w.backend, IgnoreFencing: !fences})
				token := volume.FencingToken{Lease: "default/volumes", Term: 2}
				c := w.elect(token)
				w.requireAllAttached(c)
				if !fences {
					assert.Empty(t, w.calls(fake.MethodAttach))
					return
				}
				assert.Len(t, w.calls(fake.MethodAttach), volumesToConfirm)
				detacher, err := w.plugin.NewDetacher()
				require.NoError(t, err)
				token.Term--
				require.ErrorIs(t, detacher.Detach(volume.WithFencingToken(t.Context(), token), claims[0], "node-0"), volume.ErrFenced)
			})
		})
	}
}

// elect runs a controller in a term until the test ends.
func (w *world) elect(token volume.FencingToken) *Controller {
	w.t.Helper()
	host, err := volume.NewHost(volume.HostOptions{RootDir: "/nowhere", NodeName: "controller"})
	require.NoError(w.t, err)
	plugins := volume.NewVolumePluginMgr(host)
	require.NoError(w.t, plugins.InitPlugins(w.t.Context(), w.plugin))
	c := New(plugins, w.store, w.options)
	ctx, cancel := context.WithCancel(volume.WithFencingToken(w.t.Context(), token))
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		require.NoError(w.t, <-ended)
	})
	idle()
	return c
}
