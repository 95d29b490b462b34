package volumemanager

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/volume"
)

// heldLoops says that there is no loop device, once it may.
type heldLoops chan struct{}

func (h heldLoops) Devices(ctx context.Context) ([]loop.Device, error) {
	select {
	case <-h:
		return nil, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (heldLoops) Detach(context.Context, loop.Device) error { return volume.ErrUnsupported }

// TestRecordedMountsAreNoOrphans: what was on record at the start is none, also when it is torn down while orphans are looked for.
func TestRecordedMountsAreNoOrphans(t *testing.T) {
	n := knownNode(t, true)
	pod := emptyDirPod("gone")
	n.leave(t, pod)
	held := make(heldLoops)
	n.options.Loops = held
	m, stop := n.start(t)
	defer stop()
	m.PodsComplete()
	eventually(t, m, func() bool { return isOpen(m.recovery.RecordsRead()) && len(m.PodStatus(pod.UID)) == 0 })
	require.Zero(t, idAt(t, n.pathOf(pod)))
	close(held)
	looked(t, m)
	assert.Empty(t, m.Status().Orphans)
}

// TestEmptyDirectoriesOfPodsAreToldOrRemoved: a manager was killed before it removed them. Foreign files in the directory of a
// pod stay.
func TestEmptyDirectoriesOfPodsAreToldOrRemoved(t *testing.T) {
	for _, policy := range []OrphanPolicy{OrphansAreReported, OrphansAreRemoved} {
		n := knownNode(t, true)
		n.options.Orphans = policy
		both := emptyDirPod("both") // It has a volume as well.
		n.leave(t, both)
		pods := n.plugins.Host().GetPodsDir()
		for _, path := range []string{
			"uid-killed/volumes/example.com~tmpfs", "uid-mapped/volumeDevices/example.com~gone", "uid-parts/volume-subpaths/cache/main/0",
			"uid-bare", "uid-kept/plugins/example.com~tmpfs", "uid-both/volumes/example.com~gone", "uid-wanted/volumes/example.com~gone",
			"uid-theirs/containers/main",
		} {
			require.NoError(t, os.MkdirAll(filepath.Join(pods, path), 0o700))
		}
		require.NoError(t, os.WriteFile(filepath.Join(pods, "uid-kept", "notes"), nil, 0o600))
		proofs := filepath.Join(pods, "uid-killed/plugins/kubernetes.io~empty-dir")
		require.NoError(t, os.MkdirAll(proofs, 0o700))
		require.NoError(t, os.Symlink("made:1:2:3.4", filepath.Join(proofs, "scratch"))) // A power cut leaves it.

		m, stop := n.start(t)
		looked(t, m)
		wanted := emptyDirPod("wanted")
		require.NoError(t, m.AddPod(t.Context(), wanted))
		require.NoError(t, m.WaitForAttachAndMount(t.Context(), wanted))
		told := func() map[types.UID]error {
			told := make(map[types.UID]error)
			for _, o := range m.Status().Orphans {
				assert.Equal(t, filepath.Join(pods, string(o.PodUID)), o.Path)
				told[o.PodUID] = o.Err
			}
			return told
		}
		assert.Equal(t, map[types.UID]error{"uid-killed": nil, "uid-mapped": nil, "uid-parts": nil, "uid-bare": nil, "uid-kept": nil}, told())
		m.PodsComplete()
		require.NoError(t, m.WaitForUnmount(t.Context(), both))
		if policy == OrphansAreRemoved {
			eventually(t, m, func() bool { return len(told()) == 1 })
			require.Error(t, told()["uid-kept"])
			for _, uid := range []string{"uid-killed", "uid-mapped", "uid-parts", "uid-bare"} {
				assert.NoDirExists(t, filepath.Join(pods, uid))
			}
		} else {
			assert.Len(t, told(), 5)
			assert.DirExists(t, filepath.Join(pods, "uid-killed/volumes/example.com~tmpfs"))
			require.NoError(t, m.RemovePod("uid-killed"))
			assert.NotContains(t, told(), types.UID("uid-killed"), "RemovePod removes them, too")
			assert.NoDirExists(t, filepath.Join(pods, "uid-killed"))
		}
		assert.FileExists(t, filepath.Join(pods, "uid-kept", "notes"))
		assert.DirExists(t, filepath.Join(pods, "uid-theirs/containers/main"))
		require.NoError(t, m.RemovePod(wanted.UID))
		require.NoError(t, m.WaitForNodeEmpty(t.Context()))
		assert.NotContains(t, told(), types.UID("uid-wanted"))
		stop()
		assert.NoDirExists(t, filepath.Join(pods, "uid-both"))
		assert.NoDirExists(t, filepath.Join(pods, "uid-wanted"))
	}
}
