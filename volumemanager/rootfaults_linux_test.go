package volumemanager

import (
	"bytes"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// TestARootThatCannotBeWrittenTo while pods run: the filesystem of the root is read-only or has no inode left, or the process has no
// descriptor left. Each volume that waits says so, and what cannot be removed is not forgotten. Afterwards all goes on by itself.
func TestARootThatCannotBeWrittenTo(t *testing.T) {
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	faults := map[string]struct {
		begin, end func(t *testing.T, root string)
		errno      error
	}{
		"read-only": {
			func(t *testing.T, root string) { remount(t, root, "ro") },
			func(t *testing.T, root string) { remount(t, root, "rw") }, unix.EROFS,
		},
		"no inodes": {fillInodes, removeFill, unix.ENOSPC},
		"no descriptors": {
			func(t *testing.T, _ string) {
				t.Cleanup(func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &limit) })
				require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: limit.Max}))
			},
			func(t *testing.T, _ string) { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)) }, unix.EMFILE,
		},
	}
	for name, c := range faults {
		t.Run(name, func(t *testing.T) {
			n := newPluginsNode(t)
			root, log := filepath.Join(n.root, "lib"), &lockedBuffer{}
			n.options.Logger = slog.New(slog.NewTextHandler(log, nil))
			n.options.Backoff.Initial, n.options.Backoff.Max = time.Millisecond, 20*time.Millisecond
			mountTmpfs(t, root)
			require.NoError(t, unix.Mount("", root, "", unix.MS_REMOUNT, "nr_inodes=200"))
			n.edit("one")
			m, stop := n.start(t)
			m.PodsComplete()
			going, stays, late := n.podNamed("going"), n.podNamed("stays"), n.podNamed("late")
			for _, pod := range []*v1.Pod{going, stays} {
				require.NoError(t, m.AddPod(t.Context(), pod))
				require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
			}
			looked(t, m)
			c.begin(t, root)
			require.NoError(t, m.AddPod(t.Context(), late))
			eventually(t, m, func() bool { return failsWith(m, late, "scratch", c.errno) && failsWith(m, late, "config", c.errno) })
			require.NoError(t, m.RemovePod(going.UID))
			if !errors.Is(c.errno, unix.ENOSPC) { // A full filesystem lets everything be removed.
				eventually(t, m, func() bool { return failsWith(m, going, "scratch", c.errno) && failsWith(m, going, "config", c.errno) })
			}
			for _, s := range m.PodStatus(stays.UID) {
				assert.Equal(t, PhaseMounted, s.Phase)
			}

			c.end(t, root)
			require.NoError(t, m.WaitForUnmount(t.Context(), going))
			require.NoError(t, m.WaitForAttachAndMount(t.Context(), late))
			for _, pod := range []*v1.Pod{stays, late} {
				require.NoError(t, m.RemovePod(pod.UID))
			}
			require.NoError(t, m.WaitForNodeEmpty(t.Context()))
			stop()
			assert.Empty(t, mountsNamed(t, "volumekit-"))
			assert.Empty(t, recordsIn(t, n.options.RuntimeDir))
			assert.Equal(t, []string{filepath.Join(root, "pods")}, treeOf(t, filepath.Join(root, "pods")))
			assert.NotContains(t, log.String(), `volumes/kubernetes.io~configmap error=`, "a teardown that has failed leaves directories that are in use")
		})
	}
}

// failsWith reports whether a volume of a pod has an error.
func failsWith(m *Manager, pod *v1.Pod, outer string, err error) bool {
	return slices.ContainsFunc(m.PodStatus(pod.UID), func(s VolumeStatus) bool {
		return (s.OuterName == outer || filepath.Base(string(s.Volume)) == outer) && errors.Is(s.Err, err)
	})
}

// lockedBuffer is what several goroutines write to.
type lockedBuffer struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.String()
}
