package volumemanager

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// testNamespaces are UserNamespaces that remember for which pods they were asked.
type testNamespaces struct {
	mappings mount.IDMappings
	err      error
	asked    []types.UID
}

func newTestNamespaces() *testNamespaces {
	return &testNamespaces{mappings: mount.IDMappings{
		UIDs: []mount.IDMapping{{HostID: 100000, Size: 65536}}, GIDs: []mount.IDMapping{{HostID: 200000, Size: 65536}},
	}}
}

func (n *testNamespaces) IDMappings(_ context.Context, pod *v1.Pod) (mount.IDMappings, error) {
	n.asked = append(n.asked, pod.UID)
	return n.mappings, n.err
}

func TestAPodWithAUserNamespaceHasItsRangesInEachMount(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		namespaces := newTestNamespaces()
		w := newWorld(t, Options{UserNamespaces: namespaces})
		w.claim("data")
		m := w.start()
		own, plain, explicit := podOf("own", "data", "-scratch"), podOf("plain", "data"), podOf("explicit", "data")
		own.Spec.HostUsers, explicit.Spec.HostUsers = ptr(false), ptr(true)
		for _, pod := range []*v1.Pod{own, plain, explicit} {
			w.add(pod)
		}
		w.mounter.ForgetCalls()
		for _, pod := range []*v1.Pod{plain, explicit} {
			got, err := m.ContainerMounts(t.Context(), pod, "main")
			require.NoError(t, err)
			assert.True(t, got.Mounts[0].IDMappings.IsZero())
		}
		assert.Empty(t, namespaces.asked, "a pod without a user namespace")
		assert.Empty(t, checkedSources(w))

		own.Spec.HostUsers = nil // what counts is what AddPod got
		got, err := m.ContainerMounts(t.Context(), own, "main")
		require.NoError(t, err)
		require.Len(t, got.Mounts, 2)
		var sources []string
		for _, made := range got.Mounts {
			assert.Equal(t, namespaces.mappings, made.IDMappings)
			sources = append(sources, made.Source)
		}
		assert.Equal(t, []types.UID{own.UID}, namespaces.asked, "once for a container")
		assert.ElementsMatch(t, sources, checkedSources(w), "each was tried")
	})
}

// checkedSources returns what the mounter was asked to try.
func checkedSources(w *world) []string {
	var sources []string
	for _, call := range w.mounter.Calls() {
		if call.Method == fake.MethodCheckIDMappings {
			sources = append(sources, call.Path)
		}
	}
	return sources
}

func TestAVolumeWhoseOwnersCannotBeMappedIsNamed(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		namespaces := newTestNamespaces()
		w := newWorld(t, Options{UserNamespaces: namespaces})
		w.claim("data")
		m := w.start()
		pod := podOf("web", "-scratch", "data")
		pod.Spec.HostUsers = ptr(false)
		w.add(pod)
		path := m.GetMountedVolumesForPod(volume.GetUniquePodName(pod))["data"].Path
		beneath := path + "/beneath"
		require.NoError(t, w.mounter.Mount(t.Context(), mount.Request{Source: "server:/export", Target: beneath, FSType: "nfs"}))
		_, err := m.ContainerMounts(t.Context(), pod, "main")
		var refused *IDMappingError
		require.ErrorAs(t, err, &refused)
		assert.Equal(t, "data", refused.Name)
		assert.Equal(t, path, refused.Source)
		require.ErrorIs(t, err, volume.ErrUnsupported)
		require.ErrorIs(t, err, mount.ErrUnsupported)
		require.NoError(t, w.mounter.Unmount(t.Context(), beneath, mount.UnmountOptions{}))
		_, err = m.ContainerMounts(t.Context(), pod, "main")
		require.NoError(t, err)

		namespaces.mappings.GIDs = nil
		_, err = m.ContainerMounts(t.Context(), pod, "main")
		require.ErrorIs(t, err, volume.ErrInvalid)
		namespaces.err = errors.New("no range is free")
		_, err = m.ContainerMounts(t.Context(), pod, "main")
		require.ErrorIs(t, err, namespaces.err)
		require.NotErrorAs(t, err, &refused, "it is not about a volume")
	})
}

func TestADeviceIsRefusedInAUserNamespace(t *testing.T) {
	namespaces := newTestNamespaces()
	ask := &containerRequest{mappings: namespaces.mappings}
	err := ask.checkDevice(ContainerDevice{Name: "disk", Source: "/s"})
	var refused *IDMappingError
	require.ErrorAs(t, err, &refused)
	assert.Equal(t, "disk", refused.Name)
	require.ErrorIs(t, err, volume.ErrUnsupported)
	require.NoError(t, (&containerRequest{}).checkDevice(ContainerDevice{}))
}
