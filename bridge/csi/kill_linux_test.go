package csi_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/internal/faultrun"
	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins/loopblock"
)

// envKillAll has processes killed at every call, and not at some of them.
const envKillAll = "CSI_KILL_ALL"

// patience is how long a stage of a life may take; it takes a fraction of a second.
const patience = time.Minute

// programs are the executables, built without the race detector: hundreds are started.
type programs struct {
	life, second string
	// driver is the program of the driver, and the arguments that it gets for a directory.
	driver     string
	driverArgs func(dir string) []string
	driverName string
	stages     []string
}

func build(t *testing.T) programs {
	t.Helper()
	mounttest.RequireRoot(t)
	dir := t.TempDir()
	for _, pkg := range []string{"./internal/podlife", "github.com/volumekit/volumekit/internal/faultrun/become"} {
		command := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", dir+"/", pkg)
		out, err := command.CombinedOutput()
		require.NoError(t, err, string(out))
	}
	life := filepath.Join(dir, "podlife")
	return programs{
		life: life, second: filepath.Join(dir, "become"), stages: stages,
		driver: life, driverArgs: func(dir string) []string { return []string{"driver", dir} }, driverName: loopblock.Driver,
	}
}

// aim is the calls of a program that are hit. A program that was killed goes on counting when it is started again.
type aim struct {
	mu   sync.Mutex
	made int
	at   []int // in order
	hits int
	then func() faultrun.Verdict
	only func(faultrun.Call) bool // the calls that count; nil: all
}

func (a *aim) judge(c faultrun.Call) faultrun.Verdict {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.only != nil && !a.only(c) {
		return faultrun.Verdict{}
	}
	a.made++
	if a.hits == len(a.at) || a.made != a.at[a.hits] {
		return faultrun.Verdict{}
	}
	a.hits++
	return a.then()
}

// machine is a mount namespace with a driver, which a supervisor starts again, and agents that run one after the other.
type machine struct {
	programs
	dir           string
	namespace     *faultrun.Namespace
	driver, agent aim
	calls         faultrun.Calls // those that are judged
	again         bool           // a process that ends with an error is started again
	logs          lockedText

	mu        sync.Mutex
	runs      map[string]*faultrun.Run // by role
	supervise chan error

	seen map[string][]string // by stage
}

// lockedText is what several processes write.
type lockedText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lockedText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func newMachine(t *testing.T, p programs) *machine {
	t.Helper()
	namespace, err := faultrun.NewNamespace()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, namespace.Close()) })
	return &machine{
		programs: p, dir: shortDir(t), namespace: namespace, runs: map[string]*faultrun.Run{}, supervise: make(chan error, 1), seen: map[string][]string{},
	}
}

func (m *machine) startDriver(ctx context.Context) (*faultrun.Run, error) {
	return m.start(ctx, "driver", faultrun.Program{Path: m.programs.driver, Args: m.driverArgs(m.dir), Judge: m.driver.judge})
}

func (m *machine) startAgent(ctx context.Context, stage string) (*faultrun.Run, error) {
	return m.start(ctx, "agent", faultrun.Program{Path: m.life, Args: []string{"agent", m.dir, stage, m.driverName}, Judge: m.agent.judge})
}

// start starts a process in a role.
func (m *machine) start(ctx context.Context, role string, p faultrun.Program) (*faultrun.Run, error) {
	run, err := faultrun.Start(ctx, faultrun.Program{
		Path: p.Path, Args: p.Args, Judge: p.Judge, Calls: m.calls, Second: m.second, Namespace: m.namespace, Dir: "/",
		Env: []string{"PATH=" + os.Getenv("PATH"), "GOGC=off"}, Stdout: &m.logs, Stderr: &m.logs,
	})
	m.mu.Lock()
	m.runs[role] = run
	m.mu.Unlock()
	return run, err
}

// kill kills the process of a role from outside, as an operator does.
func (m *machine) kill(role string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if run := m.runs[role]; run != nil {
		_ = run.Signal(syscall.SIGKILL) // It may have ended.
	}
}

// serve keeps a driver running until stopping ends. Each is told to end once.
func (m *machine) serve(ctx, stopping context.Context) error {
	for {
		run, err := m.startDriver(ctx)
		if err != nil {
			return err
		}
		waiting, cancel := context.WithCancel(ctx)
		forget := context.AfterFunc(stopping, func() { m.terminate(waiting, run) })
		result, err := run.Wait()
		cancel()
		forget()
		switch {
		case err != nil:
			return err
		case wasKilled(result) || m.again && !result.State.Success():
		case stopping.Err() == nil || !result.State.Success():
			return fmt.Errorf("the driver has ended: %s", result.State)
		default:
			return nil
		}
	}
}

// terminate tells a driver to end once it serves: before that the signal is its death, for it has no handler yet.
func (m *machine) terminate(ctx context.Context, run *faultrun.Run) {
	for ctx.Err() == nil {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socketOf(m.dir))
		if err == nil {
			_ = conn.Close()
			_ = run.Signal(syscall.SIGTERM) // It may have been killed.
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Millisecond):
		}
	}
}

func wasKilled(r faultrun.Result) bool {
	status, ok := r.State.Sys().(syscall.WaitStatus)
	return r.Killed || ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// stages are those of internal/podlife, in their order.
var stages = []string{"first", "second", "grown", "saved", "none", "third", "deleted"}

// live lives a life: each stage is reached by an agent, which is started again when it was killed.
func (m *machine) live(ctx context.Context, judge func(stage string) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stopping, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		err := m.serve(ctx, stopping)
		if err != nil {
			cancel() // No agent ever ends without one.
		}
		m.supervise <- err
	}()
	var err error
	for _, stage := range m.stages {
		if err = m.reach(ctx, stage); err == nil {
			err = judge(stage)
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", stage, err)
			break
		}
	}
	stop()
	return errors.Join(err, <-m.supervise)
}

func (m *machine) reach(ctx context.Context, stage string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		run, err := m.startAgent(ctx, stage)
		if err != nil {
			return err
		}
		result, err := run.Wait()
		switch {
		case err != nil || ctx.Err() != nil:
			return errors.Join(err, ctx.Err())
		case wasKilled(result) || m.again && !result.State.Success():
		case !result.State.Success():
			return fmt.Errorf("the agent has ended: %s", result.State)
		default:
			return nil
		}
	}
}

// look returns what is mounted and attached below the machine's directory, without what differs from life to life.
func (m *machine) look(ctx context.Context) ([]string, error) {
	var found []string
	err := m.namespace.Do(func() error {
		table, err := os.ReadFile("/proc/thread-self/mountinfo")
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(table)) {
			if path := strings.Fields(line)[4]; strings.HasPrefix(path, m.dir+"/") {
				found = append(found, "mounted: "+m.general(path))
			}
		}
		return nil
	})
	devices, listErr := loop.New(loop.Options{}).Devices(ctx)
	for _, d := range devices {
		if strings.HasPrefix(d.BackingPath, m.dir+"/") {
			found = append(found, "attached: "+m.general(d.BackingPath))
		}
	}
	slices.Sort(found)
	return found, errors.Join(err, listErr)
}

var differs = regexp.MustCompile(`(pvc-)?[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{32,}`)

func (m *machine) general(path string) string {
	return differs.ReplaceAllString(strings.TrimPrefix(path, m.dir+"/"), "*")
}

// files are those that a life has left. Directories of pods that are gone, without a file, are no loss: an agent that was killed while it
// removed them leaves them, and the next one tells of them.
func (m *machine) files() ([]string, error) {
	var found []string
	err := filepath.WalkDir(m.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && path != m.dir && (!d.IsDir() || !strings.HasPrefix(path, filepath.Join(m.dir, "root/pods")+"/")) {
			found = append(found, m.general(path))
		}
		if d != nil && d.IsDir() && filepath.Base(path) == "objects" {
			return fs.SkipDir // How many files a store has says nothing.
		}
		return err
	})
	return found, err
}

// compare returns an error unless the mounts and devices are those of a life without a kill. A volume that is mounted twice is a difference.
func (m *machine) compare(ctx context.Context, whole *machine) func(string) error {
	return func(stage string) error {
		here, err := m.look(ctx)
		if err == nil && whole == m {
			m.seen[stage] = here
		}
		if err == nil && !slices.Equal(here, whole.seen[stage]) {
			err = fmt.Errorf("there is %q, and there should be %q", here, whole.seen[stage])
		}
		return err
	}
}

// end looks that nothing is left but directories that are made once.
func (m *machine) end(t *testing.T, whole *machine) {
	t.Helper()
	here, err := m.look(t.Context())
	require.NoError(t, err)
	assert.Empty(t, here)
	for _, dir := range []string{"driver-state", "driver-run", "run", "state"} {
		if _, err := os.Lstat(filepath.Join(m.dir, dir)); err != nil {
			continue // Only our own driver has its directories.
		}
		records, err := record.Peek(filepath.Join(m.dir, dir))
		require.NoError(t, err)
		assert.Empty(t, records, dir)
	}
	files, err := m.files()
	require.NoError(t, err)
	if m == whole {
		m.seen["files"] = slices.Clone(files)
	}
	assert.Empty(t, slices.DeleteFunc(files, func(file string) bool {
		return slices.Contains(whole.seen["files"], file) || m.again && isEmptyLog(file)
	}), "left")
}

// isEmptyLog reports whether a file is one of a log of records, which has none: a process whose calls fail while it ends leaves it.
func isEmptyLog(file string) bool {
	return slices.Contains([]string{"records.log", ".tmp-records.log", "log.record"}, filepath.Base(file))
}

// ways are those in which processes are killed: at the calls of one of them.
func ways(m *machine) map[string]func() *aim {
	at := func(a *aim, then func() faultrun.Verdict) func() *aim {
		return func() *aim { a.then = then; return a }
	}
	return map[string]func() *aim{
		"the agent":                  at(&m.agent, faultrun.Kill),
		"the driver":                 at(&m.driver, faultrun.Kill),
		"both":                       at(&m.driver, func() faultrun.Verdict { m.kill("agent"); return faultrun.Kill() }),
		"the agent in a call":        at(&m.driver, func() faultrun.Verdict { m.kill("agent"); return faultrun.Verdict{} }),
		"the driver below the agent": at(&m.agent, func() faultrun.Verdict { m.kill("driver"); return faultrun.Verdict{} }),
	}
}

// TestNothingIsLostOverTheSocket: the agent, the driver, or both are killed before a system call that changes the world, while pods get
// volumes, write, hand them on, expand them and give them back. The killed process is started again, and in each third life is killed
// once more while it recovers. Each pod reads what the first one has written, nothing is mounted or attached twice, and nothing is left.
func TestNothingIsLostOverTheSocket(t *testing.T) {
	programs := build(t)
	whole := newMachine(t, programs)
	require.NoError(t, whole.live(t.Context(), whole.compare(t.Context(), whole)), "%s", &whole.logs)
	whole.end(t, whole)
	require.Len(t, whole.seen["first"], 8, "two devices and a lock on one, and the mounts of the driver and the agent: %q", whole.seen["first"])
	for way := range ways(whole) {
		t.Run(strings.ReplaceAll(way, " ", "-"), func(t *testing.T) { killEvery(t, whole, way) })
	}
}

// killPoints is the number of calls at which the ordinary run kills, for each way.
const killPoints = 5

func killEvery(t *testing.T, whole *machine, way string) {
	calls := ways(whole)[way]().made
	step := calls/killPoints + 1
	if os.Getenv(envKillAll) != "" {
		step = 1
	}
	lives, kills := 0, 0
	for n := 1; n <= calls; n += step {
		m := newMachine(t, whole.programs)
		aim := ways(m)[way]()
		aim.at = []int{n}
		if lives%3 == 2 {
			aim.at = append(aim.at, n+1+n%23)
		}
		require.NoError(t, m.live(t.Context(), m.compare(t.Context(), whole)), "killed %s at calls %v of %d: %s", way, aim.at, calls, &m.logs)
		m.end(t, whole)
		if t.Failed() {
			require.FailNow(t, "see above", "killed %s at calls %v of %d: %s", way, aim.at, calls, &m.logs)
		}
		lives++
		kills += aim.hits
	}
	t.Logf("killed %s %d times in %d lives of %d calls", way, kills, lives, calls)
	assert.GreaterOrEqual(t, kills, lives*9/10)
}
