package operationexecutor_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

var errBroken = errors.New("broken")

// classes are errors of every class, each plain and wrapped.
func classes() map[string]error {
	return map[string]error{
		"final":                  errBroken,
		"final, wrapped":         fmt.Errorf("set up: %w", errBroken),
		"uncertain":              volume.Uncertain(errBroken),
		"uncertain, twice":       fmt.Errorf("a: %w", fmt.Errorf("b: %w", volume.Uncertain(errBroken))),
		"uncertain, joined":      errors.Join(errors.New("clean-up"), volume.Uncertain(errBroken)),
		"uncertain, its own way": fmt.Errorf("set up: %w", fmt.Errorf("mount: %w", unsure{errBroken})),
		"transient":              volume.Transient(errBroken),
		"transient, wrapped":     fmt.Errorf("set up: %w", volume.Transient(errBroken)),
		"a context that ended":   fmt.Errorf("mount: %w: %w", errBroken, context.DeadlineExceeded),
	}
}

// unsure says by its method what it is, as the errors of the mount layer do.
type unsure struct{ error }

func (unsure) Uncertain() bool { return true }
func (u unsure) Unwrap() error { return u.error }

func classOf(err error) operationexecutor.Class {
	switch {
	case errors.Is(err, volume.ErrUncertain), errors.Is(err, context.DeadlineExceeded), errors.As(err, &unsure{}):
		return operationexecutor.Uncertain
	case errors.Is(err, volume.ErrTransient):
		return operationexecutor.Transient
	}
	return operationexecutor.Final
}

// TestWhatAFailureMeans is acceptance lines 2, 3 and 4: the table of Kubernetes, for staging and for set-up, with errors
// wrapped in every way.
func TestWhatAFailureMeans(t *testing.T) {
	const (
		absent, uncertain, present = operationexecutor.VolumeNotMounted, operationexecutor.VolumeMountUncertain, operationexecutor.VolumeMounted
		final, unsure, transient   = operationexecutor.Final, operationexecutor.Uncertain, operationexecutor.Transient
	)
	tests := []struct {
		before        operationexecutor.VolumeMountState
		reconstructed bool
		class         operationexecutor.Class
		after         operationexecutor.VolumeMountState
		result        operationexecutor.Class
	}{
		{absent, false, final, absent, final},
		{absent, false, unsure, uncertain, unsure},
		{absent, false, transient, absent, transient},
		{uncertain, false, final, absent, final},
		{uncertain, false, unsure, uncertain, unsure},
		{uncertain, false, transient, uncertain, transient},
		{uncertain, true, final, uncertain, unsure},
		{uncertain, true, unsure, uncertain, unsure},
		{uncertain, true, transient, uncertain, transient},
		{present, false, final, present, final},
		{present, false, unsure, present, unsure},
		{present, false, transient, present, transient},
	}
	for name, cause := range classes() {
		for _, test := range tests {
			if test.class != classOf(cause) {
				continue
			}
			t.Run(fmt.Sprintf("set-up/%s/%v/found %v", name, test.before, test.reconstructed), func(t *testing.T) {
				w := stagedWorld(t)
				require.NoError(t, w.actual.MarkDeviceAsMounted(volumeName("data"), "", "/staged", ""))
				w.believe(test.before, test.reconstructed)
				w.plugin.fail("SetUp", cause)
				op := w.ended(w.remount("data", "p"))
				require.ErrorIs(t, op.Err(), errBroken)
				assert.Equal(t, test.result, op.Result().Class)
				assert.Equal(t, test.after, w.pod("data", "p"))
				assert.Equal(t, test.reconstructed, w.actual.IsVolumeReconstructed(volumeName("data"), "p"))
				assert.Equal(t, 1, w.count("conclude set-up "+ends[test.after]))
				assert.Equal(t, operationexecutor.DeviceGloballyMounted, w.device("data"))
			})
			if test.before == present {
				continue // What is staged is not staged again.
			}
			t.Run(fmt.Sprintf("staging/%s/%v/found %v", name, test.before, test.reconstructed), func(t *testing.T) {
				w := newWorld(t, setup{attachable: true, stageable: true})
				w.believeDevice(test.before, test.reconstructed)
				w.plugin.fail("MountDevice", cause)
				op := w.ended(w.mount("data", "p"))
				require.ErrorIs(t, op.Err(), errBroken)
				assert.Equal(t, test.result, op.Result().Class)
				assert.EqualValues(t, test.after, w.device("data"))
				assert.Equal(t, test.reconstructed, w.actual.IsVolumeReconstructed(volumeName("data"), ""))
				assert.Equal(t, 1, w.count("conclude staging "+ends[test.after]))
				assert.Equal(t, operationexecutor.VolumeNotMounted, w.pod("data", "p"))
				assert.Zero(t, w.count("SetUp"))
			})
		}
	}
}

var ends = map[operationexecutor.VolumeMountState]string{
	operationexecutor.VolumeNotMounted:     "forgotten",
	operationexecutor.VolumeMountUncertain: "uncertain",
	operationexecutor.VolumeMounted:        "done",
}

func (w *world) believe(state operationexecutor.VolumeMountState, reconstructed bool) {
	mounted := operationexecutor.MountedVolume{VolumeName: volumeName("data"), PodName: "p", PodUID: "p", VolumeSpec: spec("data")}
	switch {
	case reconstructed:
		_, err := w.actual.AddReconstructedPod(mounted)
		require.NoError(w.t, err)
	case state == operationexecutor.VolumeMounted:
		require.NoError(w.t, w.actual.MarkVolumeAsMounted(mounted))
	case state == operationexecutor.VolumeMountUncertain:
		require.NoError(w.t, w.actual.MarkVolumeMountAsUncertain(mounted))
	}
}

func (w *world) believeDevice(state operationexecutor.VolumeMountState, reconstructed bool) {
	if reconstructed {
		require.NoError(w.t, w.actual.AddReconstructedVolume(operationexecutor.AttachedVolume{
			VolumeName: volumeName("data"), VolumeSpec: spec("data"),
			PluginIsAttachable: true, PluginIsDeviceMountable: true, DeviceMountPath: "/staged",
		}))
		return
	}
	w.attached("data")
	if state == operationexecutor.VolumeMountUncertain {
		require.NoError(w.t, w.actual.MarkDeviceAsUncertain(volumeName("data"), "", "/staged", ""))
	}
}

// TestUncertainIsMadeAgainBeforeUseAndUndoneBeforeItIsForgotten is acceptance line 3.
func TestUncertainIsMadeAgainBeforeUseAndUndoneBeforeItIsForgotten(t *testing.T) {
	w := stagedWorld(t)
	w.plugin.fail("MountDevice", volume.Uncertain(errBroken))
	_ = w.failed(w.mount("data", "p"))
	w.plugin.fail("MountDevice", nil)
	w.plugin.fail("SetUp", volume.Uncertain(errBroken))
	_ = w.failed(w.mount("data", "p"))
	assert.Equal(t, 2, w.count("MountDevice"), "an uncertain staging is staged again")
	require.ErrorIs(t, w.failed(w.unmountDevice("data")), volume.ErrInUse, "a pod that may have it must be torn down first")
	assert.Zero(t, w.count("UnmountDevice"))
	w.succeeded(w.unmount("data", "p"))
	w.succeeded(w.unmountDevice("data"))
	assert.Equal(t, 1, w.count("TearDown"))
	assert.Equal(t, 1, w.count("UnmountDevice"))
}

// TestTeardownFailureOfAnyKindMakesTheNextUserSetUpAgain is acceptance line 5.
func TestTeardownFailureOfAnyKindMakesTheNextUserSetUpAgain(t *testing.T) {
	for name, cause := range classes() {
		t.Run(name, func(t *testing.T) {
			w := stagedWorld(t)
			w.succeeded(w.mount("data", "p"))
			w.plugin.fail("TearDown", cause)
			op := w.ended(w.unmount("data", "p"))
			require.ErrorIs(t, op.Err(), errBroken)
			assert.Equal(t, operationexecutor.Uncertain, op.Result().Class)
			assert.Equal(t, operationexecutor.VolumeMountUncertain, w.pod("data", "p"))
			w.plugin.fail("TearDown", nil)
			w.succeeded(w.unmount("data", "p"))

			w.plugin.fail("UnmountDevice", cause)
			op = w.ended(w.unmountDevice("data"))
			require.ErrorIs(t, op.Err(), errBroken)
			assert.Equal(t, operationexecutor.Uncertain, op.Result().Class)
			assert.Equal(t, operationexecutor.DeviceMountUncertain, w.device("data"))
			w.succeeded(w.mount("data", "p"))
			assert.Equal(t, 2, w.count("MountDevice"))
			assert.Equal(t, []string{
				"Normal SuccessfulMountVolume p", "Warning FailedUnmount p", "Normal SuccessfulUnmountVolume p",
				"Warning FailedUnmountDevice data", "Normal SuccessfulMountVolume p",
			}, w.recorder.all())
		})
	}
}

// TestEveryErrorOfAttachAndDetachIsUncertain holds for the call only: what fails before it marks nothing.
func TestEveryErrorOfAttachAndDetachIsUncertain(t *testing.T) {
	for name, cause := range classes() {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, setup{attachable: true, stageable: true})
			w.plugin.fail("Attach", cause)
			op := w.ended(w.attach("data"))
			require.ErrorIs(t, op.Err(), errBroken)
			assert.Equal(t, operationexecutor.Uncertain, op.Result().Class)
			v, _ := w.actual.GetAttachedVolume(volumeName("data"))
			assert.Equal(t, cache.AttachUncertain, v.AttachState)

			w.attached("data")
			w.plugin.fail("Detach", cause)
			op = w.ended(w.detach("data"))
			require.ErrorIs(t, op.Err(), errBroken)
			assert.Equal(t, operationexecutor.Uncertain, op.Result().Class)
			v, _ = w.actual.GetAttachedVolume(volumeName("data"))
			assert.Equal(t, cache.AttachUncertain, v.AttachState)
			assert.Equal(t, 2, w.count("conclude attachment uncertain"))
			assert.Equal(t, []string{
				"Warning FailedAttachVolume p", "Warning FailedAttachVolume q", "Warning FailedDetachVolume data",
			}, w.recorder.all())
		})
	}
}

func TestAFailureBeforeAttachMarksNothing(t *testing.T) {
	w := newWorld(t, setup{})
	err := w.failed(w.attach("data"))
	require.ErrorIs(t, err, volume.ErrUnsupported)
	assert.Empty(t, w.actual.GetAttachedVolumes())
	assert.Empty(t, w.all())
}

// reports keeps what is said of the report that a volume is attached.
type reports struct {
	*cache.ActualStateOfWorld
	added int
}

func (r *reports) AddVolumeToReportAsAttached(v1.UniqueVolumeName, types.NodeName) { r.added++ }

// TestAFailedSafetyCheckMarksNothing is where Kubernetes marks the attachment uncertain although nothing was called.
func TestAFailedSafetyCheckMarksNothing(t *testing.T) {
	for name, change := range map[string]func(n *nodeReader){
		"the node uses the volume":    func(n *nodeReader) { n.inUse = append(n.inUse, volumeName("data")) },
		"the node could not be asked": func(n *nodeReader) { n.err = errBroken },
	} {
		t.Run(name, func(t *testing.T) {
			w := stagedWorld(t)
			change(w.nodes)
			state := &reports{ActualStateOfWorld: w.actual}
			err := w.failed(w.executor.DetachVolume(t.Context(), w.attachedVolume("data"),
				operationexecutor.DetachOptions{VerifySafeToDetach: true}, state))
			require.NotErrorIs(t, err, volume.ErrUncertain)
			v, _ := w.actual.GetAttachedVolume(volumeName("data"))
			assert.Equal(t, cache.Attached, v.AttachState)
			assert.Equal(t, 1, state.added, "it is attached for certain and reported so again")
			assert.Empty(t, w.all())
		})
	}
}

// TestAVolumeThatTheStateKnowsToBeUsedIsNotDetached, whether or not the node is to be asked as well.
func TestAVolumeThatTheStateKnowsToBeUsedIsNotDetached(t *testing.T) {
	w := stagedWorld(t)
	w.succeeded(w.mount("data", "p"))
	detach := func() (*operationexecutor.Operation, error) {
		return w.executor.DetachVolume(t.Context(), w.attachedVolume("data"), operationexecutor.DetachOptions{}, w.actual)
	}
	err := w.failed(detach())
	require.ErrorIs(t, err, volume.ErrInUse)
	require.NotErrorIs(t, err, volume.ErrUncertain)
	w.succeeded(w.unmount("data", "p"))
	require.ErrorIs(t, w.failed(detach()), volume.ErrInUse, "it is staged")
	assert.Zero(t, w.count("Detach"))
	v, _ := w.actual.GetAttachedVolume(volumeName("data"))
	assert.Equal(t, cache.Attached, v.AttachState)
	w.succeeded(w.unmountDevice("data"))
	w.succeeded(detach())
}

func TestADetachIsNotVerifiedUnlessAsked(t *testing.T) {
	w := stagedWorld(t)
	w.nodes.err = errBroken
	w.succeeded(w.executor.DetachVolume(t.Context(), w.attachedVolume("data"), operationexecutor.DetachOptions{}, w.actual))
	assert.Equal(t, 1, w.count("Detach"))
}

func TestAVolumeOfWhichOnlyTheNameIsKnownIsDetached(t *testing.T) {
	w := newWorld(t, setup{attachable: true, stageable: true})
	v := operationexecutor.AttachedVolume{VolumeName: volumeName("data"), NodeName: node}
	w.succeeded(w.executor.DetachVolume(t.Context(), v, operationexecutor.DetachOptions{}, w.actual))
	assert.Equal(t, 1, w.count("Detach"))
	require.ErrorIs(t, w.failed(w.executor.DetachVolume(t.Context(),
		operationexecutor.AttachedVolume{VolumeName: "nonsense", NodeName: node}, operationexecutor.DetachOptions{}, w.actual)), volume.ErrInvalid)
}

// TestDeviceIsUnstagedOnlyWithoutUsers is acceptance line 6: users are asked for again when the operation has its key.
func TestDeviceIsUnstagedOnlyWithoutUsers(t *testing.T) {
	tests := []struct {
		name   string
		change func(w *world)
		after  operationexecutor.DeviceMountState
		called int
	}{
		{"a pod has it", func(w *world) { w.succeeded(w.mount("data", "q")) }, operationexecutor.DeviceGloballyMounted, 0},
		{"another mount of it", func(w *world) { w.plugin.refs = []string{"/mnt/elsewhere"} }, operationexecutor.DeviceGloballyMounted, 0},
		{"the device is still open", func(w *world) { w.devices.opened = true }, operationexecutor.DeviceMountUncertain, 1},
		{"whether it is open is not known", func(w *world) { w.devices.err = errBroken }, operationexecutor.DeviceMountUncertain, 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := stagedWorld(t)
			w.succeeded(w.mount("data", "p"))
			w.succeeded(w.unmount("data", "p"))
			test.change(w)
			_ = w.failed(w.unmountDevice("data"))
			assert.Equal(t, test.after, w.device("data"))
			assert.Equal(t, test.called, w.count("UnmountDevice"))
		})
	}
}

func TestTheStagingItselfSeenThroughAnotherRootIsNoUser(t *testing.T) {
	w := stagedWorld(t)
	w.succeeded(w.mount("data", "p"))
	w.succeeded(w.unmount("data", "p"))
	w.plugin.refs = []string{"/rootfs/var/lib/agent/plugins/" + pluginName + "/mounts/data"}
	w.succeeded(w.unmountDevice("data"))
}

// TestAVolumeThatTheStateDoesNotTakeIsUncertain: the effect is there, so the error must not say that it is not.
func TestAVolumeThatTheStateDoesNotTakeIsUncertain(t *testing.T) {
	w := newWorld(t, setup{})
	err := w.failed(w.mount("unknown", "p"))
	require.ErrorIs(t, err, cache.ErrNotAttached)
	require.ErrorIs(t, err, volume.ErrUncertain)
	assert.Equal(t, 1, w.count("conclude set-up uncertain"))
}
