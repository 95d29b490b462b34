package volumemanager

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/mount/safepath"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/containers"
)

// targets returns where the mounts are to be, in their order.
func (v ContainerVolumes) targets() []string {
	var all []string
	for _, m := range v.Mounts {
		all = append(all, m.Target)
	}
	return all
}

func TestEveryKindOfContainerGetsItsMountsInOrder(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.claim("data")
		w.claim("shared")
		m := w.start()
		pod := podOf("web", "data", "shared:ro", "-scratch")
		pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{
			{Name: "scratch", MountPath: "/srv/www/cache/"},
			{Name: "data", MountPath: "/srv/www"},
			{Name: "shared", MountPath: "/srv"},
			{Name: "data", MountPath: "/backup", ReadOnly: true, MountPropagation: ptr(v1.MountPropagationHostToContainer)},
		}
		pod.Spec.InitContainers = []v1.Container{{Name: "init", VolumeMounts: []v1.VolumeMount{{Name: "data", MountPath: "/d"}}}}
		pod.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{
			Name: "debug", VolumeMounts: []v1.VolumeMount{{Name: "scratch", MountPath: "/s"}},
		}}}
		w.add(pod)
		paths := m.GetMountedVolumesForPod(volume.GetUniquePodName(pod))

		got, err := m.ContainerMounts(t.Context(), pod, "main")
		require.NoError(t, err)
		assert.Equal(t, []ContainerMount{
			{Name: "shared", Source: paths["shared"].Path, Target: "/srv", ReadOnly: true, Propagation: v1.MountPropagationNone},
			{Name: "data", Source: paths["data"].Path, Target: "/backup", ReadOnly: true, Propagation: v1.MountPropagationHostToContainer},
			{Name: "data", Source: paths["data"].Path, Target: "/srv/www", Propagation: v1.MountPropagationNone},
			{Name: "scratch", Source: paths["scratch"].Path, Target: "/srv/www/cache", Propagation: v1.MountPropagationNone},
		}, withoutLabels(got.Mounts))
		assert.Empty(t, got.Devices)
		for name, target := range map[string]string{"init": "/d", "debug": "/s"} {
			got, err := m.ContainerMounts(t.Context(), pod, name)
			require.NoError(t, err)
			assert.Equal(t, []string{target}, got.targets())
		}
		_, err = m.ContainerMounts(t.Context(), pod, "unknown")
		require.ErrorIs(t, err, ErrUnknownContainer)
		require.ErrorIs(t, err, volume.ErrInvalid)
		w.remove(pod)
		_, err = m.ContainerMounts(t.Context(), pod, "main")
		require.ErrorIs(t, err, volume.ErrInvalid)
	})
}

// withoutLabels returns the mounts as if there were no SELinux, which other tests are about.
func withoutLabels(mounts []ContainerMount) []ContainerMount {
	for i := range mounts {
		mounts[i].Relabel = false
	}
	return mounts
}

func TestAContainerWhoseVolumesAreNotReadyGetsNoMounts(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.claim("data")
		m := w.start()
		pod := podOf("web", "data", "missing")
		pod.Spec.InitContainers = []v1.Container{{Name: "init", VolumeMounts: pod.Spec.Containers[0].VolumeMounts[:1]}}
		require.NoError(t, m.AddPod(t.Context(), pod))
		pass(0)
		_, err := m.ContainerMounts(t.Context(), pod, "main")
		var not *volume.NotReadyError
		require.ErrorAs(t, err, &not)
		require.Len(t, not.Volumes, 1)
		assert.Equal(t, "missing", not.Volumes[0].OuterName)
		require.ErrorIs(t, err, ErrClaimNotReady)

		got, err := m.ContainerMounts(t.Context(), pod, "init")
		require.NoError(t, err, "it uses another volume only")
		assert.Equal(t, []string{"/data"}, got.targets())
	})
}

// TestAVolumeThatIsBeingTakenAwayIsGivenToNoContainer, also when its pod has come back meanwhile.
func TestAVolumeThatIsBeingTakenAwayIsGivenToNoContainer(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		w.claim("data")
		m := w.start()
		pod := podOf("web", "data")
		w.add(pod)
		release := make(chan struct{})
		w.plugin.Inject(fake.MethodTearDown, fake.HangUntil(release))
		require.NoError(t, m.RemovePod(pod.UID))
		pass(0)
		require.NoError(t, m.AddPod(t.Context(), pod))
		_, err := m.ContainerMounts(t.Context(), pod, "main")
		var not *volume.NotReadyError
		require.ErrorAs(t, err, &not)
		assert.Equal(t, string(PhaseUnmounting), not.Volumes[0].Phase)
		close(release)
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
		_, err = m.ContainerMounts(t.Context(), pod, "main")
		require.NoError(t, err)
	})
}

func TestRecursivelyReadOnlyIsAPromiseThatTheNodeMustBeAbleToKeep(t *testing.T) {
	for _, able := range []bool{true, false} {
		inBubble(t, func(t *testing.T) {
			w := newWorld(t, Options{RecursiveReadOnly: able})
			w.claim("data")
			m := w.start()
			pod := podOf("web", "data")
			mounts := pod.Spec.Containers[0].VolumeMounts
			mounts[0].ReadOnly, mounts[0].RecursiveReadOnly = true, ptr(v1.RecursiveReadOnlyIfPossible)
			w.add(pod)
			got, err := m.ContainerMounts(t.Context(), pod, "main")
			require.NoError(t, err)
			assert.Equal(t, able, got.Mounts[0].RecursiveReadOnly)
			assert.True(t, got.Mounts[0].ReadOnly)

			pod = pod.DeepCopy()
			pod.Spec.Containers[0].VolumeMounts[0].RecursiveReadOnly = ptr(v1.RecursiveReadOnlyEnabled)
			require.NoError(t, m.UpdatePod(t.Context(), pod))
			require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
			got, err = m.ContainerMounts(t.Context(), pod, "main")
			if able {
				require.NoError(t, err)
				assert.True(t, got.Mounts[0].RecursiveReadOnly)
				return
			}
			require.ErrorIs(t, err, volume.ErrUnsupported)
		})
	}
}

// attributed is a mounter of which only the attributes count.
type attributed struct {
	volume.Mounter
	attributes volume.Attributes
}

func (a attributed) GetAttributes() volume.Attributes { return a.attributes }

func TestOnlyContentOfTheNodeThatHasNoLabelIsRelabelled(t *testing.T) {
	row := func(a volume.Attributes, label string) cache.MountedVolume {
		return cache.MountedVolume{MountedVolume: operationexecutor.MountedVolume{Mounter: attributed{attributes: a}, SELinuxMountContext: label}}
	}
	assert.True(t, mayRelabel(row(volume.Attributes{Managed: true, SupportsSELinux: true}, "")))
	assert.False(t, mayRelabel(row(volume.Attributes{Managed: true, SupportsSELinux: true}, "system_u:object_r:container_file_t:s0")))
	assert.False(t, mayRelabel(row(volume.Attributes{Managed: true, SupportsSELinux: true, ReadOnly: true}, "")))
	assert.False(t, mayRelabel(row(volume.Attributes{SupportsSELinux: true}, "")))
	assert.False(t, mayRelabel(row(volume.Attributes{Managed: true}, "")))
	assert.False(t, mayRelabel(cache.MountedVolume{}))
}

func TestASourceIsRelabelledOnce(t *testing.T) {
	v := ContainerVolumes{Mounts: []ContainerMount{
		{Source: "/b", Target: "/x/y", Relabel: true}, {Source: "/a", Target: "/a", Relabel: true}, {Source: "/a", Target: "/b", Relabel: true}, {Source: "/c", Target: "/c"},
	}}
	v.order()
	assert.Equal(t, []ContainerMount{
		{Source: "/a", Target: "/a", Relabel: true}, {Source: "/a", Target: "/b"}, {Source: "/c", Target: "/c"}, {Source: "/b", Target: "/x/y", Relabel: true},
	}, v.Mounts)
}

func TestAVolumeOfTheOtherModeIsRefused(t *testing.T) {
	modes := func(mode v1.PersistentVolumeMode) map[string]cache.MountedVolume {
		spec := volume.NewSpecFromPersistentVolume(&v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{VolumeMode: &mode}}, false)
		return map[string]cache.MountedVolume{"data": {MountedVolume: operationexecutor.MountedVolume{VolumeSpec: spec}}}
	}
	ask := &containerRequest{
		container: &v1.Container{VolumeMounts: []v1.VolumeMount{{Name: "data"}}},
		rows:      modes(v1.PersistentVolumeBlock),
	}
	err := ask.checkModes()
	require.ErrorIs(t, err, ErrVolumeMode)
	require.ErrorIs(t, err, volume.ErrInvalid)
	ask.container = &v1.Container{VolumeDevices: []v1.VolumeDevice{{Name: "data"}}}
	require.NoError(t, ask.checkModes())
	ask.rows = modes(v1.PersistentVolumeFilesystem)
	require.ErrorIs(t, ask.checkModes(), ErrVolumeMode)
}

func TestAMalformedReleaseIsRefused(t *testing.T) {
	m := newWorld(t, Options{}).prepare()
	for _, bad := range []string{"", "..", "a/b"} {
		require.ErrorIs(t, m.ReleaseContainer(t.Context(), "uid", bad), volume.ErrInvalid)
	}
	require.ErrorIs(t, m.ReleaseContainer(t.Context(), "", "main"), volume.ErrInvalid)
	require.NoError(t, m.ReleaseContainer(t.Context(), "unknown", "main"), "the pod has no sub-paths")
}

// holdSubpaths locks the sub-paths of a volume until release is called.
func holdSubpaths(t *testing.T, m *Manager, uid types.UID, inner string) (release func()) {
	t.Helper()
	held, released := make(chan struct{}), make(chan struct{})
	go func() {
		owner := safepath.Owner{VolumeName: containers.SubpathName(testPluginName, inner)}
		_, err := m.subpaths.Prepare(context.WithoutCancel(t.Context()), uid, safepath.Subpath{Owner: owner}, func() error {
			close(held)
			<-released
			return containers.ErrTakenAway
		})
		assert.ErrorIs(t, err, containers.ErrTakenAway)
	}()
	<-held
	return func() { close(released) }
}

// TestWhoWaitsForItsTurnLooksAgain: the volume was there when ContainerMounts began, and is being taken away when it comes
// to bind a part of it.
func TestWhoWaitsForItsTurnLooksAgain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		m := w.start()
		m.PodsComplete()
		pod := podOf("web", "-scratch")
		pod.Spec.Containers[0].VolumeMounts[0].SubPath = "part"
		w.add(pod)
		release := holdSubpaths(t, m, pod.UID, "scratch")
		ended := make(chan error, 1)
		go func() {
			_, err := m.ContainerMounts(t.Context(), pod, "main")
			ended <- err
		}()
		pass(0)
		require.NoError(t, m.RemovePod(pod.UID))
		pass(0)
		assert.Equal(t, PhaseUnmounting, m.PodStatus(pod.UID)[0].Phase, "the teardown waits for the same turn")
		release()
		err := <-ended
		var not *volume.NotReadyError
		require.ErrorAs(t, err, &not)
		require.ErrorIs(t, err, containers.ErrTakenAway)
		require.NoError(t, m.WaitForUnmount(t.Context(), pod))
	})
}
