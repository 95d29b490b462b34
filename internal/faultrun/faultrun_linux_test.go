package faultrun_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/faultrun"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// envProgram makes this binary one of the programs that the tests run.
const envProgram = "VOLUMEKIT_FAULTRUN_TEST_PROGRAM"

func TestMain(m *testing.M) {
	faultrun.Main()
	if name := os.Getenv(envProgram); name != "" {
		if err := programs()[name](os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	mounttest.Main(m)
}

func programs() map[string]func(args []string) error {
	return map[string]func(args []string) error{
		"make":     makeDirectories,
		"threads":  makeInThreads,
		"children": makeInChildren,
		"mount":    mountMemory,
		"write":    writeEverywhere,
		"bind":     func(names []string) error { return bind(names, 0) },
		"old bind": func(names []string) error { return bind(names, mount.AllFeatures) },
		"wait":     waitForever,
		"run":      runAndDie,
	}
}

// makeDirectories makes one directory after the other.
func makeDirectories(names []string) error {
	for _, name := range names {
		if err := os.Mkdir(name, 0o700); err != nil {
			return err
		}
	}
	return nil
}

// makeInThreads makes each directory, and another below it, in a thread of its own, all at once.
func makeInThreads(names []string) error {
	var all sync.WaitGroup
	errs := make([]error, len(names))
	for i, name := range names {
		all.Go(func() {
			runtime.LockOSThread()
			errs[i] = makeDirectories([]string{name, name + "/below"})
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// makeInChildren makes each directory in a process of its own.
func makeInChildren(names []string) error {
	for _, name := range names {
		child, err := os.StartProcess("/proc/self/exe", []string{"child", name}, &os.ProcAttr{
			Env: []string{envProgram + "=make", "GORACE=atexit_sleep_ms=0"}, Files: []*os.File{nil, nil, os.Stderr},
		})
		if err != nil {
			return err
		}
		state, err := child.Wait()
		if err != nil || !state.Success() {
			return fmt.Errorf("child: %v %w", state, err)
		}
	}
	return nil
}

func mountMemory(names []string) error {
	for _, name := range names {
		if err := unix.Mount("memory", name, "tmpfs", 0, ""); err != nil {
			return err
		}
	}
	return nil
}

func waitForever([]string) error { return unix.Pause() }

// runAndDie is a runner that is killed while its program runs.
func runAndDie([]string) error {
	_, err := faultrun.Start(context.Background(), faultrun.Program{
		Path: "/proc/self/exe", Args: []string{"wait"}, Env: append(os.Environ(), envProgram+"=wait"), Stdout: os.Stdout,
	})
	if err != nil {
		return err
	}
	return unix.Kill(os.Getpid(), unix.SIGKILL)
}

// writeEverywhere writes to a pipe, to the kernel and to a file: only the last, and making it, change a disk.
func writeEverywhere(names []string) error {
	fmt.Println("to a pipe")
	null, err := os.OpenFile("/dev/null", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if _, err := null.WriteString("text"); err != nil {
		return err
	}
	return os.WriteFile(names[0], []byte("to a file"), 0o600)
}

// bind binds the first directory at the second. One mount too many is told of in words about mounts.
func bind(names []string, without mount.Feature) error {
	m := mount.New(mount.Options{Without: without})
	err := m.Mount(context.Background(), mount.Request{Source: names[0], Target: names[1], Options: []string{"bind"}})
	if errors.Is(err, mount.ErrTooManyMounts) && errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("limit: %w", err)
	}
	return err
}

// run runs one of the programs to its end.
func run(t *testing.T, p faultrun.Program, name string, args ...string) (faultrun.Result, string) {
	t.Helper()
	var stderr bytes.Buffer
	p.Path, p.Args, p.Stderr = "/proc/self/exe", args, &stderr
	p.Env = environment(name)
	started, err := faultrun.Start(t.Context(), p)
	requireFilter(t, err, &stderr)
	result, err := started.Wait()
	require.NoError(t, err)
	return result, stderr.String()
}

// environment makes this binary one of the programs. One with the race detector would sleep for a second before it ends.
func environment(program string) []string {
	return append(os.Environ(), envProgram+"="+program, "GORACE=atexit_sleep_ms=0")
}

// requireFilter skips where the kernel has no such filters.
func requireFilter(t *testing.T, err error, stderr fmt.Stringer) {
	t.Helper()
	if err != nil && (errors.Is(err, errors.ErrUnsupported) || strings.Contains(stderr.String(), "seccomp filter")) && os.Getenv("CI") != "true" {
		t.Skip("missing: a seccomp filter with a listener: " + stderr.String())
	}
	require.NoError(t, err, stderr)
}

// paths returns n paths in a new directory.
func paths(t *testing.T, n int) []string {
	t.Helper()
	dir := t.TempDir()
	var all []string
	for i := range n {
		all = append(all, filepath.Join(dir, fmt.Sprint(i)))
	}
	return all
}

func existing(names []string) int {
	n := 0
	for _, name := range names {
		if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
			n++
		}
	}
	return n
}

func TestOneCounterSeesTheCallsOfAllThreads(t *testing.T) {
	names := paths(t, 8)
	threads := map[int]bool{}
	var numbers []int
	judge := func(c faultrun.Call) faultrun.Verdict {
		threads[c.Thread] = true
		numbers = append(numbers, c.N)
		return faultrun.Verdict{}
	}
	result, stderr := run(t, faultrun.Program{Judge: judge}, "threads", names...)
	require.True(t, result.State.Success(), stderr)
	assert.Equal(t, 16, result.Calls)
	assert.Len(t, threads, 8)
	assert.Equal(t, []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, numbers)
	assert.False(t, result.Killed)
}

func TestOneCounterSeesTheCallsOfChildren(t *testing.T) {
	names := paths(t, 3)
	result, stderr := run(t, faultrun.Program{}, "children", names...)
	require.True(t, result.State.Success(), stderr)
	assert.Equal(t, 3, result.Calls)
	assert.Equal(t, 3, existing(names))
}

// Every n leaves exactly what the calls before n made, also when threads make them at once.
func TestKilledBeforeACallLeavesIt(t *testing.T) {
	for _, program := range []string{"make", "threads", "children"} {
		made := 4
		if program == "threads" {
			made = 8 // each makes two
		}
		for n := 1; n <= made+1; n++ {
			names := paths(t, 4)
			result, stderr := run(t, faultrun.Program{Judge: faultrun.KillBefore(n)}, program, names...)
			all := names
			if program == "threads" {
				for _, name := range names {
					all = append(all, name+"/below")
				}
			}
			assert.Equal(t, n-1, existing(all), "%s, killed before call %d: %s", program, n, stderr)
			assert.Equal(t, n <= made, result.Killed, "%s, killed before call %d", program, n)
			if result.Killed {
				assert.Equal(t, syscall.SIGKILL, result.State.Sys().(syscall.WaitStatus).Signal(), "%s, killed before call %d", program, n)
				assert.Equal(t, n, result.Calls, "%s, killed before call %d", program, n)
			}
		}
	}
}

func TestACallIsMadeToFail(t *testing.T) {
	names := paths(t, 3)
	result, stderr := run(t, faultrun.Program{Judge: faultrun.FailAt(2, unix.ENOSPC)}, "make", names...)
	assert.Equal(t, 1, result.State.ExitCode())
	assert.Contains(t, stderr, "mkdir "+names[1]+": no space left on device")
	assert.Equal(t, 1, existing(names), "the call that failed has not happened")
	assert.Equal(t, 2, result.Calls)
}

// TestTheLimitOfMountsIsNoWantOfSpace lets the calls fail that the kernel makes fail when a mount namespace is full. The limit
// itself, fs.mount-max, is one of the whole machine and is left alone.
func TestTheLimitOfMountsIsNoWantOfSpace(t *testing.T) {
	mounttest.RequireMounts(t)
	for call, program := range map[uint32]string{unix.SYS_MOVE_MOUNT: "bind", unix.SYS_OPEN_TREE: "bind", unix.SYS_MOUNT: "old bind"} {
		names := paths(t, 2)
		require.NoError(t, os.Mkdir(names[0], 0o700))
		judge := func(c faultrun.Call) faultrun.Verdict {
			if c.Number == call {
				return faultrun.Fail(unix.ENOSPC)
			}
			return faultrun.Verdict{}
		}
		result, stderr := run(t, faultrun.Program{Judge: judge, Calls: faultrun.Fallible}, program, names...)
		assert.Equal(t, 1, result.State.ExitCode())
		assert.Contains(t, stderr, "limit: ", program)
		assert.Contains(t, stderr, "fs.mount-max", program)
		assert.NotContains(t, stderr, "no space", program)
		assert.Equal(t, 1, existing(names), "the target that was made is gone")
	}
}

// The first call is delayed until the others have happened, which it does not hold up.
func TestACallThatIsDelayedHoldsUpNoOther(t *testing.T) {
	names := paths(t, 4)
	var order []string
	judge := func(c faultrun.Call) faultrun.Verdict {
		order = append(order, c.String())
		if c.N == 1 {
			return faultrun.Delay(50 * time.Millisecond)
		}
		return faultrun.Verdict{}
	}
	result, stderr := run(t, faultrun.Program{Judge: judge}, "threads", names...)
	require.True(t, result.State.Success(), stderr)
	assert.Equal(t, 4, existing(names))
	assert.Len(t, order, 8)
}

func TestCallsTellWhatTheyAreAbout(t *testing.T) {
	names := paths(t, 1)
	var told []string
	judge := func(c faultrun.Call) faultrun.Verdict {
		told = append(told, c.String())
		return faultrun.Verdict{}
	}
	run(t, faultrun.Program{Judge: judge}, "make", names...)
	assert.Equal(t, []string{`mkdirat(., "` + names[0] + `")`}, told)
}

func TestOnlyWritesToFilesAreCounted(t *testing.T) {
	names := paths(t, 1)
	var told []string
	judge := func(c faultrun.Call) faultrun.Verdict {
		told = append(told, strings.SplitN(c.String(), "(", 2)[0])
		return faultrun.Verdict{}
	}
	var out bytes.Buffer
	result, stderr := run(t, faultrun.Program{Judge: judge, Stdout: &out}, "write", names...)
	require.True(t, result.State.Success(), stderr)
	assert.Equal(t, []string{"openat", "write"}, told)
	assert.Equal(t, "to a pipe\n", out.String())
}

// Of Files every call is counted, also one that only asks, and one that writes to a pipe.
func TestFilesAreAllCallsAboutFiles(t *testing.T) {
	names, counted := paths(t, 1), map[string]int{}
	judge := func(c faultrun.Call) faultrun.Verdict {
		counted[c.Name()]++
		return faultrun.Verdict{}
	}
	var out bytes.Buffer
	result, stderr := run(t, faultrun.Program{Calls: faultrun.Files, Judge: judge, Stdout: &out}, "write", names...)
	require.True(t, result.State.Success(), stderr)
	assert.GreaterOrEqual(t, counted["write"], 2, "to the file and to the pipe")
	assert.GreaterOrEqual(t, counted["openat"], 1)
	assert.Positive(t, counted[faultrun.Call{Number: unix.SYS_READ}.Name()], "the runtime reads files, too")
	assert.Equal(t, "to a pipe\n", out.String())
}

// A program's mounts outlive it for the next program in the namespace, and no other process sees them.
func TestMountsOutliveTheProgramInItsNamespace(t *testing.T) {
	mounttest.RequireMounts(t)
	dir := t.TempDir()
	field := " " + strings.ReplaceAll(dir, " ", `\040`) + " " // as the mount table has it
	namespace, err := faultrun.NewNamespace()
	require.NoError(t, err)
	result, stderr := run(t, faultrun.Program{Namespace: namespace}, "mount", dir)
	require.True(t, result.State.Success(), stderr)
	assert.Equal(t, 1, result.Calls)
	assert.NotContains(t, mountTable(t, "/proc/self/mountinfo"), field, "it is not in the namespace of the tests")

	within := func(judge func() error) { require.NoError(t, namespace.Do(judge)) }
	within(func() error { return os.WriteFile(dir+"/file", []byte("kept"), 0o600) })
	assert.NoFileExists(t, dir+"/file")
	within(func() error {
		table, err := os.ReadFile("/proc/thread-self/mountinfo")
		if err == nil && !strings.Contains(string(table), field) {
			err = errors.New("it is not mounted")
		}
		return err
	})
	result, stderr = run(t, faultrun.Program{Namespace: namespace}, "make", dir+"/file")
	assert.Equal(t, 1, result.State.ExitCode(), "the next program finds what the test wrote")
	assert.Contains(t, stderr, "file exists")
	require.NoError(t, namespace.Close())
}

func mountTable(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(content)
}

func TestWhatEndsItsGoroutineInANamespaceIsAnError(t *testing.T) {
	mounttest.RequireMounts(t)
	namespace, err := faultrun.NewNamespace()
	require.NoError(t, err)
	defer namespace.Close()
	assert.ErrorContains(t, namespace.Do(func() error { runtime.Goexit(); return nil }), "ended its goroutine")
}

// A namespace is entered again and again, and the main thread, whose namespace is that of the process, never is.
func TestTheProcessStaysWhereItIs(t *testing.T) {
	mounttest.RequireMounts(t)
	before, err := os.Readlink("/proc/self/ns/mnt")
	require.NoError(t, err)
	namespace, err := faultrun.NewNamespace()
	require.NoError(t, err)
	defer namespace.Close()
	for range 50 {
		require.NoError(t, namespace.Do(func() error {
			here, err := os.Readlink("/proc/thread-self/ns/mnt")
			if err == nil && here == before {
				err = errors.New("not in the namespace")
			}
			return err
		}))
	}
	after, err := os.Readlink("/proc/self/ns/mnt")
	require.NoError(t, err)
	assert.Equal(t, before, after)
}

func TestAProgramThatIsNotThereIsAnError(t *testing.T) {
	var stderr bytes.Buffer
	started, err := faultrun.Start(t.Context(), faultrun.Program{Path: "/does/not/exist", Stderr: &stderr})
	requireFilter(t, err, &stderr)
	result, err := started.Wait()
	require.NoError(t, err)
	assert.False(t, result.State.Success())
	assert.Contains(t, stderr.String(), "/does/not/exist: no such file or directory")
}

func TestTheEndOfTheContextKillsTheProgram(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	names := paths(t, 2)
	judge := func(c faultrun.Call) faultrun.Verdict {
		cancel()
		return faultrun.Delay(time.Hour)
	}
	var stderr bytes.Buffer
	started, err := faultrun.Start(ctx, faultrun.Program{
		Path: "/proc/self/exe", Args: names, Env: environment("make"), Judge: judge, Stderr: &stderr,
	})
	requireFilter(t, err, &stderr)
	result, err := started.Wait()
	require.NoError(t, err)
	assert.Equal(t, syscall.SIGKILL, result.State.Sys().(syscall.WaitStatus).Signal())
	assert.Zero(t, existing(names))
}

// A program does not outlive its runner, however that ended.
func TestProgramEndsWithItsRunner(t *testing.T) {
	out, theirs, err := os.Pipe()
	require.NoError(t, err)
	defer out.Close()
	runner := exec.CommandContext(t.Context(), "/proc/self/exe", "run")
	var stderr bytes.Buffer
	runner.Env, runner.Stdout, runner.Stderr = environment("run"), theirs, &stderr
	err = runner.Run()
	require.NoError(t, theirs.Close())
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Exited() {
		requireFilter(t, err, &stderr)
		require.Fail(t, "it did not kill itself")
	}
	// The pipe is closed when the program, too, has ended.
	require.NoError(t, out.SetReadDeadline(time.Now().Add(time.Minute)))
	_, err = io.ReadAll(out)
	require.NoError(t, err)
}
