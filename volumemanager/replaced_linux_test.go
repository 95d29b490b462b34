package volumemanager

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
)

// podNamed returns another pod with a volume of each plugin.
func (n *pluginsNode) podNamed(name string) *v1.Pod {
	pod := n.newPod()
	pod.Name, pod.UID = name, types.UID("uid-"+name)
	return pod
}

// replacements put something else at the path of a root. restore undoes that.
var replacements = map[string]struct {
	replace, restore func(t *testing.T, root string)
}{
	"moved": {moveRoot, func(t *testing.T, root string) { require.NoError(t, os.Rename(root+".old", root)) }},
	"moved, and another directory is there": {
		func(t *testing.T, root string) {
			moveRoot(t, root)
			require.NoError(t, os.Mkdir(root, 0o750))
		},
		func(t *testing.T, root string) {
			require.NoError(t, os.Rename(root, root+".foreign"))
			require.NoError(t, os.Rename(root+".old", root))
		},
	},
	"mounted over": {
		func(t *testing.T, root string) {
			require.NoError(t, unix.Mount("foreign", root, "tmpfs", 0, "mode=750"))
		},
		unmountForeign,
	},
	"another directory is bound over it": {
		func(t *testing.T, root string) {
			require.NoError(t, os.Mkdir(root+".foreign", 0o750))
			require.NoError(t, unix.Mount(root+".foreign", root, "", unix.MS_BIND, ""))
		},
		unmountForeign,
	},
}

func moveRoot(t *testing.T, root string) {
	t.Helper()
	require.NoError(t, os.Rename(root, root+".old"))
}

// leaveForeign makes directories and a mount of another program where volumes of a pod would be.
func leaveForeign(t *testing.T, root string, uid types.UID) {
	t.Helper()
	volumes := filepath.Join(root, "pods", string(uid), "volumes")
	for _, dir := range []string{"kubernetes.io~empty-dir/scratch", "kubernetes.io~configmap/config", "kubernetes.io~secret/secret", "empty"} {
		require.NoError(t, os.MkdirAll(filepath.Join(volumes, dir), 0o750))
	}
	require.NoError(t, os.WriteFile(filepath.Join(volumes, "kubernetes.io~empty-dir/scratch/precious"), nil, 0o600))
	require.NoError(t, unix.Mount("foreign", filepath.Join(volumes, "kubernetes.io~secret/secret"), "tmpfs", 0, "size=64k"))
}

// treeOf returns the paths of all that lies below a directory.
func treeOf(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	require.NoError(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		all = append(all, path)
		return err
	}))
	return all
}

// mountsNamed returns the sorted sources of the tmpfs that a manager's plugins have mounted.
func mountsNamed(t *testing.T, prefix string) []string {
	t.Helper()
	table, err := mount.New(mount.Options{}).List(t.Context())
	require.NoError(t, err)
	var sources []string
	for _, mp := range table {
		if strings.HasPrefix(mp.Source, prefix) {
			sources = append(sources, mp.Source)
		}
	}
	slices.Sort(sources)
	return sources
}

// TestARootThatWasReplacedIsLeftAlone: nothing is set up or torn down at paths that lead to another directory. Before, a teardown
// found nothing at its path and counted as done, while the volume was still mounted where the root had been moved to.
func TestARootThatWasReplacedIsLeftAlone(t *testing.T) {
	for name, c := range replacements {
		for _, records := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				n := newPluginsNode(t)
				n.options.Backoff.Initial, n.options.Backoff.Max = time.Millisecond, 20*time.Millisecond
				n.options.Orphans = OrphansAreRemoved
				if n.options.NoRecords = !records; !records {
					n.options.RuntimeDir, n.options.StateDir, n.options.Orphans = "", "", OrphansAreReported
				}
				n.edit("one")
				m, stop := n.start(t)
				m.PodsComplete()
				going, stays, late := n.podNamed("going"), n.podNamed("stays"), n.podNamed("late")
				for _, pod := range []*v1.Pod{going, stays} {
					require.NoError(t, m.AddPod(t.Context(), pod))
					require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
				}
				if records {
					looked(t, m)
				}
				root, before := filepath.Join(n.root, "lib"), mountsNamed(t, "volumekit-")
				c.replace(t, root)
				var foreign []string
				if _, err := os.Lstat(root); err == nil {
					leaveForeign(t, root, going.UID)
					require.NoError(t, os.MkdirAll(filepath.Join(root, "pods/uid-unknown/volumes"), 0o750))
					foreign = treeOf(t, root)
				}
				require.NoError(t, m.RemovePod(going.UID))
				require.NoError(t, m.RemovePod("uid-unknown"))
				require.NoError(t, m.AddPod(t.Context(), late))
				eventually(t, m, func() bool { return allFail(m, going) && allFail(m, late) })
				_, err := m.ContainerMounts(t.Context(), stays, "main")
				require.ErrorIs(t, err, ErrRootReplaced)
				require.ErrorIs(t, m.ReleaseContainer(t.Context(), stays.UID, "main"), ErrRootReplaced)
				assert.Equal(t, before, mountsNamed(t, "volumekit-"), "nothing was mounted, and nothing unmounted")
				if foreign != nil {
					assert.Equal(t, foreign, treeOf(t, root))
					unmountForeign(t, filepath.Join(root, "pods", string(going.UID), "volumes/kubernetes.io~secret/secret"))
				}

				c.restore(t, root)
				require.NoError(t, m.WaitForUnmount(t.Context(), going), "all goes on by itself")
				require.NoError(t, m.WaitForAttachAndMount(t.Context(), late))
				for _, pod := range []*v1.Pod{stays, late} {
					require.NoError(t, m.RemovePod(pod.UID))
				}
				require.NoError(t, m.WaitForNodeEmpty(t.Context()))
				stop()
				assert.Empty(t, mountsNamed(t, "volumekit-"))
				left, err := os.ReadDir(filepath.Join(root, "pods"))
				require.NoError(t, err)
				assert.Empty(t, left)
			})
		}
	}
}

// allFail reports whether each volume of a pod has an error that says why nothing is done.
func allFail(m *Manager, pod *v1.Pod) bool {
	status := m.PodStatus(pod.UID)
	return len(status) == len(pod.Spec.Volumes) && !slices.ContainsFunc(status, func(s VolumeStatus) bool {
		return !errors.Is(s.Err, ErrRootReplaced) && !errors.Is(s.Err, mount.ErrForeign)
	})
}
