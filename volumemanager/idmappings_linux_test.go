package volumemanager

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/volume"
)

// The ranges are those with which the volume and its sub-path can be mounted.
func TestTheOwnersInARealVolumeAreMapped(t *testing.T) {
	mounttest.RequireRoot(t)
	n := newContainerNode(t, v1.VolumeMount{MountPath: "/all"}, v1.VolumeMount{MountPath: "/part", SubPath: "part"})
	namespaces := newTestNamespaces()
	n.options.UserNamespaces = namespaces
	n.pod.Spec.HostUsers = ptr(false)
	n.restart()
	require.NoError(t, n.manager.AddPod(t.Context(), n.pod))
	n.ready()
	n.write("f", "content")
	n.write("part/f", "content")
	mounts := n.mounts().Mounts
	require.Len(t, mounts, 2)
	for _, made := range mounts {
		assert.Equal(t, namespaces.mappings, made.IDMappings)
		target := filepath.Join(t.TempDir(), "target")
		require.NoError(t, n.mounter.Mount(t.Context(), mount.Request{Source: made.Source, Target: target, Options: []string{"rbind"}, IDMappings: made.IDMappings}))
		var stat unix.Stat_t
		require.NoError(t, unix.Stat(filepath.Join(target, "f"), &stat))
		assert.EqualValues(t, 100000, stat.Uid, made.Target)
		assert.EqualValues(t, 200000, stat.Gid, made.Target)
		require.NoError(t, n.mounter.Unmount(t.Context(), target, mount.UnmountOptions{}))
		require.NoError(t, os.Remove(target))
	}
	n.remove()
}

// FUSE maps owners only for servers that ask for it, from Linux 6.12 on: the kernel is asked, not the name of the filesystem.
func TestARealFilesystemThatMapsNoOwnersIsNamed(t *testing.T) {
	mounttest.RequireRoot(t)
	f := mounttest.NewFUSE(t, mounttest.FUSEOptions{})
	n := newHostPathNode(t, f.Path(), v1.VolumeMount{MountPath: "/all"})
	n.options.UserNamespaces = newTestNamespaces()
	n.pod.Spec.HostUsers = ptr(false)
	n.restart()
	require.NoError(t, n.manager.AddPod(t.Context(), n.pod))
	n.ready()
	err := n.refused()
	var refused *IDMappingError
	require.ErrorAs(t, err, &refused)
	assert.Equal(t, f.Path(), refused.Source)
	require.ErrorIs(t, err, volume.ErrUnsupported)
	require.ErrorIs(t, err, unix.EINVAL)
	n.remove()
}
