package mounttest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/volumekit/volumekit/internal/leak"
	"github.com/volumekit/volumekit/mount"
)

// The environment of a test binary that Main has started again.
const (
	// envOutside holds the mount namespace of the parent, so that a process knows that it is in another.
	envOutside = "VOLUMEKIT_MOUNTTEST_OUTSIDE"
	// envWithout holds the reason why there is no private namespace.
	envWithout = "VOLUMEKIT_MOUNTTEST_WITHOUT"
	// envProtected holds the mount namespace in which nothing but what tests need can be written, so that a test binary
	// that a test starts again leaves it at that.
	envProtected = "VOLUMEKIT_MOUNTTEST_PROTECTED"
	// envWritable lists directories, as PATH does, that are to stay writable too.
	envWritable = "VOLUMEKIT_MOUNTTEST_WRITABLE"
)

// Main runs the tests of m in a private mount namespace and exits with their result. It is to be all of a TestMain.
//
// It starts the test binary again with the same arguments: as root in a new mount namespace; as an ordinary user in a
// new user namespace too, in which it is root. Every mount there is private, so that no mount reaches the machine, and
// read-only, so that no code that goes wrong deletes or changes its files; what stays writable is the temporary directory
// of the tests (t.TempDir, os.TempDir), which is a new one without a symbolic link in its path, the cache of the go
// command, where the go command wants to be told of the run, the directories in the environment variable
// VOLUMEKIT_MOUNTTEST_WRITABLE (a list like PATH), and /dev, /proc and /sys. After the tests, mounts and loop
// devices that lie in the temporary directory are reported and fail the run, and so do goroutines and descriptors that are
// left.
func Main(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if inside() {
		return runInside(m)
	}
	if os.Getenv(envOutside) != "" {
		// Started again and yet not elsewhere: starting once more would not end.
		return runWithout(m, errors.New("the new process is in the old mount namespace"))
	}
	code, err := runAgain()
	if err != nil {
		return runWithout(m, err)
	}
	return code
}

// runWithout runs the tests here, where nothing may be mounted.
func runWithout(m *testing.M, reason error) int {
	if err := os.Setenv(envWithout, reason.Error()); err != nil {
		fmt.Fprintln(os.Stderr, "mounttest:", err)
		return 1
	}
	return leak.Run(m)
}

// runInside runs the tests in the private namespace and then looks for what they left.
func runInside(m *testing.M) int {
	if err := makePrivate(); err != nil {
		fmt.Fprintln(os.Stderr, "mounttest: making the mounts private:", err)
		return 1
	}
	machine := mount.New(mount.Options{}) // It keeps a descriptor, the same one during all tests.
	if err := protectMachine(machine); err != nil {
		fmt.Fprintln(os.Stderr, "mounttest: protecting the files of the machine from the tests:", err)
		return 1
	}
	code := leak.Run(m)
	left, err := leftovers(machine, os.TempDir())
	if err != nil {
		fmt.Fprintln(os.Stderr, "mounttest: looking for what the tests left behind:", err)
		return max(code, 1)
	}
	for _, l := range left {
		fmt.Fprintln(os.Stderr, "mounttest: the tests left behind:", l)
		code = max(code, 1)
	}
	return code
}

// tempDir makes the temporary directory of the tests.
func tempDir() (string, error) {
	base, err := filepath.EvalSymlinks(os.TempDir())
	if err != nil {
		return "", err
	}
	return os.MkdirTemp(base, "mounttest-")
}

// RequireMounts skips the test, with the reason, where nothing can be mounted. Under CI it fails the test instead.
func RequireMounts(t testing.TB) {
	t.Helper()
	if !inside() {
		missing(t, "a private mount namespace: "+reasonWithout())
	}
}

// RequireRoot is RequireMounts for what needs real root, not the root of a user namespace: loop devices, device nodes,
// filesystems on block devices.
func RequireRoot(t testing.TB) {
	t.Helper()
	RequireMounts(t)
	if !realRoot() {
		missing(t, "root of the machine; this is root of a user namespace only")
	}
}

func reasonWithout() string {
	if reason := os.Getenv(envWithout); reason != "" {
		return reason
	}
	return "TestMain does not call mounttest.Main"
}

func missing(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("missing, and under CI nothing is skipped: %s", what)
	}
	t.Skipf("missing: %s", what)
}
