package dockerserver_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/bridge/docker/dockerserver"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins/emptydir"
	"github.com/volumekit/volumekit/plugins/hostpath"
	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/volume"
)

func loops() volume.VolumePlugin { return loopblock.New(loopblock.Options{}) }

// A volume whose first create has no known end may exist with its options: other options are refused until it is removed.
func TestOtherOptionsWaitForTheEndOfACreate(t *testing.T) {
	plugin := fake.NewPlugin(fake.PluginOptions{Mounter: fake.NewMounter(fake.MounterOptions{})})
	plugin.Inject(fake.MethodProvision, fake.FailAfter(volume.Uncertain(errors.New("no answer"))))
	d := serve(t, plugin, optionsIn(t))
	size := func(size string) args { return args{"Name": "v", "Opts": map[string]string{"size": size}} }
	d.refused(t, "VolumeDriver.Create", size("32Mi"), "no answer")
	d.refused(t, "VolumeDriver.Create", size("64Mi"), "create it with those, and then remove it")
	d.create(t, "v", map[string]string{"size": "32Mi"})
	d.remove(t, "v")
	assert.Empty(t, plugin.Backend().Handles())
	d.create(t, "v", map[string]string{"size": "64Mi"})
	d.remove(t, "v")
}

// A volume is made, used twice at once, keeps what is written, and goes.
func TestLifeOnLoopBlock(t *testing.T) {
	mounttest.RequireRoot(t)
	options := optionsIn(t)
	d := serve(t, loops(), options)
	assert.Equal(t, []string{"VolumeDriver"}, d.call(t, "Plugin.Activate", nil).Implements)
	assert.Equal(t, "local", d.call(t, "VolumeDriver.Capabilities", args{}).Capabilities["Scope"])

	d.create(t, "V_1", map[string]string{"size": "32Mi"}) // no object can have this name
	d.create(t, "V_1", map[string]string{"size": "32Mi"})
	d.refused(t, "VolumeDriver.Create", args{"Name": "V_1", "Opts": map[string]string{"size": "64Mi"}}, "other options")
	assert.Empty(t, d.call(t, "VolumeDriver.Path", args{"Name": "V_1"}).Mountpoint)

	first := d.mount(t, "V_1", "a")
	require.NoError(t, os.WriteFile(filepath.Join(first, "file"), []byte("written"), 0o600))
	assert.Equal(t, first, d.mount(t, "V_1", "b"))
	assert.Equal(t, first, d.mount(t, "V_1", "b"), "the same call again")
	assert.Equal(t, first, d.call(t, "VolumeDriver.Path", args{"Name": "V_1"}).Mountpoint)
	got := d.call(t, "VolumeDriver.Get", args{"Name": "V_1"}).Volume
	assert.Equal(t, first, got.Mountpoint)
	assert.Equal(t, "32Mi", got.Status["size"])
	assert.NotEmpty(t, got.CreatedAt)
	var stat syscall.Statfs_t
	require.NoError(t, syscall.Statfs(first, &stat))
	assert.Less(t, stat.Blocks*uint64(stat.Bsize), uint64(33<<20)) //nolint:gosec // a size of blocks
	assert.Len(t, mountsBelow(t, options.RootDir), 2, "staged once, set up once")

	d.unmount(t, "V_1", "a")
	d.unmount(t, "V_1", "a")
	assert.FileExists(t, filepath.Join(first, "file"), "the second use goes on")
	d.unmount(t, "V_1", "b")
	assert.Empty(t, mountsBelow(t, options.RootDir))
	assert.Empty(t, d.call(t, "VolumeDriver.Path", args{"Name": "V_1"}).Mountpoint)

	content, err := os.ReadFile(filepath.Join(d.mount(t, "V_1", "c"), "file"))
	require.NoError(t, err)
	assert.Equal(t, "written", string(content))
	d.unmount(t, "V_1", "c")
	d.remove(t, "V_1")
	d.refused(t, "VolumeDriver.Get", args{"Name": "V_1"}, "not found")
	assert.Empty(t, d.call(t, "VolumeDriver.List", args{}).Volumes)
	d.stop()
	assertNothingLeft(t, options)
}

// What is in use stays mounted when a server stops, and the next one has the uses of the one before.
func TestAServerThatStopsLeavesVolumesInUse(t *testing.T) {
	mounttest.RequireRoot(t)
	options := optionsIn(t)
	d := serve(t, loops(), options)
	d.create(t, "v", nil)
	d.create(t, "idle", nil)
	path := d.mount(t, "v", "a")
	d.mount(t, "v", "b")
	require.NoError(t, os.WriteFile(filepath.Join(path, "file"), nil, 0o600))
	before := mountsBelow(t, options.RootDir)
	d.stop()
	assert.Equal(t, before, mountsBelow(t, options.RootDir))

	d = serve(t, loops(), options)
	require.Eventually(t, func() bool {
		return d.call(t, "VolumeDriver.Get", args{"Name": "v"}).Volume.Status["phase"] == "mounted"
	}, time.Minute, time.Millisecond, "the next server does not know that the volume is in use")
	assert.Equal(t, before, mountsBelow(t, options.RootDir))
	volumes := d.call(t, "VolumeDriver.List", args{}).Volumes
	require.Len(t, volumes, 2)
	assert.Equal(t, path, volumes[1].Mountpoint)
	d.unmount(t, "v", "a")
	assert.FileExists(t, filepath.Join(path, "file"))
	d.unmount(t, "v", "b")
	d.remove(t, "v")
	d.remove(t, "idle")
	d.stop()
	assertNothingLeft(t, options)
}

// A mount that another program took off while no server ran is made again for its user.
func TestAMountThatIsMissingIsMadeAgain(t *testing.T) {
	mounttest.RequireRoot(t)
	options := optionsIn(t)
	d := serve(t, loops(), options)
	d.create(t, "v", nil)
	path := d.mount(t, "v", "a")
	require.NoError(t, os.WriteFile(filepath.Join(path, "file"), nil, 0o600))
	d.stop()
	require.NoError(t, syscall.Unmount(path, 0))

	d = serve(t, loops(), options)
	require.Eventually(t, func() bool { _, err := os.Stat(filepath.Join(path, "file")); return err == nil }, time.Minute, time.Millisecond)
	assert.Equal(t, path, d.mount(t, "v", "b"))
	d.unmount(t, "v", "a")
	d.unmount(t, "v", "b")
	d.remove(t, "v")
	d.stop()
	assertNothingLeft(t, options)
}

// Plugins that make no volumes serve what the program says that a name and options stand for.
func TestLifeOfAPluginThatDoesNotProvision(t *testing.T) {
	mounttest.RequireMounts(t)
	srv := t.TempDir()
	for name, c := range map[string]struct {
		plugin volume.VolumePlugin
		source v1.VolumeSource
		keeps  bool
	}{
		"hostpath": {hostpath.New(hostpath.Options{}), v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: srv}}, true},
		"emptydir": {emptydir.New(emptydir.Options{}), v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			options := optionsIn(t)
			options.Source = func(_ string, o map[string]string) (*volume.Spec, error) {
				if len(o) > 0 {
					return nil, volume.ErrInvalid
				}
				return volume.NewSpecFromVolume(&v1.Volume{VolumeSource: c.source}), nil
			}
			d := serve(t, c.plugin, options)
			d.refused(t, "VolumeDriver.Create", args{"Name": "v", "Opts": map[string]string{"size": "1Gi"}}, "invalid")
			d.create(t, "v", nil)
			path := d.mount(t, "v", "a")
			require.NoError(t, os.WriteFile(filepath.Join(path, "file"), nil, 0o600))
			d.stop()

			d = serve(t, c.plugin, options)
			assert.Equal(t, path, d.mount(t, "v", "b"))
			assert.FileExists(t, filepath.Join(path, "file"))
			d.unmount(t, "v", "a")
			d.unmount(t, "v", "b")
			_, err := os.Stat(filepath.Join(path, "file"))
			assert.Equal(t, c.keeps, err == nil)
			d.remove(t, "v")
			d.stop()
			assertNothingLeft(t, options)
		})
	}
}

// What cannot be is refused, in words that Docker shows, and leaves nothing.
func TestWhatCannotBeIsRefused(t *testing.T) {
	mounttest.RequireRoot(t)
	options := optionsIn(t)
	d := serve(t, loops(), options)
	for _, c := range []struct {
		call    string
		request any
		says    string
	}{
		{"VolumeDriver.Create", args{"Name": "../v"}, "volume name"},
		{"VolumeDriver.Create", args{"Name": ""}, "volume name"},
		{"VolumeDriver.Create", args{"Name": "v", "Opts": map[string]string{"sise": "1Gi"}}, "sise"},
		{"VolumeDriver.Create", args{"Name": "v", "Opts": map[string]string{"size": "32m"}}, "such as 1Gi"},
		{"VolumeDriver.Create", args{"Name": "v", "Opts": map[string]string{"size": "-1"}}, "such as 1Gi"},
		{"VolumeDriver.Create", args{"Name": "v", "Opts": map[string]string{"fsType": "ext4", "fstype": "xfs"}}, "differ"},
		{"VolumeDriver.Mount", args{"Name": "none", "ID": "a"}, "create it first"},
		{"VolumeDriver.Mount", args{"Name": "none"}, "id"},
		{"VolumeDriver.Unmount", args{"Name": "none", "ID": "a"}, "not found"},
		{"VolumeDriver.Remove", args{"Name": "none"}, "not found"},
		{"VolumeDriver.Create", args{"Name": strings.Repeat("v", 70<<10)}, "bytes"},
		{"VolumeDriver.Create", []string{"secret-of-an-option"}, "not the JSON"},
	} {
		d.refused(t, c.call, c.request, c.says)
	}
	response, err := d.client.Get("http://docker/VolumeDriver.List")
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	assert.Equal(t, http.StatusMethodNotAllowed, response.StatusCode)
	d.stop()
	assertNothingLeft(t, options)
}

// A caller that has gone gets no volume: it would not return it.
func TestAMountWhoseCallerHasGoneIsTakenBack(t *testing.T) {
	mounttest.RequireRoot(t)
	options := optionsIn(t)
	d := serve(t, loops(), options)
	d.create(t, "v", nil)
	ctx, cancel := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	for range 3 {
		calls.Go(func() { _, _ = d.try(ctx, "VolumeDriver.Mount", args{"Name": "v", "ID": "gone"}) })
	}
	cancel()
	calls.Wait()
	d.mount(t, "v", "a")
	d.unmount(t, "v", "a")
	d.unmount(t, "v", "gone") // a Mount that was answered before its caller went
	assert.Empty(t, mountsBelow(t, options.RootDir))
	d.remove(t, "v")
	d.stop()
	assertNothingLeft(t, options)
}

// Docker has forgotten a use. The volume is removed all the same, unless a process elsewhere has it mounted.
func TestAForgottenUseEndsWithTheVolume(t *testing.T) {
	mounttest.RequireRoot(t)
	options := optionsIn(t)
	d := serve(t, loops(), options)
	d.create(t, "v", nil)
	d.mount(t, "v", "forgotten")
	container := exec.Command("cat")
	container.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	in, err := container.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, container.Start())
	d.refused(t, "VolumeDriver.Remove", args{"Name": "v"}, "has it mounted")
	assert.Len(t, mountsBelow(t, options.RootDir), 2)
	require.NoError(t, in.Close())
	require.NoError(t, container.Wait())
	d.remove(t, "v")
	d.stop()
	assertNothingLeft(t, options)
}

// The mount of a forgotten use is gone here, and a container still has it: the volume is kept.
func TestAUseWhoseMountIsGoneHereKeepsTheVolume(t *testing.T) {
	mounttest.RequireRoot(t)
	options := optionsIn(t)
	options.RootDir += " \\ with\tblanks" // which a mountinfo escapes
	d := serve(t, loops(), options)
	d.create(t, "v", nil)
	path := d.mount(t, "v", "forgotten")
	container := exec.Command("cat")
	container.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	in, err := container.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, container.Start())
	d.refused(t, "VolumeDriver.Remove", args{"Name": "v"}, "has it mounted")
	require.NoError(t, syscall.Unmount(path, syscall.MNT_DETACH))
	d.refused(t, "VolumeDriver.Remove", args{"Name": "v"}, "has it mounted")
	require.NoError(t, in.Close())
	require.NoError(t, container.Wait())
	d.remove(t, "v")
	d.stop()
	assertNothingLeft(t, options)
}

// A Mount that cannot work is answered at once with the cause, keeps no use, and works when the cause is gone.
func TestAMountThatCannotWorkIsAnsweredAtOnce(t *testing.T) {
	mounttest.RequireRoot(t)
	options := optionsIn(t)
	options.CallTimeout = 10 * time.Minute // longer than a test may take
	d := serve(t, loops(), options)
	d.create(t, "v", nil)
	images, err := filepath.Glob(filepath.Join(options.RootDir, "plugins/*/*/images/v.img"))
	require.NoError(t, err)
	require.Len(t, images, 1)
	require.NoError(t, os.Rename(images[0], images[0]+".away"))
	d.refused(t, "VolumeDriver.Mount", args{"Name": "v", "ID": "a"}, "v.img")
	d.refused(t, "VolumeDriver.Mount", args{"Name": "v", "ID": "b"}, "v.img")
	assert.Empty(t, d.call(t, "VolumeDriver.Path", args{"Name": "v"}).Mountpoint)
	require.NoError(t, os.Rename(images[0]+".away", images[0]))
	assert.NotEmpty(t, d.mount(t, "v", "c"))
	d.unmount(t, "v", "c")
	assert.Empty(t, mountsBelow(t, options.RootDir))
	d.remove(t, "v")
	d.stop()
	assertNothingLeft(t, options)
}

// Many volumes at once, each used by many at once.
func TestManyAtOnce(t *testing.T) {
	mounttest.RequireRoot(t)
	options := optionsIn(t)
	d := serve(t, loops(), options)
	var all sync.WaitGroup
	for _, name := range []string{"a", "b", "c"} {
		all.Go(func() {
			_, err := d.try(t.Context(), "VolumeDriver.Create", args{"Name": name})
			assert.NoError(t, err)
			var users sync.WaitGroup
			for _, id := range []string{"1", "2", "3", "4", "5"} {
				users.Go(func() {
					_, err := d.try(t.Context(), "VolumeDriver.Mount", args{"Name": name, "ID": id})
					assert.NoError(t, err)
					_, err = d.try(t.Context(), "VolumeDriver.Unmount", args{"Name": name, "ID": id})
					assert.NoError(t, err)
				})
			}
			users.Wait()
			_, err = d.try(t.Context(), "VolumeDriver.Remove", args{"Name": name})
			assert.NoError(t, err)
		})
	}
	all.Wait()
	d.stop()
	assertNothingLeft(t, options)
}

// The socket belongs to its owner, and only one server has it and its records.
func TestTheSocketIsPrivate(t *testing.T) {
	mounttest.RequireRoot(t)
	options := optionsIn(t)
	d := serve(t, loops(), options)
	info, err := os.Stat(options.Socket)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	second := options
	second.StateDir, second.RuntimeDir, second.RootDir = options.StateDir+"2", options.RuntimeDir+"2", options.RootDir+"2"
	server, err := dockerserver.New(loops(), second)
	require.NoError(t, err)
	require.ErrorIs(t, server.Run(t.Context()), dockerserver.ErrSocketInUse)
	server, err = dockerserver.New(loops(), options)
	require.NoError(t, err)
	require.ErrorContains(t, server.Run(t.Context()), "locked")
	d.stop()

	require.NoError(t, os.Chmod(filepath.Dir(options.Socket), 0o777)) //nolint:gosec // that is what is refused
	server, err = dockerserver.New(loops(), options)
	require.NoError(t, err)
	require.ErrorIs(t, server.Run(t.Context()), volume.ErrInvalid)
}

func TestOptionsAreChecked(t *testing.T) {
	for name, change := range map[string]func(*dockerserver.Options){
		"socket":  func(o *dockerserver.Options) { o.Socket = "vk.sock" },
		"mode":    func(o *dockerserver.Options) { o.SocketMode = 0o666 },
		"root":    func(o *dockerserver.Options) { o.RootDir = "" },
		"state":   func(o *dockerserver.Options) { o.StateDir = o.RuntimeDir },
		"node":    func(o *dockerserver.Options) { o.NodeName = "" },
		"default": func(o *dockerserver.Options) { o.DefaultVolumeSize = -1 },
		"long":    func(o *dockerserver.Options) { o.Socket = "/" + strings.Repeat("x", 120) },
	} {
		options := optionsIn(t)
		change(&options)
		_, err := dockerserver.New(loops(), options)
		require.ErrorIs(t, err, volume.ErrInvalid, name)
	}
	_, err := dockerserver.New(nil, optionsIn(t))
	require.ErrorIs(t, err, volume.ErrInvalid)
}

// RuntimeDir is lost while a container has a volume: the volume stays as it is, until it is removed after the container.
func TestAUseWhoseRecordIsLostKeepsTheVolume(t *testing.T) {
	mounttest.RequireRoot(t)
	options := optionsIn(t)
	d := serve(t, loops(), options)
	d.create(t, "v", nil)
	d.create(t, "unused", nil)
	path := d.mount(t, "v", "lost")
	container := exec.Command("cat")
	container.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	in, err := container.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, container.Start())
	d.stop()
	require.NoError(t, os.RemoveAll(options.RuntimeDir))

	d = serve(t, loops(), options)
	assert.Equal(t, path, d.mount(t, "v", "another"))
	d.unmount(t, "v", "another")
	assert.Len(t, mountsBelow(t, options.RootDir), 2, "a container has it")
	d.remove(t, "unused")
	d.refused(t, "VolumeDriver.Remove", args{"Name": "v"}, "has it mounted")
	require.NoError(t, in.Close())
	require.NoError(t, container.Wait())
	d.remove(t, "v")
	d.stop()
	assertNothingLeft(t, options)
}
