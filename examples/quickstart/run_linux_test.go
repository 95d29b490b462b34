package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/examples/internal/container"
	"github.com/volumekit/volumekit/examples/internal/manifest"
	"github.com/volumekit/volumekit/examples/internal/sandbox"
	"github.com/volumekit/volumekit/examples/internal/show"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// programEnv makes the test binary be the program, so that the tests run it as a process of its own, race detector
// included.
const programEnv = "VOLUMEKIT_QUICKSTART_IS_THE_PROGRAM"

// patience is how long a run may take before it is stopped, and how long until it is killed.
const patience = time.Minute

func TestMain(m *testing.M) {
	if os.Getenv(programEnv) != "" {
		main()
	}
	mounttest.Main(m)
}

// openTo lets everybody pass through dir and what is above it in the temporary directory.
func openTo(dir string) error {
	for temp := filepath.Clean(os.TempDir()); strings.HasPrefix(dir, temp); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil { // other users are to pass
			return err
		}
		if dir == temp {
			return nil
		}
	}
	return nil
}

// program is one run of the program.
type program struct {
	*exec.Cmd
	temp           string // its TMPDIR, empty before and after the run
	stdout, stderr bytes.Buffer
	lines          chan []byte // of standard output, after startReading
	url            string      // of its page, after startUntilKept
}

// newProgram returns a run of the program that has not begun.
func newProgram(t *testing.T, args ...string) *program {
	t.Helper()
	temp := t.TempDir()
	require.NoError(t, openTo(temp))
	require.NoError(t, os.Chmod(temp, 0o777|os.ModeSticky)) // as /tmp
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	p := &program{Cmd: exec.CommandContext(ctx, "/proc/self/exe", args...), temp: temp}
	p.Cmd.Cancel = func() error { return p.Process.Signal(syscall.SIGTERM) }
	p.WaitDelay = patience
	// A program with the race detector otherwise waits for a second when it ends.
	p.Env = append(os.Environ(), "TMPDIR="+temp, programEnv+"=1", "GORACE="+os.Getenv("GORACE")+" atexit_sleep_ms=0")
	p.Dir = temp
	p.Stdout, p.Stderr = &p.stdout, &p.stderr
	return p
}

// run runs the program to its end, returns its exit code, and fails the test when anything is left.
func (p *program) run(t *testing.T) int {
	t.Helper()
	if err := p.Run(); p.ProcessState == nil {
		require.NoError(t, err)
	}
	p.requireNothingLeft(t)
	return p.ProcessState.ExitCode()
}

// requireNothingLeft looks for itself: at the directory, at the machine's loop devices, and at the mounts of this
// namespace, into which those of the program must not spread.
func (p *program) requireNothingLeft(t *testing.T) {
	t.Helper()
	entries, err := os.ReadDir(p.temp)
	require.NoError(t, err)
	assert.Empty(t, entries, "left in the temporary directory")
	assert.Empty(t, loopFilesUnder(t, p.temp), "loop devices left")
	table, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	assert.NotContains(t, string(table), p.temp, "a mount left the program's namespace")
}

// loopFilesUnder returns the files of loop devices that lie under dir, as sysfs shows them.
func loopFilesUnder(t *testing.T, dir string) []string {
	t.Helper()
	names, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	require.NoError(t, err)
	var found []string
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err == nil && strings.HasPrefix(string(text), dir+"/") {
			found = append(found, strings.TrimSpace(string(text)))
		}
	}
	return found
}

// documents decodes what the program printed with -json, by stage.
func (p *program) documents(t *testing.T) map[string]document {
	t.Helper()
	byStage := make(map[string]document)
	decoder := json.NewDecoder(bytes.NewReader(p.stdout.Bytes()))
	decoder.DisallowUnknownFields()
	for decoder.More() {
		var d document
		require.NoError(t, decoder.Decode(&d), "stdout: %s", p.stdout.String())
		byStage[d.Stage] = d
	}
	return byStage
}

// document is every field of the documents that -json prints.
type document struct {
	Stage      string              `json:"stage"`
	Root       string              `json:"root"`
	LeftOut    []manifest.LeftOut  `json:"leftOut"`
	Volumes    []show.Row          `json:"volumes"`
	Findings   []container.Finding `json:"findings"`
	URL        string              `json:"url"`
	PID        int                 `json:"pid"`
	Enter      string              `json:"enter"`
	Containers string              `json:"containers"`
	Kept       []string            `json:"kept"`
	Left       sandbox.Leftovers   `json:"left"`
	Error      string              `json:"error"`
}

// asOrdinaryUser makes the program run as a user who owns nothing, unless the tests are run by an ordinary user anyway.
func (p *program) asOrdinaryUser(t *testing.T) {
	t.Helper()
	mounttest.RequireMounts(t)
	if sandbox.InUserNamespace() {
		return
	}
	p.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
}

// requireUserNamespace skips the test when the program could not have one; under CI it fails.
func (p *program) requireUserNamespace(t *testing.T) {
	t.Helper()
	refused := strings.Contains(p.stderr.String(), "start in a private mount namespace")
	if refused && os.Getenv("CI") != "true" {
		t.Skip("missing: user namespaces for ordinary users: ", p.stderr.String())
	}
	require.False(t, refused, p.stderr.String())
}

// mountTmpfs mounts an empty tmpfs and returns its mount point.
func mountTmpfs(t *testing.T, flags uintptr) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, unix.Mount("none", dir, "tmpfs", flags, ""))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// write puts text into a file and returns its path.
func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644)) // other users read it
	require.NoError(t, openTo(filepath.Dir(path)))
	return path
}
