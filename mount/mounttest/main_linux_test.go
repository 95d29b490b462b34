package mounttest_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
)

func TestMain(m *testing.M) { mounttest.Main(m) }

// envInner says to a test what to do when it runs in a binary that another test has started.
const envInner = "MOUNTTEST_INNER"

// inner runs TestInner of this binary, from the start, and returns what it printed and its exit code.
func inner(t *testing.T, what string, environment ...string) (string, int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.v", "-test.run=^TestInner$")
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "VOLUMEKIT_") && !strings.HasPrefix(variable, "CI=") {
			cmd.Env = append(cmd.Env, variable)
		}
	}
	cmd.Env = append(append(cmd.Env, envInner+"="+what), environment...)
	output, err := cmd.CombinedOutput()
	if err != nil {
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
	}
	t.Logf("%s", output)
	return string(output), cmd.ProcessState.ExitCode()
}

// TestInner is what the other tests run in a binary of its own.
func TestInner(t *testing.T) {
	what := os.Getenv(envInner)
	if what == "" {
		return // it has nothing to do here
	}
	mounttest.RequireMounts(t)
	switch what {
	case "fail":
		t.Error("as was asked for")
	case "leak":
		require.NoError(t, mount.New(mount.Options{}).Mount(t.Context(), mount.Request{
			Target: filepath.Join(os.TempDir(), "left"), FSType: "tmpfs",
		}))
	case "hang":
		hangAndFail(t)
	case "where":
		namespace, err := os.Readlink("/proc/self/ns/mnt")
		require.NoError(t, err)
		t.Logf("namespace %s", namespace)
		require.NoError(t, unix.Mount("memory", "/mnt", "tmpfs", 0, ""))
	}
}

// hangAndFail ends a test while a call hangs in a filesystem of the test.
func hangAndFail(t *testing.T) {
	t.Helper()
	ended := make(chan error, 1)
	t.Cleanup(func() { t.Logf("the call has ended: %v", <-ended) })
	f := newFUSE(t)
	f.Hang(mounttest.FUSEStatfs)
	go func() {
		err := unix.Statfs(f.Path(), &unix.Statfs_t{})
		if errors.Is(err, unix.ECONNABORTED) {
			err = errors.New("connection aborted")
		}
		ended <- err
	}()
	f.Await(mounttest.FUSEStatfs)
	t.Fatal("as was asked for")
}

func TestTestsRunInANamespaceOfTheirOwn(t *testing.T) {
	mounttest.RequireMounts(t)
	before, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	output, code := inner(t, "where")
	assert.Zero(t, code)
	assert.Contains(t, output, "namespace mnt:[")
	namespace, err := os.Readlink("/proc/self/ns/mnt")
	require.NoError(t, err)
	assert.NotContains(t, output, namespace)
	after, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	assert.Equal(t, string(before), string(after), "a mount has come out")
}

func TestExitCodeIsThatOfTheTests(t *testing.T) {
	mounttest.RequireMounts(t)
	_, code := inner(t, "nothing")
	assert.Zero(t, code)
	output, code := inner(t, "fail")
	assert.Equal(t, 1, code)
	assert.Contains(t, output, "as was asked for")
}

func TestWhatIsLeftMountedFailsTheRun(t *testing.T) {
	mounttest.RequireMounts(t)
	output, code := inner(t, "leak", "TMPDIR="+t.TempDir())
	assert.Equal(t, 1, code)
	assert.Contains(t, output, "left behind: mount at ")
	assert.Contains(t, output, "--- PASS: TestInner")
}

func TestWithoutANamespaceTestsSkipWithTheReason(t *testing.T) {
	here, err := os.Readlink("/proc/self/ns/mnt")
	require.NoError(t, err)
	// The binary is told that it was started again and yet is where it was.
	output, code := inner(t, "nothing", "VOLUMEKIT_MOUNTTEST_OUTSIDE="+here)
	assert.Zero(t, code)
	assert.Contains(t, output, "--- SKIP: TestInner")
	assert.Contains(t, output, "missing: a private mount namespace: the new process is in the old mount namespace")

	output, code = inner(t, "nothing", "VOLUMEKIT_MOUNTTEST_OUTSIDE="+here, "CI=true")
	assert.Equal(t, 1, code)
	assert.Contains(t, output, "--- FAIL: TestInner")
}

func TestTemporaryDirectoryIsRemoved(t *testing.T) {
	mounttest.RequireMounts(t)
	temp := t.TempDir()
	_, code := inner(t, "nothing", "TMPDIR="+temp)
	assert.Zero(t, code)
	left, err := os.ReadDir(temp)
	require.NoError(t, err)
	assert.Empty(t, left)
}

// TestNothingButTheTemporaryDirectoryCanBeWritten tries to write where a test that goes wrong must not.
func TestNothingButTheTemporaryDirectoryCanBeWritten(t *testing.T) {
	mounttest.RequireMounts(t)
	outside := filepath.Dir(os.TempDir()) // the temporary directory of the user who runs the tests
	for _, dir := range []string{".", "/", "/usr", outside} {
		file, err := os.CreateTemp(dir, "mounttest-canary-")
		if err == nil {
			require.NoError(t, file.Close())
			require.NoError(t, os.Remove(file.Name()))
		}
		if !errors.Is(err, unix.EACCES) {
			assert.ErrorIs(t, err, unix.EROFS, dir)
		}
	}
	require.NoError(t, os.WriteFile(filepath.Join(t.TempDir(), "f"), nil, 0o600))
}
