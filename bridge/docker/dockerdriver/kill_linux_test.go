package dockerdriver_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/bridge/docker/dockerdriver"
	"github.com/volumekit/volumekit/internal/faultrun"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/volume"
)

// envLife makes this process run the steps of a life and no test. It has the directory of the machine, the volume, and the number of
// the first step.
const envLife = "DOCKERDRIVER_TEST_LIFE"

// envAll kills the program before every call, instead of before every seventh.
const envAll = "DOCKERDRIVER_ALL"

const content = "what the pod has written"

// life is the life of a volume through the plugin, on behalf of two pods.
type life struct {
	plugin *dockerdriver.Plugin
	dir    string // the directory of the machine
	volume string
}

// lifeStep is one call of the plugin. If the program was killed in it, the next program repeats it.
type lifeStep struct {
	name string
	do   func(context.Context) error
}

func (l *life) steps() []lifeStep {
	return []lifeStep{
		{"provision", l.provision},
		{"stage", l.stage},
		{"set up for a", l.setUp("a")},
		{"write", func(context.Context) error { return os.WriteFile(l.file("a"), []byte(content), 0o600) }},
		{"set up for b", l.setUp("b")},
		{"read", l.read("b")},
		{"tear down for a", l.tearDown("a")},
		{"read again", l.read("b")},
		{"tear down for b", l.tearDown("b")},
		{"unstage", l.unstage},
		{"look that the driver has unmounted", l.lookUnmounted},
		{"stage again", l.stage},
		{"set up again", l.setUp("a")},
		{"read at last", l.read("a")},
		{"tear down again", l.tearDown("a")},
		{"unstage again", l.unstage},
		{"look again that the driver has unmounted", l.lookUnmounted},
		{"delete", l.delete},
	}
}

// liveFrom runs the steps of a life from a step on, in the process that is killed. It prints the number of each finished step.
func liveFrom(dir, name string, first int) error {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	plugin, err := dockerdriver.New(dockerdriver.Options{
		Name: "example.com/images", Socket: dir + "/w.sock", Roots: []string{dir + "/root"}, SizeOption: "size",
	})
	if err != nil {
		return err
	}
	host, err := volume.NewHost(volume.HostOptions{RootDir: dir + "/agent", NodeName: "node-1"})
	if err != nil {
		return err
	}
	if err := plugin.Init(ctx, host); err != nil {
		return err
	}
	l := &life{plugin: plugin, dir: dir, volume: name}
	for n, step := range l.steps() {
		if n < first {
			continue
		}
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Println(n)
	}
	return nil
}

func (l *life) provision(ctx context.Context) error {
	claim := &v1.PersistentVolumeClaim{}
	claim.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: *oneMebi()}
	provisioner, err := l.plugin.NewProvisioner(volume.VolumeOptions{PVName: l.volume, PVC: claim})
	if err != nil {
		return err
	}
	_, err = provisioner.Provision(ctx, nil, nil)
	return err
}

func (l *life) stage(ctx context.Context) error {
	stager, err := l.plugin.NewDeviceMounter()
	if err != nil {
		return err
	}
	path, err := stager.GetDeviceMountPath(specOf(l.volume))
	if err != nil {
		return err
	}
	return stager.MountDevice(ctx, specOf(l.volume), "", path, volume.DeviceMounterArgs{})
}

func (l *life) unstage(ctx context.Context) error {
	mounter, err := l.plugin.NewDeviceMounter()
	if err != nil {
		return err
	}
	path, err := mounter.GetDeviceMountPath(specOf(l.volume))
	if err != nil {
		return err
	}
	stager, err := l.plugin.NewDeviceUnmounter()
	if err != nil {
		return err
	}
	return stager.UnmountDevice(ctx, path)
}

// lookUnmounted checks that the driver has no mount: it would have one if the plugin had omitted an Unmount call.
func (l *life) lookUnmounted(context.Context) error { return nothingMountedBelow(l.dir) }

// nothingMountedBelow returns an error if anything is mounted below dir in the mount namespace of its thread.
func nothingMountedBelow(dir string) error {
	table, err := os.ReadFile("/proc/thread-self/mountinfo")
	if strings.Contains(string(table), " "+dir+"/") {
		err = errors.Join(err, fmt.Errorf("mounted is still:\n%s", table))
	}
	return err
}

func (l *life) mounter(pod string) (volume.Mounter, error) {
	return l.plugin.NewMounter(specOf(l.volume), &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pod, UID: types.UID(pod)}})
}

func (l *life) setUp(pod string) func(context.Context) error {
	return func(ctx context.Context) error {
		mounter, err := l.mounter(pod)
		if err != nil {
			return err
		}
		return mounter.SetUp(ctx, volume.MounterArgs{})
	}
}

func (l *life) tearDown(pod string) func(context.Context) error {
	return func(ctx context.Context) error {
		unmounter, err := l.plugin.NewUnmounter(l.volume, types.UID(pod))
		if err != nil {
			return err
		}
		return unmounter.TearDown(ctx)
	}
}

func (l *life) file(pod string) string {
	mounter, err := l.mounter(pod)
	if err != nil {
		return err.Error()
	}
	return filepath.Join(mounter.GetPath(), "file")
}

func (l *life) read(pod string) func(context.Context) error {
	return func(context.Context) error {
		found, err := os.ReadFile(l.file(pod))
		if err == nil && string(found) != content {
			err = fmt.Errorf("%q is there", found)
		}
		return err
	}
}

func (l *life) delete(ctx context.Context) error {
	deleter, err := l.plugin.NewDeleter(specOf(l.volume))
	if err != nil {
		return err
	}
	return deleter.Delete(ctx)
}

// killMachine has a driver that serves loop-block and is never killed. Programs use the driver, one after the other.
type killMachine struct {
	dir       string
	program   string
	namespace *faultrun.Namespace
	wire      *wire
}

// wire is a proxy between the programs and the driver. It kills a program at one of its calls of the driver.
type wire struct {
	proxy *httputil.ReverseProxy

	mu      sync.Mutex
	program *faultrun.Run
	calls   int
	kill    wireKill
}

// wireKill is the number of the call, from 1, at which the program is killed: before the driver gets the call, or after it has
// answered. Zero kills at no call.
type wireKill struct {
	call  int
	after bool
}

func (w *wire) ServeHTTP(response http.ResponseWriter, request *http.Request) {
	w.mu.Lock()
	w.calls++
	dies := w.calls == w.kill.call
	w.mu.Unlock()
	if dies && !w.kill.after {
		w.killNow()
	}
	w.proxy.ServeHTTP(response, request)
}

func (w *wire) killNow() {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.program.Signal(syscall.SIGKILL) // The program may already have ended.
	panic(http.ErrAbortHandler)
}

func (w *wire) answered(*http.Response) error {
	w.mu.Lock()
	dies := w.calls == w.kill.call
	w.mu.Unlock()
	if dies {
		w.killNow()
	}
	return nil
}

func newKillMachine(t *testing.T) killMachine {
	t.Helper()
	namespace, err := faultrun.NewNamespace()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, namespace.Close()) })
	program, err := os.Executable()
	require.NoError(t, err)
	m := killMachine{dir: sockets(t), program: program, namespace: namespace}
	driver, err := faultrun.Start(context.WithoutCancel(t.Context()), faultrun.Program{
		Path: program, Namespace: namespace, Stdout: os.Stderr, Stderr: os.Stderr,
		Env: append(os.Environ(), envServe+"="+m.dir+":"+m.dir+"/s/d.sock"),
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, driver.Signal(syscall.SIGTERM))
		result, err := driver.Wait()
		assert.NoError(t, err)
		assert.Equal(t, 0, result.State.ExitCode())
	})
	require.Eventually(t, func() bool { _, err := os.Stat(m.dir + "/s/d.sock"); return err == nil }, time.Minute, time.Millisecond)
	m.wire = newWire(t, m.dir)
	return m
}

func newWire(t *testing.T, dir string) *wire {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "unix", dir+"/s/d.sock")
	}}
	w := &wire{}
	w.proxy = &httputil.ReverseProxy{
		Transport: transport, ModifyResponse: w.answered, ErrorLog: log.New(io.Discard, "", 0),
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: "driver"}) },
	}
	listener, err := net.Listen("unix", dir+"/w.sock")
	require.NoError(t, err)
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: w, ErrorLog: log.New(io.Discard, "", 0)}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	t.Cleanup(func() {
		assert.NoError(t, server.Close())
		assert.ErrorIs(t, <-ended, http.ErrServerClosed)
	})
	return w
}

// counts are the numbers of a life: system calls with an effect and calls of the driver in its last program, and kills in all.
type counts struct{ changes, calls, kills int }

// live runs a life to its end, in one program after another. judges[i] kills program i; later programs are not killed. The proxy
// kills the first program whose call has the number in kill.
func (m killMachine) live(t *testing.T, name string, kill wireKill, judges ...faultrun.Judge) counts {
	t.Helper()
	m.wire.mu.Lock()
	m.wire.calls, m.wire.kill = 0, kill
	m.wire.mu.Unlock()
	var c counts
	for first := 0; ; c.kills++ {
		var judge faultrun.Judge
		if c.kills < len(judges) {
			judge = judges[c.kills]
		}
		var out, complaints bytes.Buffer
		result := m.run(t, faultrun.Program{
			Path: m.program, Namespace: m.namespace, Judge: judge, Stdout: &out, Stderr: &complaints,
			Env: append(os.Environ(), fmt.Sprintf("%s=%s:%s:%d", envLife, m.dir, name, first)),
		})
		first += strings.Count(out.String(), "\n")
		if status := result.State.Sys().(syscall.WaitStatus); !result.Killed && status.Signal() != syscall.SIGKILL {
			require.Equal(t, 0, result.State.ExitCode(), "%s, killed %d times: %s", name, c.kills, &complaints)
			m.wire.mu.Lock()
			defer m.wire.mu.Unlock()
			c.changes, c.calls = result.Calls, m.wire.calls
			return c
		}
	}
}

func (m killMachine) run(t *testing.T, p faultrun.Program) faultrun.Result {
	t.Helper()
	m.wire.mu.Lock() // The proxy must know the program before its first call.
	run, err := faultrun.Start(t.Context(), p)
	m.wire.program = run
	m.wire.mu.Unlock()
	require.NoError(t, err)
	result, err := run.Wait()
	require.NoError(t, err)
	return result
}

// requireNothing requires that no mount of the machine and no directory of the volume is left.
func (m killMachine) requireNothing(t *testing.T, name string) {
	t.Helper()
	require.NoError(t, m.namespace.Do(func() error { return nothingMountedBelow(m.dir) }))
	for _, pattern := range []string{"agent/plugins/*/*/*/*", "agent/pods/*/volumes/*/*", "root/plugins/*/*/images/*"} {
		left, err := filepath.Glob(filepath.Join(m.dir, pattern))
		require.NoError(t, err)
		require.Empty(t, left, name)
	}
}

// TestAProgramThatIsKilledLosesNothing kills the program that uses the driver before a system call with an effect, and in every third
// life the next program, too. In further lives it kills the program at a call of the driver, before or after the driver has done it.
// The next program repeats the step. In the end nothing of the volume is left.
func TestAProgramThatIsKilledLosesNothing(t *testing.T) {
	mounttest.RequireRoot(t)
	m := newKillMachine(t)
	m.live(t, "first", wireKill{}) // The first life makes the directories that stay.
	whole := m.live(t, "whole", wireKill{})
	m.requireNothing(t, "whole")
	step := 7
	if os.Getenv(envAll) != "" {
		step = 1
	}
	lives, kills := 0, 0
	live := func(kill wireKill, judges ...faultrun.Judge) {
		lives++
		name := "volume-" + strconv.Itoa(lives)
		kills += m.live(t, name, kill, judges...).kills
		m.requireNothing(t, name)
	}
	for n := 1; n <= whole.changes; n += step {
		judges := []faultrun.Judge{faultrun.KillBefore(n)}
		if n/step%3 == 2 {
			judges = append(judges, faultrun.KillBefore(1+n%5))
		}
		live(wireKill{}, judges...)
	}
	for n := 1; n <= whole.calls; n++ {
		live(wireKill{call: n, after: n%2 == 0})
		if step == 1 {
			live(wireKill{call: n, after: n%2 != 0})
		}
	}
	t.Logf("killed %d times in %d lives, of %d changes and %d calls of the driver", kills, lives, whole.changes, whole.calls)
	assert.GreaterOrEqual(t, kills, lives)
}
