package dockerdriver_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/bridge/docker/dockerdriver"
	"github.com/volumekit/volumekit/bridge/docker/dockerserver"
	"github.com/volumekit/volumekit/internal/faultrun"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volume/volumetest"
)

// envServe has the directory and the socket of a server that is to be served in this process, and no test.
const envServe = "DOCKERDRIVER_TEST_SERVE"

func TestMain(m *testing.M) {
	faultrun.Main()
	if life := strings.Split(os.Getenv(envLife), ":"); len(life) == 3 {
		first, err := strconv.Atoi(life[2])
		if err == nil {
			err = liveFrom(life[0], life[1], first)
		}
		exit(err)
	}
	if dir, socket, ok := strings.Cut(os.Getenv(envServe), ":"); ok {
		exit(serve(dir, socket))
	}
	mounttest.Main(m)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serve serves loop-block to Docker until SIGTERM.
func serve(dir, socket string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	server, err := dockerserver.New(loopblock.New(loopblock.Options{}), dockerserver.Options{
		Socket: socket, RootDir: dir + "/root", StateDir: dir + "/state", RuntimeDir: dir + "/run", NodeName: "node-1",
	})
	if err != nil {
		return err
	}
	return server.Run(ctx)
}

const name = "example.com/images"

// sockets returns a directory whose path is short.
func sockets(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "s") //nolint:usetesting // the path of a socket must be short
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// Loop-block, served to Docker and driven from there, keeps the contract of a plugin.
func TestLoopBlockBehindBothBridges(t *testing.T) {
	mounttest.RequireRoot(t)
	dir, socket := t.TempDir(), filepath.Join(sockets(t), "s", "d.sock")
	program, err := os.Executable()
	require.NoError(t, err)
	server := exec.Command(program)
	server.Env, server.Stderr = append(os.Environ(), envServe+"="+dir+":"+socket), os.Stderr
	server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // this test may be killed
	require.NoError(t, server.Start())
	t.Cleanup(func() {
		assert.NoError(t, server.Process.Signal(syscall.SIGTERM))
		assert.NoError(t, server.Wait())
	})
	require.Eventually(t, func() bool { _, err := os.Stat(socket); return err == nil }, time.Minute, time.Millisecond)
	volumetest.Run(t, volumetest.Config{
		NewPlugin: func(t testing.TB) volume.VolumePlugin {
			plugin, err := dockerdriver.New(dockerdriver.Options{Name: name, Socket: socket, Roots: []string{dir + "/root"}, SizeOption: "size"})
			require.NoError(t, err)
			return plugin
		},
		Require: volume.CapProvision | volume.CapDelete | volume.CapPersistent | volume.CapDeviceMount,
		Shared:  true, Lifetime: volumetest.LifetimeOfStorage, FSGroup: true,
	})
}

// A driver that answers wrongly gets no mount, and each error has the class that says what may be there.
func TestHostileAnswers(t *testing.T) {
	mounttest.RequireMounts(t)
	allowed := t.TempDir()
	require.NoError(t, os.Symlink("/etc", filepath.Join(allowed, "link")))
	require.NoError(t, os.Mkdir(filepath.Join(allowed, "plain"), 0o700))
	path := func(p string) string { return fmt.Sprintf(`{"Mountpoint": %q}`, p) }
	for what, c := range map[string]struct {
		answer string
		is     error
	}{
		"outside":            {path("/etc"), dockerdriver.ErrPath},
		"back steps":         {path(allowed + "/../../../../etc"), dockerdriver.ErrPath},
		"relative":           {path("etc"), dockerdriver.ErrPath},
		"none":               {path(""), dockerdriver.ErrPath},
		"the root itself":    {path(allowed), dockerdriver.ErrPath},
		"not clean":          {path(allowed + "/plain/../plain"), dockerdriver.ErrPath},
		"a link":             {path(allowed + "/link"), dockerdriver.ErrPath},
		"no mount":           {path(allowed + "/plain"), dockerdriver.ErrPath},
		"not JSON":           {"<html>", volume.ErrUncertain},
		"another type":       {`{"Mountpoint": 5}`, volume.ErrUncertain},
		"oversized":          {`{"Mountpoint": "` + strings.Repeat("x", 2<<20) + `"}`, volume.ErrUncertain},
		"oversized blanks":   {path(allowed+"/plain") + strings.Repeat(" ", 2<<20), volume.ErrUncertain},
		"empty":              {"", volume.ErrUncertain},
		"an error":           {`{"Err": "no disk"}`, volume.ErrUncertain},
		"slow, then nothing": {"slow", volume.ErrUncertain},
	} {
		t.Run(what, func(t *testing.T) {
			socket := filepath.Join(sockets(t), "d.sock")
			answers(t, socket, c.answer)
			options := dockerdriver.Options{
				Name: name, Socket: socket, Roots: []string{allowed},
				PlainDirectories: what != "no mount", // so that nothing but the path itself is refused
			}
			if c.answer == "slow" { // Other answers may take long on a busy machine.
				options.CallTimeout = 300 * time.Millisecond
			}
			plugin := newPlugin(t, options)
			spec := specOf("v")
			stager, err := plugin.NewDeviceMounter()
			require.NoError(t, err)
			staging, err := stager.GetDeviceMountPath(spec)
			require.NoError(t, err)
			err = stager.MountDevice(t.Context(), spec, "", staging, volume.DeviceMounterArgs{})
			require.ErrorIs(t, err, c.is)
			require.ErrorIs(t, err, volume.ErrUncertain, "the driver may have mounted")
			assert.Less(t, len(err.Error()), 1000)
			_, err = mount.New(mount.Options{}).Lookup(t.Context(), staging)
			require.ErrorIs(t, err, mount.ErrNotMounted)
		})
	}
	plugin, err := dockerdriver.New(dockerdriver.Options{Name: name, Socket: allowed + "/none.sock", Roots: []string{allowed}})
	require.NoError(t, err)
	provisioner, err := plugin.NewProvisioner(volume.VolumeOptions{PVName: "v", PVC: &v1.PersistentVolumeClaim{
		Spec: v1.PersistentVolumeClaimSpec{Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: *oneMebi()}}},
	}})
	require.NoError(t, err)
	_, err = provisioner.Provision(t.Context(), nil, nil)
	require.ErrorIs(t, err, volume.ErrTransient, "the driver is down")
}

// A driver that refuses a question has not said that a volume is gone, or unmounted. Its list says so.
func TestARefusedQuestionProvesNothing(t *testing.T) {
	mounttest.RequireMounts(t)
	const refusal, listed, empty = `{"Err": "the storage cannot be reached"}`, `{"Volumes": [{"Name": "v"}]}`, `{"Volumes": []}`
	for what, c := range map[string]struct {
		list     string
		is, path error // of Delete, and of UnmountDevice
	}{
		"the list has it":           {listed, volume.ErrTransient, volume.ErrUncertain},
		"the list is refused":       {refusal, volume.ErrTransient, volume.ErrUncertain},
		"the list is wrong":         {"<html>", volume.ErrTransient, volume.ErrUncertain},
		"the list does not have it": {empty, nil, nil},
	} {
		t.Run(what, func(t *testing.T) {
			socket := filepath.Join(sockets(t), "d.sock")
			answersTo(t, socket, func(path string) string {
				if path == "/VolumeDriver.List" {
					return c.list
				}
				return refusal
			})
			plugin := newPlugin(t, dockerdriver.Options{Name: name, Socket: socket, Roots: []string{t.TempDir()}})
			deleter, err := plugin.NewDeleter(specOf("v"))
			require.NoError(t, err)
			require.ErrorIs(t, deleter.Delete(t.Context()), c.is)
			stager, err := plugin.NewDeviceUnmounter()
			require.NoError(t, err)
			mounter, err := plugin.NewDeviceMounter()
			require.NoError(t, err)
			staging, err := mounter.GetDeviceMountPath(specOf("v"))
			require.NoError(t, err)
			require.NoError(t, os.MkdirAll(staging, 0o700))
			require.ErrorIs(t, stager.UnmountDevice(t.Context(), staging), c.path)
			if c.path != nil {
				assert.DirExists(t, staging, "it says that Unmount is owed")
			}
		})
	}
}

// Docker's protocol has no mount options, so a class that has some gets no volume.
func TestMountOptionsAreRefused(t *testing.T) {
	plugin := newPlugin(t, dockerdriver.Options{Name: name, Socket: "/none/d.sock", Roots: []string{"/none"}})
	provisioner, err := plugin.NewProvisioner(volume.VolumeOptions{PVName: "v", MountOptions: []string{"noatime"}, PVC: &v1.PersistentVolumeClaim{
		Spec: v1.PersistentVolumeClaimSpec{Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: *oneMebi()}}},
	}})
	require.NoError(t, err)
	_, err = provisioner.Provision(t.Context(), nil, nil)
	require.ErrorIs(t, err, volume.ErrInfeasible)
}

func newPlugin(t *testing.T, options dockerdriver.Options) *dockerdriver.Plugin {
	t.Helper()
	plugin, err := dockerdriver.New(options)
	require.NoError(t, err)
	host, err := volume.NewHost(volume.HostOptions{RootDir: t.TempDir(), NodeName: "node-1"})
	require.NoError(t, err)
	require.NoError(t, plugin.Init(t.Context(), host))
	return plugin
}

func specOf(handle string) *volume.Spec {
	return volume.NewSpecFromPersistentVolume(&v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: handle},
		Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{
			CSI: &v1.CSIPersistentVolumeSource{Driver: "images.example.com", VolumeHandle: handle},
		}},
	}, false)
}

// answers serves one answer to every call until the test ends.
func answers(t *testing.T, socket, answer string) {
	t.Helper()
	answersTo(t, socket, func(string) string { return answer })
}

// answersTo serves an answer for each path until the test ends.
func answersTo(t *testing.T, socket string, answerTo func(path string) string) {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		answer := answerTo(r.URL.Path)
		if answer == "slow" {
			<-r.Context().Done()
			return
		}
		_, _ = io.WriteString(w, answer)
	})}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	t.Cleanup(func() {
		assert.NoError(t, server.Close())
		assert.ErrorIs(t, <-ended, http.ErrServerClosed)
	})
}

func oneMebi() *resource.Quantity { return resource.NewQuantity(1<<20, resource.BinarySI) }
