package expand_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/expand"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/internal/crashstore"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

type noMounts struct{ mount.Interface }

// world is a store with a class that allows expansion, and one claim c of 1Gi with its volume. It lives in a bubble of synctest.
type world struct {
	t       *testing.T
	store   store.Store
	plugin  *fake.Plugin
	plugins *volume.VolumePluginMgr
	events  *fake.Recorder
}

func inWorld(t *testing.T, change func(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume), test func(t *testing.T, w *world)) {
	t.Helper()
	inWorldWithout(t, 0, change, test)
}

// inWorldWithout is inWorld with a plugin that lacks some capabilities.
func inWorldWithout(
	t *testing.T, without volume.Capabilities, change func(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume), test func(t *testing.T, w *world),
) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		host, err := volume.NewHost(volume.HostOptions{RootDir: t.TempDir(), NodeName: "n"})
		require.NoError(t, err)
		w := &world{
			t: t, store: store.NewMemory(store.MemoryOptions{}), plugin: fake.NewPlugin(fake.PluginOptions{Mounter: noMounts{}, Without: without}),
			plugins: volume.NewVolumePluginMgr(host), events: &fake.Recorder{},
		}
		require.NoError(t, w.plugins.InitPlugins(t.Context(), w.plugin))
		claim := &v1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c", UID: "uid-c"},
			Spec: v1.PersistentVolumeClaimSpec{
				VolumeName: "pv", StorageClassName: ptr("fast"), Resources: v1.VolumeResourceRequirements{Requests: size("1Gi")},
				AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			},
			Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound, Capacity: size("1Gi")},
		}
		provisioner, err := w.plugin.NewProvisioner(volume.VolumeOptions{PVName: "pv", PVC: claim})
		require.NoError(t, err)
		pv, err := provisioner.Provision(t.Context(), nil, nil)
		require.NoError(t, err)
		pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "default", Name: "c", UID: "uid-c"}
		if change != nil {
			change(claim, pv)
		}
		class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: fake.DefaultPluginName, AllowVolumeExpansion: ptr(true)}
		for _, obj := range []store.Object{class, claim, pv} {
			_, err := w.store.Create(t.Context(), obj)
			require.NoError(t, err)
		}
		test(t, w)
	})
}

func ptr[T any](v T) *T { return &v }

func size(s string) v1.ResourceList {
	return v1.ResourceList{v1.ResourceStorage: resource.MustParse(s)}
}

func (w *world) start(s store.Store) (c *expand.Controller, stop func()) {
	c = expand.New(w.plugins, s, expand.Options{Events: w.events})
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); require.NoError(w.t, <-ended) })
	w.t.Cleanup(stop)
	idle()
	return c, stop
}

// idle waits until nothing is going on; what failed waits longer.
func idle() {
	time.Sleep(10 * time.Millisecond)
	synctest.Wait()
}

func (w *world) claim() *v1.PersistentVolumeClaim {
	w.t.Helper()
	claim, err := store.Get[*v1.PersistentVolumeClaim](w.t.Context(), w.store, "default", "c")
	require.NoError(w.t, err)
	return claim
}

func (w *world) change(change func(claim *v1.PersistentVolumeClaim)) {
	w.t.Helper()
	claim := w.claim()
	change(claim)
	_, err := store.Update(w.t.Context(), w.store, claim)
	require.NoError(w.t, err)
	idle()
}

func (w *world) request(s string) {
	w.t.Helper()
	w.change(func(claim *v1.PersistentVolumeClaim) { claim.Spec.Resources.Requests = size(s) })
}

// node does what a node does that expands the volume.
func (w *world) node() {
	w.t.Helper()
	w.change(func(claim *v1.PersistentVolumeClaim) {
		done := operationexecutor.Expansion{Size: claim.Status.AllocatedResources[v1.ResourceStorage]}.Apply(claim)
		claim.Status = done.Status
	})
}

func (w *world) calls() int { return w.callsOf(fake.MethodExpandVolume) }

func (w *world) callsOf(method fake.Method) (n int) {
	for _, call := range w.plugin.Calls() {
		if call.Method == method {
			n++
		}
	}
	return n
}

// require fails unless the claim, as it is, has and gets so much, and its volume holds so much.
func (w *world) require(has, allocated string, status v1.ClaimResourceStatus, holds string) {
	w.t.Helper()
	claim := w.claim()
	pv, err := store.Get[*v1.PersistentVolume](w.t.Context(), w.store, "", "pv")
	require.NoError(w.t, err)
	text := func(list v1.ResourceList) string { q := list[v1.ResourceStorage]; return q.String() }
	require.Equal(w.t,
		[]string{has, allocated, string(status), holds},
		[]string{text(claim.Status.Capacity), text(claim.Status.AllocatedResources), string(claim.Status.AllocatedResourceStatuses[v1.ResourceStorage]), text(pv.Spec.Capacity)},
		"the claim's capacity, what is allocated, how far it is, and the volume's capacity")
}

func TestAFilesystemGrowsOnItsNode(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.start(w.store)
		assert.Zero(t, w.calls())
		w.request("2Gi")
		w.require("1Gi", "2Gi", v1.PersistentVolumeClaimNodeResizePending, "2Gi")
		w.request("3Gi")
		assert.Equal(t, 1, w.calls(), "the node is at it")
		w.node()
		w.require("2Gi", "3Gi", v1.PersistentVolumeClaimNodeResizePending, "3Gi")
		w.node()
		w.require("3Gi", "3Gi", "", "3Gi")
		assert.Equal(t, 2, w.calls())
	})
}

func TestABlockDeviceNeedsNoNode(t *testing.T) {
	block := func(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) {
		claim.Spec.VolumeMode, pv.Spec.VolumeMode = ptr(v1.PersistentVolumeBlock), ptr(v1.PersistentVolumeBlock)
	}
	inWorld(t, block, func(_ *testing.T, w *world) {
		w.start(w.store)
		w.request("2Gi")
		w.require("2Gi", "2Gi", "", "2Gi")
	})
}

func TestTheClassAllowsIt(t *testing.T) {
	inWorld(t, func(claim *v1.PersistentVolumeClaim, _ *v1.PersistentVolume) {
		claim.Spec.StorageClassName = ptr("slow")
	}, func(t *testing.T, w *world) {
		c, _ := w.start(w.store)
		w.request("2Gi")
		w.change(func(claim *v1.PersistentVolumeClaim) { claim.Labels = map[string]string{"changed": "yes"} })
		assert.ErrorContains(t, c.Why(types.NamespacedName{Namespace: "default", Name: "c"}), `"slow" does not exist`)
		assert.Len(t, w.events.Events(), 1, "it is told once")
		class, err := store.Create(t.Context(), w.store, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "slow"}, Provisioner: "x.y/z"})
		require.NoError(t, err)
		idle()
		assert.ErrorContains(t, c.Why(types.NamespacedName{Namespace: "default", Name: "c"}), "does not allow")
		assert.Zero(t, w.calls())
		class.AllowVolumeExpansion = ptr(true)
		_, err = store.Update(t.Context(), w.store, class)
		require.NoError(t, err)
		idle()
		w.require("1Gi", "2Gi", v1.PersistentVolumeClaimNodeResizePending, "2Gi")
		assert.NoError(t, c.Why(types.NamespacedName{Namespace: "default", Name: "c"}))
	})
}

// A size that can never be had is not asked for again and again, and is given up for a smaller one at once.
func TestInfeasibleIsNotHammeredAndCanBeTakenBack(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.plugin.Inject(fake.MethodExpandVolume, fake.FailN(2, fmt.Errorf("the pool has 4Gi: %w", volume.ErrInfeasible)))
		w.start(w.store)
		w.request("9Gi")
		w.require("1Gi", "9Gi", v1.PersistentVolumeClaimControllerResizeInfeasible, "1Gi")
		time.Sleep(operationexecutor.DefaultInfeasible / 2)
		w.change(func(claim *v1.PersistentVolumeClaim) { claim.Labels = map[string]string{"changed": "yes"} })
		assert.Equal(t, 1, w.calls())
		time.Sleep(operationexecutor.DefaultInfeasible)
		assert.Equal(t, 2, w.calls())
		w.request("2Gi")
		w.require("1Gi", "2Gi", v1.PersistentVolumeClaimNodeResizePending, "2Gi")
		assert.Equal(t, 3, w.calls())
		w.node()
		w.require("2Gi", "2Gi", "", "2Gi")
		assert.Empty(t, w.claim().Status.Conditions)
	})
}

// A claim that takes its request back altogether is as it was.
func TestAWishIsTakenBack(t *testing.T) {
	inWorld(t, nil, func(_ *testing.T, w *world) {
		w.plugin.Inject(fake.MethodExpandVolume, fake.FailN(1, volume.ErrInfeasible))
		w.start(w.store)
		w.request("9Gi")
		w.request("1Gi")
		w.node()
		w.require("1Gi", "1Gi", "", "1Gi")
	})
}

// A node that cannot have a size gets another chance from time to time, not all the time.
func TestANodeThatFailedForGoodGetsAnotherChance(t *testing.T) {
	inWorld(t, nil, func(_ *testing.T, w *world) {
		w.start(w.store)
		w.request("2Gi")
		chances := 0
		for range 5 {
			if w.claim().Status.AllocatedResourceStatuses[v1.ResourceStorage] == v1.PersistentVolumeClaimNodeResizePending {
				chances++
			}
			w.change(func(claim *v1.PersistentVolumeClaim) {
				claim.Status.AllocatedResourceStatuses[v1.ResourceStorage] = v1.PersistentVolumeClaimNodeResizeInfeasible
			})
		}
		assert.Equal(w.t, 2, chances)
		time.Sleep(operationexecutor.DefaultInfeasible + time.Second)
		w.require("1Gi", "2Gi", v1.PersistentVolumeClaimNodeResizePending, "2Gi")
	})
}

func TestWhatFailsIsTriedAgainWithABackoff(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.plugin.Inject(fake.MethodExpandVolume, fake.FailN(3, errors.New("busy")))
		c, _ := w.start(w.store)
		w.request("2Gi")
		assert.Equal(t, 1, w.calls())
		assert.ErrorContains(t, c.Why(types.NamespacedName{Namespace: "default", Name: "c"}), "busy")
		time.Sleep(time.Minute)
		assert.Equal(t, 4, w.calls())
		w.require("1Gi", "2Gi", v1.PersistentVolumeClaimNodeResizePending, "2Gi")
	})
}

// What is not this controller's is left alone.
func TestOthersAreLeftAlone(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume)
		events int
	}{
		"a driver that is not here": {func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) {
			pv.Spec.CSI.Driver = "other.example.com"
		}, 1},
		"the volume of another claim": {func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) { pv.Spec.ClaimRef.UID = "older" }, 0},
		"a claim that is not bound":   {func(claim *v1.PersistentVolumeClaim, _ *v1.PersistentVolume) { claim.Status.Phase = v1.ClaimPending }, 0},
		"a claim that does not say what it has": {func(claim *v1.PersistentVolumeClaim, _ *v1.PersistentVolume) {
			claim.Status.Capacity = nil
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, tt.change, func(t *testing.T, w *world) {
				w.start(w.store)
				w.request("2Gi")
				time.Sleep(time.Hour)
				assert.Zero(t, w.calls())
				assert.Len(t, w.events.Events(), tt.events)
			})
		})
	}
}

// A controller that dies between any two of its writes leaves what the next one finishes.
func TestACrashAfterAnyWriteIsFinished(t *testing.T) {
	for writes := range 4 {
		t.Run(fmt.Sprintf("after write %d", writes), func(t *testing.T) {
			inWorld(t, nil, func(_ *testing.T, w *world) {
				_, stop := w.start(crashstore.New(w.store, crashstore.Crash{After: writes}))
				w.request("2Gi")
				stop()
				w.start(w.store)
				w.require("1Gi", "2Gi", v1.PersistentVolumeClaimNodeResizePending, "2Gi")
			})
		})
	}
}

func TestRunNeedsWhatItWorksOn(t *testing.T) {
	require.ErrorIs(t, expand.New(nil, store.NewMemory(store.MemoryOptions{}), expand.Options{}).Run(t.Context()), volume.ErrInvalid)
}
