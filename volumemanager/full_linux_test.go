package volumemanager

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// TestRecordsWithoutRoom is rows 11, 12 and 13 of the fault matrix: on a disk without a byte, or that is read-only, what is there
// is torn down, and nothing new begins. A disk without an inode has room for records.
func TestRecordsWithoutRoom(t *testing.T) {
	cases := map[string]struct {
		options []string
		fill    func(t *testing.T, dir string)
		empty   func(t *testing.T, dir string)
		errno   error
	}{
		"bytes":  {options: []string{"size=64k", "mode=0700"}, fill: fillBytes, empty: removeFill, errno: unix.ENOSPC},
		"inodes": {options: []string{"nr_inodes=20", "mode=0700"}, fill: fillInodes, empty: removeFill},
		"read-only": {options: []string{"size=64k", "mode=0700"}, errno: unix.EROFS,
			fill: func(t *testing.T, dir string) { remount(t, dir, "ro") }, empty: func(t *testing.T, dir string) { remount(t, dir, "rw") }},
	}
	for name, c := range cases {
		for _, restart := range []bool{false, true} {
			t.Run(name+" restart "+strconv.FormatBool(restart), func(t *testing.T) {
				t.Parallel()
				n := knownNode(t, true)
				n.options.Backoff.Initial = testBackoff
				n.options.StateDir = ""
				mounter := mount.New(mount.Options{})
				dir := n.options.RuntimeDir
				require.NoError(t, mounter.Mount(t.Context(), mount.Request{Source: "records", Target: dir, FSType: "tmpfs", Options: c.options}))
				m, stop := n.start(t)
				m.PodsComplete()
				there, late := emptyDirPod("there"), emptyDirPod("late")
				require.NoError(t, m.AddPod(t.Context(), there))
				require.NoError(t, m.WaitForAttachAndMount(t.Context(), there))
				looked(t, m)
				eventually(t, m, m.reconciler.IsQuiet) // What it has left is on record.
				if restart {
					stop()
				} else if errors.Is(c.errno, unix.EROFS) {
					require.ErrorIs(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""), unix.EBUSY, "the log is open")
					require.NoError(t, m.RemovePod(there.UID))
					require.NoError(t, m.WaitForNodeEmpty(t.Context()))
					stop()
					require.NoError(t, mounter.Unmount(t.Context(), dir, mount.UnmountOptions{}))
					return
				}
				c.fill(t, dir)
				if restart {
					m, stop = n.start(t)
					looked(t, m)
					require.NoError(t, m.AddPod(t.Context(), there))
					require.NoError(t, m.WaitForAttachAndMount(t.Context(), there), "what is on record is set up again")
					m.PodsComplete()
				}
				// What is removed makes room, so that nothing is before all was looked at.
				more, err := addUntilRefused(t, m, late)
				removeMore := func() {
					for _, pod := range append(more, late) {
						require.NoError(t, m.RemovePod(pod.UID))
					}
				}
				if c.errno == nil {
					require.NoError(t, err)
					removeMore()
					require.NoError(t, m.RemovePod(there.UID))
					require.NoError(t, m.WaitForNodeEmpty(t.Context()))
					stop()
					assert.Empty(t, recordsIn(t, dir))
					require.NoError(t, mounter.Unmount(t.Context(), dir, mount.UnmountOptions{}))
					return
				}
				require.ErrorIs(t, err, ErrNotRecorded)
				require.ErrorIs(t, err, volume.ErrTransient)
				require.ErrorIs(t, err, c.errno)
				assert.Zero(t, idAt(t, n.pathOf(late)), "refused before anything is mounted")
				assert.NoDirExists(t, n.pathOf(late))

				require.NoError(t, m.RemovePod(there.UID))
				require.NoError(t, m.WaitForUnmount(t.Context(), there))
				assert.Zero(t, idAt(t, n.pathOf(there)))
				eventually(t, m, m.reconciler.IsQuiet)
				c.empty(t, dir)
				require.NoError(t, m.WaitForAttachAndMount(t.Context(), late), "it is tried again")
				removeMore()
				require.NoError(t, m.WaitForNodeEmpty(t.Context()))
				stop()
				assert.Empty(t, recordsIn(t, dir), "what could not be written was written later")
				require.NoError(t, mounter.Unmount(t.Context(), dir, mount.UnmountOptions{}))
			})
		}
	}
}

// addUntilRefused adds pods until the volume of one has an error, which it returns with the pods before, or for long enough. The
// last one is late.
func addUntilRefused(t *testing.T, m *Manager, late *v1.Pod) (before []*v1.Pod, err error) {
	t.Helper()
	for i := range 30 {
		require.NoError(t, m.AddPod(t.Context(), late))
		eventually(t, m, func() bool {
			status := m.PodStatus(late.UID)[0]
			err = status.Err
			return err != nil || status.Phase == PhaseMounted
		})
		if err != nil || i == 29 {
			return before, err
		}
		pod := emptyDirPod("more-" + strconv.Itoa(i))
		require.NoError(t, m.AddPod(t.Context(), pod))
		before = append(before, pod)
		require.NoError(t, m.RemovePod(late.UID))
		require.NoError(t, m.WaitForUnmount(t.Context(), late))
	}
	return before, nil
}

func remount(t *testing.T, dir, option string) {
	t.Helper()
	var flags uintptr = unix.MS_REMOUNT
	if option == "ro" {
		flags |= unix.MS_RDONLY
	}
	require.NoError(t, unix.Mount("", dir, "", flags, ""))
}

func fillBytes(t *testing.T, dir string) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "fill"))
	require.NoError(t, err)
	block := make([]byte, 4096)
	for err == nil {
		_, err = f.Write(block)
	}
	require.ErrorIs(t, err, unix.ENOSPC)
	require.NoError(t, f.Close())
}

func fillInodes(t *testing.T, dir string) {
	t.Helper()
	for i := 0; ; i++ {
		f, err := os.Create(filepath.Join(dir, "fill"+strconv.Itoa(i)))
		if err != nil {
			require.ErrorIs(t, err, unix.ENOSPC)
			return
		}
		require.NoError(t, f.Close())
	}
}

func removeFill(t *testing.T, dir string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "fill*"))
	require.NoError(t, err)
	for _, f := range files {
		require.NoError(t, os.Remove(f))
	}
}
