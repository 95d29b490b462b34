package operationexecutor_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"runtime/debug"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// mountTable is what is mounted, whatever the plugin says.
type mountTable struct {
	mu      sync.Mutex
	mounted map[string]bool
	asked   []string
	err     error
	hangs   <-chan struct{}
}

func (m *mountTable) set(path string, mounted bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mounted == nil {
		m.mounted = map[string]bool{}
	}
	m.mounted[path] = mounted
}

func (m *mountTable) IsMountPoint(_ context.Context, path string) (bool, error) {
	if m.hangs != nil {
		<-m.hangs
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked = append(m.asked, path)
	mounted, known := m.mounted[path]
	if !known && m.err == nil {
		return false, fs.ErrNotExist
	}
	return mounted, m.err
}

const root = "/var/lib/agent"

var (
	podPath    = path.Join(root, "pods/p/volumes", "example.com~scripted", "data")
	stagedPath = path.Join(root, "plugins", pluginName, "mounts/data")
)

// lyingWorld is a world whose plugin says that it mounts, and whose table says whether it did.
func lyingWorld(t *testing.T) (*world, *mountTable) {
	table := &mountTable{}
	w := newWorld(t, setup{attachable: true, stageable: true, mounts: table, mounting: true})
	w.attached("data")
	return w, table
}

func (w *world) honest(table *mountTable) {
	for method, change := range map[string]func(){
		"MountDevice":   func() { table.set(stagedPath, true) },
		"SetUp":         func() { table.set(podPath, true) },
		"TearDown":      func() { table.set(podPath, false) },
		"UnmountDevice": func() { table.set(stagedPath, false) },
	} {
		w.plugin.on(method, func(context.Context) error { change(); return nil })
	}
}

func TestAnHonestPluginIsBelieved(t *testing.T) {
	w, table := lyingWorld(t)
	w.honest(table)
	w.succeeded(w.mount("data", "p"))
	w.succeeded(w.unmount("data", "p"))
	w.succeeded(w.unmountDevice("data"))
	assert.Equal(t, []string{stagedPath, podPath, podPath, stagedPath}, table.asked)
	assert.Empty(t, w.journal.records)
}

// TestASuccessWithoutAMountIsFoundOut: no pod may write into the directory beneath.
func TestASuccessWithoutAMountIsFoundOut(t *testing.T) {
	w, table := lyingWorld(t)
	op := w.ended(w.mount("data", "p"))
	require.ErrorIs(t, op.Err(), operationexecutor.ErrContractViolation)
	require.ErrorContains(t, op.Err(), "nothing is mounted at")
	assert.Equal(t, operationexecutor.DeviceMountUncertain, w.device("data"))
	assert.Zero(t, w.count("SetUp"))

	w.honest(table)
	w.plugin.on("SetUp", nil)
	op = w.ended(w.mount("data", "p"))
	require.ErrorIs(t, op.Err(), operationexecutor.ErrContractViolation)
	assert.Equal(t, operationexecutor.Uncertain, op.Result().Class)
	assert.Equal(t, operationexecutor.DeviceGloballyMounted, w.device("data"))
	assert.Equal(t, operationexecutor.VolumeMountUncertain, w.pod("data", "p"))
	assert.Contains(t, w.recorder.all(), "Warning FailedMount p")

	w.honest(table)
	w.succeeded(w.mount("data", "p"))
	table.set(podPath, false)
	w.plugin.on("SetUp", nil)
	require.ErrorIs(t, w.failed(w.remount("data", "p")), operationexecutor.ErrContractViolation)
	assert.Equal(t, operationexecutor.VolumeMountUncertain, w.pod("data", "p"), "that it is gone is proven")
}

// TestAPluginThatRefusesAForeignMountIsNotBlamed: what is mounted there is uncertain all the same.
func TestAPluginThatRefusesAForeignMountIsNotBlamed(t *testing.T) {
	w, table := lyingWorld(t)
	w.honest(table)
	w.plugin.on("SetUp", func(context.Context) error {
		table.set(podPath, true)
		return fmt.Errorf("a tmpfs is at %q: %w", podPath, mount.ErrForeign)
	})
	op := w.ended(w.mount("data", "p"))
	require.ErrorIs(t, op.Err(), mount.ErrForeign)
	require.NotErrorIs(t, op.Err(), operationexecutor.ErrContractViolation)
	assert.Equal(t, operationexecutor.Uncertain, op.Result().Class)
	assert.Equal(t, operationexecutor.VolumeMountUncertain, w.pod("data", "p"))
}

// TestAFailureWithAMountIsFoundOut: it is torn down before it is forgotten.
func TestAFailureWithAMountIsFoundOut(t *testing.T) {
	for name, cause := range map[string]error{"final": errBroken, "transient": volume.Transient(errBroken)} {
		t.Run(name, func(t *testing.T) {
			w, table := lyingWorld(t)
			w.honest(table)
			w.plugin.on("MountDevice", func(context.Context) error { table.set(stagedPath, true); return cause })
			op := w.ended(w.mount("data", "p"))
			require.ErrorIs(t, op.Err(), errBroken)
			require.ErrorIs(t, op.Err(), operationexecutor.ErrContractViolation)
			assert.Equal(t, operationexecutor.Uncertain, op.Result().Class)
			assert.Equal(t, operationexecutor.DeviceMountUncertain, w.device("data"))

			w.honest(table)
			w.plugin.on("SetUp", func(context.Context) error { table.set(podPath, true); return cause })
			op = w.ended(w.mount("data", "p"))
			require.ErrorIs(t, op.Err(), operationexecutor.ErrContractViolation)
			assert.Equal(t, operationexecutor.VolumeMountUncertain, w.pod("data", "p"))
			w.succeeded(w.unmount("data", "p"))
			w.succeeded(w.unmountDevice("data"))
		})
	}
}

func TestAFailureWithoutAMountKeepsItsClass(t *testing.T) {
	w, table := lyingWorld(t)
	w.honest(table)
	w.plugin.fail("SetUp", errBroken)
	op := w.ended(w.mount("data", "p"))
	assert.Equal(t, operationexecutor.Final, op.Result().Class)
	require.NotErrorIs(t, op.Err(), operationexecutor.ErrContractViolation)
	assert.Equal(t, operationexecutor.VolumeNotMounted, w.pod("data", "p"))
}

// TestALiveMountIsNoProofAgainstARemountThatFailed.
func TestALiveMountIsNoProofAgainstARemountThatFailed(t *testing.T) {
	w, table := lyingWorld(t)
	w.honest(table)
	w.succeeded(w.mount("data", "p"))
	w.plugin.fail("SetUp", errBroken)
	op := w.ended(w.remount("data", "p"))
	assert.Equal(t, operationexecutor.Final, op.Result().Class)
	assert.Equal(t, operationexecutor.VolumeMounted, w.pod("data", "p"))
}

// TestARemountIsDoubtedWhenItsMountIs was found by the simulation: another program unmounted the volume during a refresh, and
// the plugin mounted it again and returned an error.
func TestARemountIsDoubtedWhenItsMountIs(t *testing.T) {
	w, table := lyingWorld(t)
	w.honest(table)
	w.succeeded(w.mount("data", "p"))
	w.plugin.on("SetUp", func(context.Context) error {
		return errors.Join(errBroken, w.actual.MarkVolumeMountAsUncertain(operationexecutor.MountedVolume{
			VolumeName: volumeName("data"), PodName: "p", VolumeSpec: spec("data"),
		}))
	})
	op := w.ended(w.remount("data", "p"))
	require.ErrorIs(t, op.Err(), operationexecutor.ErrContractViolation)
	assert.Equal(t, operationexecutor.VolumeMountUncertain, w.pod("data", "p"))
}

func TestATeardownThatLeavesAMountIsFoundOut(t *testing.T) {
	w, table := lyingWorld(t)
	w.honest(table)
	w.succeeded(w.mount("data", "p"))
	w.plugin.on("TearDown", nil)
	op := w.ended(w.unmount("data", "p"))
	require.ErrorIs(t, op.Err(), operationexecutor.ErrContractViolation)
	require.ErrorContains(t, op.Err(), "still mounted at")
	assert.Equal(t, operationexecutor.VolumeMountUncertain, w.pod("data", "p"))
	w.honest(table)
	w.succeeded(w.unmount("data", "p"))
	w.plugin.on("UnmountDevice", nil)
	require.ErrorIs(t, w.failed(w.unmountDevice("data")), operationexecutor.ErrContractViolation)
	assert.Equal(t, operationexecutor.DeviceMountUncertain, w.device("data"))
	assert.Equal(t, 1, w.count("conclude staging uncertain"))
}

// TestACallIsCheckedAlsoWhenItsContextHasEnded was found by the simulation: a teardown that said it had succeeded after its
// operation was cancelled was believed.
func TestACallIsCheckedAlsoWhenItsContextHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, table := lyingWorld(t)
		w.honest(table)
		w.succeeded(w.mount("data", "p"))
		ctx, cancel := context.WithCancel(t.Context())
		w.plugin.on("TearDown", func(context.Context) error { cancel(); return nil })
		op := w.ended(w.executor.UnmountVolume(ctx, w.mounted("data", "p"), w.actual))
		require.ErrorIs(t, op.Err(), operationexecutor.ErrContractViolation)
		assert.Equal(t, operationexecutor.VolumeMountUncertain, w.pod("data", "p"))
	})
}

// TestWhatCannotBeAskedIsBelieved also when the look fails or hangs, which holds nothing up but for its bound.
func TestWhatCannotBeAskedIsBelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, table := lyingWorld(t)
		table.err = errBroken
		w.succeeded(w.mount("data", "p"))
		w.succeeded(w.unmount("data", "p"))
		table.err = nil
		w.honest(table)
		hangs := make(chan struct{})
		table.hangs = hangs
		op := w.ended(w.mount("data", "p"))
		require.NoError(t, op.Err())
		synctest.Wait()
		require.Len(t, w.executor.Hung(), 1)
		assert.Equal(t, "IsMountPoint", w.executor.Hung()[0].Call)
		assert.True(t, w.executor.IsOperationPending(operationexecutor.Key{Volume: volumeName("data")}))
		close(hangs)
		synctest.Wait()
		require.NoError(t, w.executor.Wait(t.Context()))
	})
}

// promptTable is a table that returns when its context ends. It notes by whom it was asked.
type promptTable struct {
	*mountTable
	stack *string
}

func (promptTable) ReturnsInTime() {}

func (p promptTable) IsMountPoint(ctx context.Context, path string) (bool, error) {
	*p.stack = string(debug.Stack())
	if p.hangs != nil {
		<-ctx.Done()
		return false, ctx.Err()
	}
	return p.mountTable.IsMountPoint(ctx, path)
}

// TestAPromptTableIsAskedByTheOperation itself, which goes on when the answer does not come in time.
func TestAPromptTableIsAskedByTheOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := promptTable{&mountTable{}, new(string)}
		w := newWorld(t, setup{mounting: true, generator: func(o *operationexecutor.GeneratorOptions) { o.Mounts = table }})
		w.attached("data")
		table.set(podPath, false)
		require.ErrorIs(t, w.ended(w.mount("data", "p")).Err(), operationexecutor.ErrContractViolation)
		assert.Contains(t, *table.stack, "operationexecutor.(*execution).execute(")
		w.honest(table.mountTable)
		table.hangs = make(chan struct{})
		w.succeeded(w.mount("data", "p"))
		assert.Empty(t, w.executor.Hung())
	})
}

// TestAPathOutsideOfOurDirectoriesIsNotAskedAbout: a host path is the host's own, and may be a mount of it.
func TestAPathOutsideOfOurDirectoriesIsNotAskedAbout(t *testing.T) {
	table := &mountTable{}
	w := newWorld(t, setup{mounts: table, mounting: true})
	w.plugin.path = "/home/user"
	table.set("/home/user", true)
	w.attached("data")
	w.succeeded(w.mount("data", "p"))
	w.succeeded(w.unmount("data", "p"))
	w.plugin.fail("SetUp", errBroken)
	assert.Equal(t, operationexecutor.Final, w.ended(w.mount("data", "p")).Result().Class)
	assert.Empty(t, table.asked)
}

// TestAPluginThatChangesItsSpecChangesOnlyItsCopy: the change is reported, whichever call makes it. The operation continues, and
// the caller's spec is unchanged.
func TestAPluginThatChangesItsSpecChangesOnlyItsCopy(t *testing.T) {
	w := newWorld(t, setup{attachable: true, stageable: true})
	v := w.toMount("data", "p")
	v.VolumeSpec.PersistentVolume.Labels = map[string]string{"tier": "gold"}
	require.NoError(t, w.actual.MarkVolumeAsAttached(v.VolumeName, v.VolumeSpec, node, ""))
	pristine := v.VolumeSpec.PersistentVolume.DeepCopy()
	w.plugin.spoil = func(spec *volume.Spec) {
		spec.ReadOnly = true
		spec.PersistentVolume.Labels["tier"] = "lead"
		spec.PersistentVolume.Spec.AccessModes = append(spec.PersistentVolume.Spec.AccessModes, v1.ReadWriteMany)
	}
	op := w.ended(w.executor.MountVolume(t.Context(), v, operationexecutor.MountOptions{}, w.actual))
	require.NoError(t, op.Err())
	assert.Equal(t, pristine, v.VolumeSpec.PersistentVolume)
	assert.False(t, v.VolumeSpec.ReadOnly)
	row, _ := w.actual.GetMountedVolume(v.VolumeName, "p")
	assert.Same(t, v.VolumeSpec, row.VolumeSpec)
	last := op.Steps()[len(op.Steps())-1]
	assert.Equal(t, "CheckSpec", last.Name)
	require.ErrorIs(t, last.Err, operationexecutor.ErrContractViolation)
	assert.Equal(t, []string{"Normal SuccessfulMountVolume p", "Warning VolumePluginMisbehaved data"}, w.recorder.all())

	w.plugin.spoil = func(spec *volume.Spec) { _ = spec.PersistentVolume.Spec.Capacity.Storage().String() }
	op = w.ended(w.executor.MountVolume(t.Context(), v, operationexecutor.MountOptions{}, w.actual))
	assert.NotEqual(t, "CheckSpec", op.Steps()[len(op.Steps())-1].Name, "to read a quantity changes nothing")
}
