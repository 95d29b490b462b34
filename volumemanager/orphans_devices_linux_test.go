package volumemanager

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/volume"
)

// attachNew makes a file and attaches it as a loop device until the end of the test.
func attachNew(t *testing.T, loops *loop.Manager, path, label string) loop.Device {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
	d, err := loops.Attach(t.Context(), path, loop.AttachOptions{Label: label})
	require.NoError(t, err)
	t.Cleanup(func() { _ = loops.Detach(context.WithoutCancel(t.Context()), d) })
	return d
}

func TestLoopDevicesOnNoRecordAreReportedAndDetachedByOptionOnly(t *testing.T) {
	mounttest.RequireRoot(t)
	for _, policy := range []OrphanPolicy{OrphansAreReported, OrphansAreRemoved} {
		n := knownNode(t, false)
		loops := loop.New(loop.Options{})
		n.options.Orphans, n.options.Loops = policy, loops
		dir := n.plugins.Host().GetPluginDir("example.com/tmpfs")
		ours := attachNew(t, loops, dir+"/ours.img", "example.com/tmpfs/ours")
		long := strings.Repeat("x", 64)
		provisioned := attachNew(t, loops, dir+"/"+long+".img", "example.com/tmpfs/"+long)
		other := attachNew(t, loops, dir+"/"+long+"2.img", "example.com/tmpfs/"+long+"1")
		strange := attachNew(t, loops, dir+"/strange.img", "another/program")
		elsewhere := attachNew(t, loops, dir+"/../other/image", "example.com/tmpfs/elsewhere")
		attachNew(t, loops, filepath.Join(n.root, "outside/image"), "example.com/tmpfs/outside")
		held := attachNew(t, loops, dir+"/held.img", "example.com/tmpfs/held")
		node, err := os.Open(held.Path)
		require.NoError(t, err)
		defer node.Close()
		lock, err := loops.HoldDevice(t.Context(), node, "a lock")
		require.NoError(t, err)
		node.Close()
		t.Cleanup(func() { _ = loops.Detach(context.WithoutCancel(t.Context()), lock) })

		m, stop := n.start(t)
		orphans := func() map[string]Orphan {
			found := map[string]Orphan{}
			for _, o := range m.Status().Orphans {
				found[o.BackingFile] = o
			}
			return found
		}
		eventually(t, m, func() bool { return len(orphans()) == 6 })
		for _, d := range []loop.Device{ours, provisioned, other, strange, elsewhere, held} {
			assert.Equal(t, d.Path, orphans()[d.BackingPath].Path)
		}
		_, err = loops.Inspect(t.Context(), ours.Path)
		require.NoError(t, err, "nothing goes before all pods are known")
		m.PodsComplete()
		if policy == OrphansAreRemoved {
			eventually(t, m, func() bool { return len(orphans()) == 4 })
			for _, d := range []loop.Device{other, strange, elsewhere, held} {
				require.ErrorIs(t, orphans()[d.BackingPath].Err, volume.ErrInUse)
			}
		}
		stop()
		for _, d := range []loop.Device{ours, provisioned, other, strange, elsewhere, held, lock} {
			now, err := loops.Inspect(t.Context(), d.Path)
			if (d == ours || d == provisioned) && policy == OrphansAreRemoved {
				assert.True(t, err != nil || now.DiskSeq != d.DiskSeq, "it is detached")
				continue
			}
			require.NoError(t, err)
			assert.Equal(t, d.DiskSeq, now.DiskSeq)
		}
		assert.FileExists(t, dir+"/ours.img")
	}
}
