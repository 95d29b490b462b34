package dockerserver_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins/hostpath"
	"github.com/volumekit/volumekit/volume"
)

// Docker has forgotten the id of a container that has a part of the volume, or the plain directory of a volume. The server keeps the
// volume until the container ends.
func TestAUseThatIsNoWholeMountKeepsTheVolume(t *testing.T) {
	mounttest.RequireRoot(t)
	for name, test := range map[string]struct {
		plugin func(base string) volume.VolumePlugin
		part   string
	}{
		"a directory of a mount":      {func(string) volume.VolumePlugin { return loops() }, "part"},
		"a plain directory":           {func(base string) volume.VolumePlugin { return hostpath.New(hostpath.Options{BaseDir: base}) }, ""},
		"a part of a plain directory": {func(base string) volume.VolumePlugin { return hostpath.New(hostpath.Options{BaseDir: base}) }, "part"},
	} {
		for where, linked := range map[string]bool{"": false, ", below a link": true} {
			if linked && name == "a directory of a mount" {
				continue // Nothing is mounted through a link.
			}
			t.Run(name+where, func(t *testing.T) {
				options := optionsIn(t)
				dir := filepath.Dir(options.RootDir)
				base := filepath.Join(dir, "base")
				if linked {
					require.NoError(t, os.MkdirAll(filepath.Join(dir, "real"), 0o700))
					require.NoError(t, os.Symlink("real", filepath.Join(dir, "link")))
					base, options.RootDir = filepath.Join(dir, "link", "base"), filepath.Join(dir, "link", "root")
				}
				d := serve(t, test.plugin(base), options)
				d.create(t, "v", nil)
				path := d.mount(t, "v", "forgotten")
				file := filepath.Join(path, test.part, "file")
				require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
				require.NoError(t, os.WriteFile(file, []byte("kept"), 0o600))
				in := t.TempDir()
				end := runContainer(t, path, filepath.Dir(file), in)
				d.refused(t, "VolumeDriver.Remove", args{"Name": "v"}, "has it mounted")
				content, err := os.ReadFile(file)
				require.NoError(t, err)
				assert.Equal(t, "kept", string(content))
				end()
				d.remove(t, "v")
				d.stop()
			})
		}
	}
}

// runContainer runs a process in a mount namespace with a directory at a target, and without the mounts of the volume at path. It runs
// until end is called.
func runContainer(t *testing.T, path, dir, target string) (end func()) {
	t.Helper()
	container := exec.Command("sh", "-ec", `mount --bind "$2" "$3"; umount -l "$1" 2>/dev/null || true; echo ready; cat >/dev/null`, "sh", path, dir, target)
	container.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	in, err := container.StdinPipe()
	require.NoError(t, err)
	out, err := container.StdoutPipe()
	require.NoError(t, err)
	container.Stderr = os.Stderr
	require.NoError(t, container.Start())
	ready, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", ready)
	return func() {
		require.NoError(t, in.Close())
		require.NoError(t, container.Wait())
	}
}
