package operationexecutor_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// TestIntentPrecedesEveryCallThatChangesTheWorld is the whole life of a volume, in the order of calls and records.
func TestIntentPrecedesEveryCallThatChangesTheWorld(t *testing.T) {
	w := newWorld(t, setup{attachable: true, stageable: true})
	w.succeeded(w.attach("data"))
	w.succeeded(w.mount("data", "p"))
	w.succeeded(w.mount("data", "q"))
	assert.Equal(t, []string{
		"intend attachment", "Attach", "conclude attachment done",
		"CanMount", "intend staging", "WaitForAttach", "MountDevice", "conclude staging done",
		"intend set-up", "SetUp", "conclude set-up done",
		"CanMount", "WaitForAttach", "intend set-up", "SetUp", "conclude set-up done",
	}, w.all())
	assert.Equal(t, operationexecutor.VolumeMounted, w.pod("data", "p"))
	assert.Equal(t, operationexecutor.DeviceGloballyMounted, w.device("data"))

	w.clear()
	w.succeeded(w.unmount("data", "p"))
	w.succeeded(w.unmount("data", "q"))
	w.succeeded(w.unmountDevice("data"))
	w.succeeded(w.detach("data"))
	assert.Equal(t, []string{
		"intend set-up", "TearDown", "conclude set-up forgotten",
		"intend set-up", "TearDown", "conclude set-up forgotten",
		"intend staging", "UnmountDevice", "conclude staging forgotten",
		"intend attachment", "Detach", "conclude attachment forgotten",
	}, w.all())
	assert.Empty(t, w.actual.GetAttachedVolumes())
	assert.Empty(t, w.journal.records, "no record may stay when no trace is left")
	assert.Equal(t, []string{
		"Normal SuccessfulAttachVolume p", "Normal SuccessfulAttachVolume q",
		"Normal SuccessfulMountVolume p", "Normal SuccessfulMountVolume q",
		"Normal SuccessfulUnmountVolume p", "Normal SuccessfulUnmountVolume q",
		"Normal SuccessfulUnmountDevice data", "Normal SuccessfulDetachVolume data",
	}, w.recorder.all())
}

// TestDevicePathIsOnRecordBeforeItIsStaged holds when only the wait tells the path.
func TestDevicePathIsOnRecordBeforeItIsStaged(t *testing.T) {
	w := stagedWorld(t)
	w.succeeded(w.mount("data", "p"))
	assert.Equal(t, []string{"CanMount", "intend staging", "WaitForAttach", "intend staging", "MountDevice"}, w.all()[:5])
	v, _ := w.actual.GetAttachedVolume(volumeName("data"))
	assert.Equal(t, "/dev/data", v.DevicePath)
}

func TestNothingIsCalledWhenTheIntentCannotBeRecorded(t *testing.T) {
	w := stagedWorld(t)
	w.succeeded(w.mount("data", "p"))
	full := errors.New("no space")
	for name, start := range map[string]func() (*operationexecutor.Operation, error){
		"attach":         func() (*operationexecutor.Operation, error) { return w.attach("data") },
		"detach":         func() (*operationexecutor.Operation, error) { w.attached("other"); return w.detach("other") },
		"unmount":        func() (*operationexecutor.Operation, error) { return w.unmount("data", "p") },
		"unmount device": func() (*operationexecutor.Operation, error) { w.attached("other"); return w.unmountDevice("other") },
		"mount":          func() (*operationexecutor.Operation, error) { w.attached("other"); return w.mount("other", "q") },
		"set up":         func() (*operationexecutor.Operation, error) { return w.mount("data", "q") },
	} {
		t.Run(name, func(t *testing.T) {
			w.clear()
			w.journal.err = full
			defer func() { w.journal.err = nil }()
			op := w.ended(start())
			require.ErrorIs(t, op.Err(), full)
			assert.Equal(t, operationexecutor.Transient, op.Result().Class)
			for _, call := range w.all() {
				assert.Contains(t, []string{"CanMount", "WaitForAttach"}, call)
			}
		})
	}
	assert.Equal(t, operationexecutor.VolumeMounted, w.pod("data", "p"))
	assert.Equal(t, operationexecutor.DeviceGloballyMounted, w.device("data"))
}

func TestStepsAndInfoTellWhatWasDone(t *testing.T) {
	w := stagedWorld(t)
	op := w.ended(w.mount("data", "p"))
	var names []string
	for _, s := range op.Steps() {
		assert.False(t, s.Started.IsZero())
		names = append(names, s.Name)
	}
	assert.Subset(t, names, []string{"FindPlugin", "NewMounter", "CanMount", "Intend", "WaitForAttach", "MountDevice", "SetUp", "Conclude"})
	info := op.Info()
	assert.Equal(t, operationexecutor.OpMount, info.Kind)
	assert.Equal(t, pluginName, info.PluginName)
	assert.False(t, info.Started.IsZero())
}

// TestChecksComeBeforeSideEffects is acceptance line 18 as far as it concerns these operations.
func TestChecksComeBeforeSideEffects(t *testing.T) {
	tests := []struct {
		name   string
		change func(w *world, v *operationexecutor.VolumeToMount)
		want   error
	}{
		{"mount options that the plugin does not honour", func(_ *world, v *operationexecutor.VolumeToMount) {
			v.VolumeSpec.PersistentVolume.Spec.MountOptions = []string{"noatime"}
		}, volume.ErrUnsupported},
		{"a block volume", func(_ *world, v *operationexecutor.VolumeToMount) {
			mode := v1.PersistentVolumeBlock
			v.VolumeSpec.PersistentVolume.Spec.VolumeMode = &mode
		}, volume.ErrUnsupported},
		{"a second pod of a volume for one pod", func(w *world, v *operationexecutor.VolumeToMount) {
			require.NoError(t, w.actual.MarkVolumeMountAsUncertain(operationexecutor.MountedVolume{
				VolumeName: v.VolumeName, PodName: "other", VolumeSpec: v.VolumeSpec,
			}))
			v.VolumeSpec.PersistentVolume.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
		}, volume.ErrInUse},
		{"a helper that is missing", func(w *world, _ *operationexecutor.VolumeToMount) {
			w.plugin.fail("CanMount", errBroken)
		}, errBroken},
		{"a mounter that cannot be made", func(w *world, _ *operationexecutor.VolumeToMount) {
			w.plugin.fail("NewMounter", errBroken)
		}, errBroken},
		{"a mounter that is nil", func(w *world, _ *operationexecutor.VolumeToMount) {
			w.plugin.fail("NewMounter", nil)
		}, volume.ErrInvalid},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := stagedWorld(t)
			v := w.toMount("data", "p")
			test.change(w, &v)
			err := w.failed(w.executor.MountVolume(t.Context(), v, operationexecutor.MountOptions{}, w.actual))
			require.ErrorIs(t, err, test.want)
			require.NotErrorIs(t, err, volume.ErrUncertain)
			assert.Subset(t, []string{"CanMount"}, w.all(), "nothing may be recorded or called")
			assert.Equal(t, operationexecutor.DeviceNotMounted, w.device("data"))
			assert.Equal(t, operationexecutor.VolumeNotMounted, w.pod("data", "p"))
			reason := map[bool]string{true: "FailedMapVolume", false: "FailedMount"}[test.name == "a block volume"]
			assert.Equal(t, []string{"Warning " + reason + " p"}, w.recorder.all())
		})
	}
}

func TestThePodOfAReadWriteOncePodVolumeGetsItAgain(t *testing.T) {
	w := stagedWorld(t)
	v := w.toMount("data", "p")
	v.VolumeSpec.PersistentVolume.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
	for range 2 {
		w.succeeded(w.executor.MountVolume(t.Context(), v, operationexecutor.MountOptions{}, w.actual))
	}
}

func TestMounterIsToldOfThePod(t *testing.T) {
	w := newWorld(t, setup{})
	w.attached("data")
	user, group, policy := int64(1000), int64(2000), v1.FSGroupChangeOnRootMismatch
	v := w.toMount("data", "p")
	v.Pod.Spec = v1.PodSpec{
		SecurityContext: &v1.PodSecurityContext{RunAsUser: &user, FSGroup: &group, FSGroupChangePolicy: &policy},
		Containers:      []v1.Container{{Name: "a"}, {Name: "b", SecurityContext: &v1.SecurityContext{RunAsUser: &user}}},
	}
	w.succeeded(w.executor.MountVolume(t.Context(), v, operationexecutor.MountOptions{IsRemount: true}, w.actual))
	row, _ := w.actual.GetMountedVolume(v.VolumeName, v.PodName)
	first := row.Mounter.(*mounter).args
	assert.Equal(t, volume.MounterArgs{PodUID: "p", FsUser: &user, FsGroup: &group, FSGroupChangePolicy: &policy}, first,
		"what is not mounted is not remounted")

	root := int64(0)
	v.Pod.Spec.Containers[0].SecurityContext = &v1.SecurityContext{RunAsUser: &root}
	w.succeeded(w.executor.MountVolume(t.Context(), v, operationexecutor.MountOptions{IsRemount: true}, w.actual))
	row, _ = w.actual.GetMountedVolume(v.VolumeName, v.PodName)
	again := row.Mounter.(*mounter).args
	assert.Nil(t, again.FsUser, "containers differ")
	assert.True(t, again.IsRemount)
}
