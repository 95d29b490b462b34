package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/internal/faultrun"
	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// envAll has the driver killed before every call, and not before some of them; and Docker go through all of its cycles.
const envAll = "DOCKERDRIVER_ALL"

// patience is how long anything may take; it takes milliseconds.
const patience = time.Minute

// programs are the executables, built without the race detector: hundreds are started.
type programs struct{ driver, second string }

func build(t testing.TB) programs {
	t.Helper()
	mounttest.RequireRoot(t)
	dir := t.TempDir()
	for _, pkg := range []string{".", "github.com/volumekit/volumekit/internal/faultrun/become"} {
		command := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", dir+"/", pkg)
		out, err := command.CombinedOutput()
		require.NoError(t, err, string(out))
	}
	return programs{driver: filepath.Join(dir, "dockerdriver"), second: filepath.Join(dir, "become")}
}

// machine is a mount namespace in which drivers run one after the other, and the caller of them, as Docker is one.
type machine struct {
	programs

	dir       string
	namespace *faultrun.Namespace
	judges    []faultrun.Judge // of the next drivers; none: no driver is killed any more
	process   *process
	logs      strings.Builder
	kills     int
	client    *http.Client
	mounted   string // what Mount answered last
}

// process is one driver that runs.
type process struct {
	run    *faultrun.Run
	ended  chan struct{}
	result faultrun.Result
	err    error
}

func newMachine(t *testing.T, p programs, judges ...faultrun.Judge) *machine {
	t.Helper()
	namespace, err := faultrun.NewNamespace()
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "m") //nolint:usetesting // the path of a socket must be short
	require.NoError(t, err)
	m := &machine{programs: p, dir: dir, namespace: namespace, judges: judges}
	t.Cleanup(func() { assert.NoError(t, errors.Join(namespace.Close(), os.RemoveAll(dir))) })
	m.client = &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var dialer net.Dialer
			return dialer.DialContext(ctx, "unix", m.path("s/d.sock"))
		},
	}}
	return m
}

func (m *machine) path(name string) string { return filepath.Join(m.dir, name) }

// start starts a driver.
func (m *machine) start(ctx context.Context) error {
	var judge faultrun.Judge
	if len(m.judges) > 0 {
		judge, m.judges = m.judges[0], m.judges[1:]
	}
	run, err := faultrun.Start(ctx, faultrun.Program{
		Path: m.driver, Second: m.second, Namespace: m.namespace, Dir: "/", Judge: judge,
		Args:   []string{"-node", "node-1", "-socket", m.path("s/d.sock"), "-root", m.path("root"), "-run", m.path("run")},
		Env:    []string{"PATH=" + os.Getenv("PATH"), "GOGC=off"},
		Stdout: &m.logs, Stderr: &m.logs,
	})
	if err != nil {
		return err
	}
	p := &process{run: run, ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		p.result, p.err = run.Wait()
	}()
	m.process = p
	return nil
}

// errNoAnswer says that a driver was killed, or did not listen yet.
var errNoAnswer = errors.New("no answer")

// call makes a call until a driver has answered it, as Docker does. None of the answers may be an error.
func (m *machine) call(ctx context.Context, call string, request map[string]any) error {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		if m.process == nil {
			if err := m.start(ctx); err != nil {
				return err
			}
		}
		err := m.try(limited, call, request)
		if err == nil {
			return nil
		}
		if limited.Err() != nil || !errors.Is(err, errNoAnswer) {
			return fmt.Errorf("%s: %w", call, err)
		}
	}
}

// try makes a call, and takes note if the driver was killed meanwhile.
func (m *machine) try(ctx context.Context, call string, request map[string]any) error {
	err := m.post(ctx, call, request)
	if err != nil && !errors.Is(err, errNoAnswer) {
		return err
	}
	select {
	case <-m.process.ended:
	case <-time.After(time.Millisecond): // between two attempts to reach a driver that starts
		return err
	}
	if m.process.err != nil || !m.process.result.Killed {
		return fmt.Errorf("the driver has ended: %w", errors.Join(m.process.err, errors.New(m.logs.String())))
	}
	m.kills++
	m.process = nil
	return err
}

func (m *machine) post(ctx context.Context, call string, request map[string]any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://docker/VolumeDriver."+call, bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := m.client.Do(r)
	if err != nil {
		return fmt.Errorf("%w: %w", errNoAnswer, err)
	}
	defer func() { _ = response.Body.Close() }() // it is read to its end
	var answer struct{ Err, Mountpoint string }
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return fmt.Errorf("%w: %w", errNoAnswer, err)
	}
	if answer.Err != "" {
		return errors.New(answer.Err)
	}
	if call == "Mount" {
		m.mounted = answer.Mountpoint
	}
	return nil
}

const content = "what the container has written"

// live lives a life of a volume with two uses at once, and a third one that finds what the first has written.
func (m *machine) live(ctx context.Context) error {
	use := func(id string) map[string]any { return map[string]any{"Name": "data", "ID": id} }
	name := map[string]any{"Name": "data"}
	for _, step := range []struct {
		call    string
		request map[string]any
		then    func() error
	}{
		{"Create", map[string]any{"Name": "data", "Opts": map[string]string{"size": "8Mi"}}, nil},
		{"Mount", use("first"), m.write},
		{"Mount", use("second"), m.read},
		{"Get", name, m.read},
		{"Unmount", use("first"), m.read},
		{"Unmount", use("second"), nil},
		{"Mount", use("third"), m.read},
		{"Unmount", use("third"), nil},
		{"Remove", name, nil},
	} {
		err := m.call(ctx, step.call, step.request)
		if step.call == "Remove" && err != nil && strings.Contains(err.Error(), "not found") {
			err = nil // the driver was killed after it had removed the volume; Docker forgets it then
		}
		if err == nil && step.then != nil {
			err = m.namespace.Do(step.then)
		}
		if err != nil {
			return fmt.Errorf("%s %v: %w", step.call, step.request, err)
		}
	}
	return nil
}

func (m *machine) write() error {
	if err := m.mountedOnce(); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(m.mounted, "file"), []byte(content), 0o600)
}

func (m *machine) read() error {
	if err := m.mountedOnce(); err != nil {
		return err
	}
	found, err := os.ReadFile(filepath.Join(m.mounted, "file"))
	if err == nil && string(found) != content {
		err = fmt.Errorf("%q is there, and %q was written", found, content)
	}
	return err
}

// mountedOnce makes sure that nothing lies on another mount: where it is staged and where it is set up.
func (m *machine) mountedOnce() error {
	mounts, err := m.mounts()
	if err != nil {
		return err
	}
	if !slices.Contains(mounts, m.mounted) || len(slices.Compact(slices.Sorted(slices.Values(mounts)))) != 2 || len(mounts) != 2 {
		return fmt.Errorf("mounted are %q", mounts)
	}
	return nil
}

// mounts are the mount points below the machine's directory.
func (m *machine) mounts() ([]string, error) {
	table, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	var mounts []string
	for line := range strings.Lines(string(table)) {
		if fields := strings.Fields(line); strings.HasPrefix(fields[4], m.dir+"/") {
			mounts = append(mounts, fields[4])
		}
	}
	return mounts, nil
}

// stop tells the driver to stop, and returns false when it was killed meanwhile.
func (m *machine) stop(t *testing.T) bool {
	t.Helper()
	require.NoError(t, m.process.run.Signal(syscall.SIGTERM))
	<-m.process.ended
	require.NoError(t, m.process.err)
	if m.process.result.Killed {
		m.kills++
		return false
	}
	assert.Equal(t, 0, m.process.result.State.ExitCode(), "a driver that is told to stop: %s", &m.logs)
	return true
}

// end stops the driver, and looks that nothing is left.
func (m *machine) end(t *testing.T) {
	t.Helper()
	if m.process == nil {
		require.NoError(t, m.call(t.Context(), "List", nil))
	}
	for !m.stop(t) {
		m.process = nil
		require.NoError(t, m.call(t.Context(), "List", nil))
	}
	require.NoError(t, m.namespace.Do(func() error {
		mounts, err := m.mounts()
		assert.Empty(t, mounts)
		return err
	}))
	devices, err := loop.New(loop.Options{}).Devices(t.Context())
	require.NoError(t, err)
	for _, d := range devices {
		assert.False(t, strings.HasPrefix(d.BackingPath, m.dir+"/"), "attached: %s", d.BackingPath)
	}
	for _, dir := range []string{"root/state/volumes", "root/state/node", "run/uses", "run/node"} {
		records, err := record.Peek(m.path(dir))
		require.NoError(t, err)
		assert.Empty(t, records)
	}
	for _, pattern := range []string{"root/pods/*", "root/plugins/volumekit.io/loop-block/*/*", "s/*"} {
		left, err := filepath.Glob(m.path(pattern))
		require.NoError(t, err)
		assert.Empty(t, left)
	}
}

// TestADriverThatIsKilledLosesNothing: the driver is killed before a system call that changes the world, its own or of a program
// that it runs, and in each third life the next one is too. The caller repeats what had no answer, as Docker does.
func TestADriverThatIsKilledLosesNothing(t *testing.T) {
	p := build(t)
	whole := newMachine(t, p)
	require.NoError(t, whole.live(t.Context()), "%s", &whole.logs)
	whole.end(t)
	calls := whole.process.result.Calls
	step := 13
	if os.Getenv(envAll) != "" {
		step = 1
	}
	kills := 0
	for n := 1; n <= calls; n += step {
		judges := []faultrun.Judge{faultrun.KillBefore(n)}
		if n/step%3 == 2 {
			judges = append(judges, faultrun.KillBefore(1+n%23))
		}
		m := newMachine(t, p, judges...)
		require.NoError(t, m.live(t.Context()), "killed before call %d of %d: %s", n, calls, &m.logs)
		m.end(t)
		kills += m.kills
	}
	t.Logf("killed %d times, in lives of %d calls", kills, calls)
	assert.GreaterOrEqual(t, kills, calls/step*9/10)
}
