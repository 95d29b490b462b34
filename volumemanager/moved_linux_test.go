package volumemanager

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
)

// TestAMountThatWasMovedIsNotForgotten: another program has moved the mount of a volume, or a directory above it. Nothing is mounted
// at its path then, and it is mounted all the same.
func TestAMountThatWasMovedIsNotForgotten(t *testing.T) {
	moves := map[string]struct {
		move, back func(t *testing.T, path, to string)
	}{
		"its pod's directory": {
			func(t *testing.T, path, to string) { require.NoError(t, os.Rename(podDirOf(path), to)) },
			func(t *testing.T, path, to string) { require.NoError(t, os.Rename(to, podDirOf(path))) },
		},
		"the mount": {
			func(t *testing.T, path, to string) {
				require.NoError(t, os.Mkdir(to, 0o700))
				require.NoError(t, unix.Mount(path, to, "", unix.MS_MOVE, ""))
			},
			func(t *testing.T, path, to string) { require.NoError(t, unix.Mount(to, path, "", unix.MS_MOVE, "")) },
		},
	}
	for name, c := range moves {
		for _, restart := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				n := newWatchedNode(t)
				n.options.Backoff.Initial, n.options.Backoff.Max = time.Millisecond, 10*time.Millisecond
				pod := emptyDirPod("web")
				m, stop := n.start(t)
				n.m = m
				path := n.add(pod)
				ours, to := n.idAt(path), filepath.Join(n.root, "moved")
				looked(t, m)
				if restart {
					stop()
				}
				c.move(t, path, to)
				if restart {
					n.m, stop = n.start(t)
					require.NoError(t, n.m.AddPod(t.Context(), pod))
				}
				n.m.PodsComplete()
				if restart {
					s := n.until(pod, func(s VolumeStatus) bool { return s.Err != nil })
					require.ErrorIs(t, s.Err, mount.ErrForeign, "it is not set up again beside itself")
				}
				require.NoError(t, n.m.RemovePod(pod.UID))
				s := n.until(pod, func(s VolumeStatus) bool { return !s.Wanted && s.Err != nil })
				require.ErrorIs(t, s.Err, mount.ErrForeign)
				require.ErrorContains(t, s.Err, to)
				found, err := n.mounter.LookupID(t.Context(), ours)
				require.NoError(t, err)
				assert.NotEqual(t, path, found.Path)

				c.back(t, path, to)
				require.NoError(t, n.m.WaitForUnmount(t.Context(), pod), "when it is back, all goes on by itself")
				_, err = n.mounter.LookupID(t.Context(), ours)
				require.ErrorIs(t, err, mount.ErrNotMounted)
				require.NoError(t, n.m.WaitForNodeEmpty(t.Context()))
				stop()
			})
		}
	}
}

// podDirOf returns the directory of the pod whose volume is at a path.
func podDirOf(path string) string { return filepath.Dir(filepath.Dir(filepath.Dir(path))) }

// TestAContainerGetsOnlyWhatTheManagerHasSetUp: the runtime binds what is at the path of a volume, so another mount there would be
// the container's, and what it writes would be lost to the volume.
func TestAContainerGetsOnlyWhatTheManagerHasSetUp(t *testing.T) {
	hide := func(above string) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			at := filepath.Join(path, above)
			require.NoError(t, unix.Mount("foreign", at, "tmpfs", 0, "size=64k"))
			t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
			require.NoError(t, os.MkdirAll(path, 0o700))
		}
	}
	nodes := map[string]struct {
		node func(t *testing.T) *watchedNode
		pod  *v1.Pod
	}{
		"mount":     {newWatchedNode, emptyDirPod("web")},
		"directory": {newDirectoryNode, diskPod("web")},
	}
	changes := map[string]struct {
		change func(t *testing.T, path string)
		err    error
	}{
		"mounted over":       {hide("."), mount.ErrForeign},
		"mounted over above": {hide("../.."), mount.ErrForeign},
		"another directory is there": {func(t *testing.T, path string) {
			require.NoError(t, os.Rename(podDirOf(path), podDirOf(path)+".old"))
			t.Cleanup(func() { require.NoError(t, os.Rename(podDirOf(path)+".old", podDirOf(path))) })
			require.NoError(t, os.MkdirAll(path, 0o700))
			t.Cleanup(func() { require.NoError(t, os.RemoveAll(podDirOf(path))) })
		}, mount.ErrForeign},
	}
	for kind, k := range nodes {
		for name, c := range changes {
			t.Run(kind+" "+name, func(t *testing.T) {
				n := k.node(t)
				m, stop := n.start(t)
				n.m = m
				m.PodsComplete()
				path := n.add(k.pod)
				_, err := m.ContainerMounts(t.Context(), k.pod, "main")
				require.NoError(t, err)
				stop() // The answer does not depend on what the manager was told of.
				t.Run("changed", func(t *testing.T) {
					c.change(t, path)
					_, err = m.ContainerMounts(t.Context(), k.pod, "main")
					require.ErrorIs(t, err, c.err)
				})
				_, err = m.ContainerMounts(t.Context(), k.pod, "main")
				require.NoError(t, err)
				n.run()
				require.NoError(t, n.m.WaitForNodeEmpty(t.Context()))
			})
		}
	}
}
