package ownership

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount/mounttest"
)

func TestMain(m *testing.M) { mounttest.Main(m) }

// group is the one that the tests ask for.
const group = 4242

var (
	always = v1.FSGroupChangeAlways
	onRoot = v1.FSGroupChangeOnRootMismatch
)

func of(gid int64) *int64 { return &gid }

// requireChown skips the test where this process may not give files away: in a user namespace with one group. It also does
// where a mistake could reach the machine, since links of the tests lead there.
func requireChown(t testing.TB) {
	t.Helper()
	mounttest.RequireMounts(t)
	dir := t.TempDir()
	if err := os.Lchown(dir, -1, group); err != nil {
		mounttest.RequireRoot(t)
		t.Fatal(err)
	}
}

func apply(t *testing.T, dir string, o Options) (Report, error) {
	t.Helper()
	if o.Group == nil {
		o.Group = of(group)
	}
	return Apply(t.Context(), dir, o)
}

func mustApply(t *testing.T, dir string, o Options) Report {
	t.Helper()
	r, err := apply(t, dir, o)
	require.NoError(t, err)
	return r
}

// file is one entry of a tree: its kind and mode, and its group.
type file struct {
	mode uint32
	gid  uint32
}

func lstat(t *testing.T, path string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Lstat(path, &st))
	return st
}

func fileOf(t *testing.T, path string) file {
	t.Helper()
	st := lstat(t, path)
	return file{mode: st.Mode, gid: st.Gid}
}

// put makes a file with exactly this mode. One whose group is not 0 gets it.
func put(t *testing.T, path string, f file) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	switch f.mode & unix.S_IFMT {
	case unix.S_IFDIR:
		require.NoError(t, os.MkdirAll(path, 0o755))
	case unix.S_IFLNK:
		require.NoError(t, os.Symlink("/etc/passwd", path))
	case unix.S_IFREG:
		require.NoError(t, os.WriteFile(path, nil, 0o600))
	default:
		require.NoError(t, unix.Mknod(path, f.mode, 0))
	}
	require.NoError(t, os.Lchown(path, -1, int(f.gid)))
	if f.mode&unix.S_IFMT != unix.S_IFLNK {
		require.NoError(t, unix.Chmod(path, f.mode&0o7777))
	}
}

// features are the ways that a kernel can have.
var features = map[string]feature{
	"all": 0, "no fchmodat2": featureFchmodat2, "no openat2": featureOpenat2,
	"no mount root": featureMountRoot, "none": allFeatures,
}

// everyWay runs a test with all system calls, and with the fall-backs.
func everyWay(t *testing.T, test func(t *testing.T, without feature)) {
	t.Helper()
	for name, without := range features {
		t.Run(name, func(t *testing.T) { test(t, without) })
	}
}
