package loopblock_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount/format"
	"github.com/volumekit/volumekit/plugins/loopblock"
)

// withoutTools covers the directories of mkfs and e2fsck until the end of the test, in the mount namespace of the tests.
func withoutTools(t *testing.T) {
	t.Helper()
	covered := map[string]bool{}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/bin", "/bin"} {
		place, err := filepath.EvalSymlinks(dir)
		require.NoError(t, err)
		if covered[place] {
			continue
		}
		covered[place] = true
		require.NoError(t, unix.Mount("tmpfs", place, "tmpfs", unix.MS_RDONLY, ""))
		t.Cleanup(func() { assert.NoError(t, unix.Unmount(place, 0)) })
	}
}

func TestProvisionLooksForTheToolBeforeItTakesSpace(t *testing.T) {
	n := newNode(t)
	require.NoError(t, os.MkdirAll(n.images, 0o700))
	require.NoError(t, unix.Mount("tmpfs", n.images, "tmpfs", 0, "size=4m"))
	n.cleanMount(n.images)
	withoutTools(t)
	_, err := n.tryProvision(t.Context(), claimOf("pv", "preallocate", "true"))
	require.ErrorIs(t, err, format.ErrNoTool)
	require.ErrorContains(t, err, "e2fsprogs", "what to install")
	assert.Empty(t, n.names())
}

func TestWithoutToolsAVolumeThatIsThereIsProvisionedAndStaged(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	withoutTools(t)
	assert.Equal(t, spec.PersistentVolume, n.provision("pv").PersistentVolume)
	var log bytes.Buffer
	n.plugin = n.pluginWith(loopblock.Options{Mounter: n.mounter, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	n.stage(spec)
	assert.Contains(t, log.String(), "without a check")
	n.release(spec)
}

// A check that is killed then takes a person, who would know nothing of it.
func TestACheckIsMadeWhereItsSuperblockCannotBeKeptAndThatIsTold(t *testing.T) {
	n := newNode(t)
	n.over("ext4") // It bounds the attributes of a file; a tmpfs does not.
	spec := n.provision("pv")
	fillAttributes(t, n.image("pv"))
	var log bytes.Buffer
	n.plugin = n.pluginWith(loopblock.Options{Mounter: n.mounter, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	n.stage(spec)
	assert.Contains(t, log.String(), "no room")
	assert.Contains(t, log.String(), "volume=pv")
	assert.Contains(t, log.String(), unix.ENOSPC.Error())
	n.release(spec)
}

// fillAttributes leaves no room for another extended attribute of a file.
func fillAttributes(t *testing.T, path string) {
	t.Helper()
	size := 1 << 15
	for i := range 1 << 12 {
		err := unix.Setxattr(path, fmt.Sprintf("user.filler-%d", i), make([]byte, size), 0)
		if err == nil {
			continue
		}
		require.Contains(t, []error{unix.ENOSPC, unix.E2BIG, unix.ERANGE}, err)
		if size /= 2; size == 0 {
			return
		}
	}
	t.Fatal("a filesystem without a bound for attributes")
}
