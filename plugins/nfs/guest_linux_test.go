//go:build nfsguest

package nfs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volume/volumetest"
)

// These tests run in the guest of internal/guest, which has the kernel's own NFS server on 127.0.0.1. It exports exportDir,
// which is the root of version 4.
const exportDir = "/tmp/export"

// share is one directory of the server, and how each version asks for it.
type share struct {
	dir     string // on the server
	version string
	options []string
}

var shares atomic.Int64

// ways are the versions, and who mounts them.
var ways = map[string]share{
	"4.2":                   {version: "4.2"},
	"4.1":                   {version: "4.1"},
	"4.0":                   {version: "4.0"},
	"3 by the kernel alone": {version: "3", options: []string{"nolock"}},
	"3 by mount.nfs":        {version: "3"},
	"the newest":            {},
}

// newShare makes an empty directory on the server.
func newShare(t testing.TB, way share) share {
	t.Helper()
	way.dir = filepath.Join(exportDir, fmt.Sprintf("share-%d", shares.Add(1)))
	require.NoError(t, os.Mkdir(way.dir, 0o777))
	t.Cleanup(func() { _ = os.RemoveAll(way.dir) })
	return way
}

func (s share) spec(more ...string) *volume.Spec {
	path := s.dir
	if s.version != "3" {
		path = "/" + filepath.Base(s.dir)
	}
	options := append([]string{}, s.options...)
	if s.version != "" {
		options = append(options, "vers="+s.version)
	}
	return persistent("127.0.0.1", path, append(options, more...)...)
}

func (s share) write(t testing.TB, name, content string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, name), []byte(content), 0o600))
}

// node is one node with the plugin.
type node struct {
	t      *testing.T
	plugin *Plugin
}

func newNode(t *testing.T, options Options) *node {
	t.Helper()
	host, err := volume.NewHost(volume.HostOptions{RootDir: filepath.Join(t.TempDir(), "node"), NodeName: "node-1"})
	require.NoError(t, err)
	plugin := New(options)
	require.NoError(t, volume.NewVolumePluginMgr(host).InitPlugins(t.Context(), plugin))
	return &node{t: t, plugin: plugin}
}

func (n *node) mounter(spec *volume.Spec, uid types.UID) volume.Mounter {
	n.t.Helper()
	m, err := n.plugin.NewMounter(spec, &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}})
	require.NoError(n.t, err)
	return m
}

func (n *node) setUp(spec *volume.Spec, uid types.UID) string {
	n.t.Helper()
	m := n.mounter(spec, uid)
	require.NoError(n.t, m.SetUp(n.t.Context(), volume.MounterArgs{}))
	return m.GetPath()
}

func (n *node) tearDown(uid types.UID) error {
	n.t.Helper()
	u, err := n.plugin.NewUnmounter("data", uid)
	require.NoError(n.t, err)
	ctx, cancel := context.WithTimeout(n.t.Context(), 20*time.Second)
	defer cancel()
	return u.TearDown(ctx)
}

// command runs a command of the server.
func command(t testing.TB, name string, args ...string) {
	t.Helper()
	output, err := exec.Command(name, args...).CombinedOutput()
	require.NoError(t, err, "%s: %s", name, output)
}

func stopServer(t testing.TB)  { command(t, "rpc.nfsd", "0") }
func startServer(t testing.TB) { command(t, "rpc.nfsd", "-G", "10", "-L", "10", "2") }

// eventually waits for what the server or the kernel does by itself.
func eventually(t *testing.T, what func() bool) {
	t.Helper()
	require.Eventually(t, what, time.Minute, 50*time.Millisecond)
}

func TestConformanceOnTheKernelsServer(t *testing.T) {
	for name, way := range ways {
		if way.version == "" {
			continue // It is 4.2.
		}
		t.Run(name, func(t *testing.T) {
			volumetest.Run(t, volumetest.Config{
				NewPlugin: func(testing.TB) volume.VolumePlugin { return New(Options{}) },
				NewSpec:   func(t testing.TB) *volume.Spec { return newShare(t, way).spec() },
				Require:   volume.CapPersistent | volume.CapRecycle | volume.CapMountOptions | volume.CapReconstruct,
				Shared:    true,
				Lifetime:  volumetest.LifetimeOfStorage,
			})
		})
	}
}

func TestWhatIsMountedIsWhatWasAskedFor(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			n, s := newNode(t, Options{}), newShare(t, way)
			s.write(t, "file", "content")
			path := n.setUp(s.spec(), "pod-1")
			content, err := os.ReadFile(filepath.Join(path, "file"))
			require.NoError(t, err)
			assert.Equal(t, "content", string(content))
			found, err := n.plugin.options.Mounter.Lookup(t.Context(), path)
			require.NoError(t, err)
			want := s.version
			if want == "" {
				want = "4.2"
			}
			assert.Contains(t, found.SuperOptions, "vers="+want)
			made, err := n.plugin.ConstructVolumeSpec("data", path)
			require.NoError(t, err)
			assert.Equal(t, s.spec().PersistentVolume.Spec.NFS, made.Spec.Volume.NFS)
			require.NoError(t, n.tearDown("pod-1"))
			assert.NoDirExists(t, path)
			assert.FileExists(t, filepath.Join(s.dir, "file"))
		})
	}
}

func TestTwoPodsOnOneExportOneOfThemReadOnly(t *testing.T) {
	n, s := newNode(t, Options{}), newShare(t, share{})
	reading := s.spec()
	reading.ReadOnly = true
	a, b := n.setUp(reading, "pod-a"), n.setUp(s.spec(), "pod-b")
	require.NoError(t, os.WriteFile(filepath.Join(b, "file"), []byte("x"), 0o600))
	require.ErrorIs(t, os.WriteFile(filepath.Join(a, "other"), nil, 0o600), syscall.EROFS)
	eventually(t, func() bool { _, err := os.Stat(filepath.Join(a, "file")); return err == nil })
	require.NoError(t, n.tearDown("pod-a"))
	require.NoError(t, os.WriteFile(filepath.Join(b, "file"), []byte("y"), 0o600))
	require.NoError(t, n.tearDown("pod-b"))
}

func TestRefusalsSayWhatIsWrong(t *testing.T) {
	n := newNode(t, Options{})
	for name, c := range map[string]struct {
		spec *volume.Spec
		want error
	}{
		"no such path":     {persistent("127.0.0.1", "/nothing"), syscall.ENOENT},
		"unknown option":   {persistent("127.0.0.1", "/", "bogus=1"), syscall.EINVAL},
		"no listener":      {persistent("127.0.0.1", "/", "port=2999"), syscall.ECONNREFUSED},
		"export not given": {persistent("127.0.0.1", "/etc", "vers=3", "nolock"), syscall.EACCES},
	} {
		t.Run(name, func(t *testing.T) {
			m := n.mounter(c.spec, "pod-1")
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			err := m.SetUp(ctx, volume.MounterArgs{})
			require.ErrorIs(t, err, c.want)
			assert.NoDirExists(t, m.GetPath(), "a failure leaves nothing")
			require.NoError(t, n.tearDown("pod-1"))
		})
	}
}

// A server that takes the connection and says nothing.
func TestASilentServerDelaysNoCallBeyondItsDeadline(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var connections []net.Conn
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			connections = append(connections, c)
		}
	}()
	n := newNode(t, Options{})
	port := listener.Addr().(*net.TCPAddr).Port
	m := n.mounter(persistent("127.0.0.1", "/", "vers=4.2", "soft", "timeo=10", "retrans=1", fmt.Sprintf("port=%d", port)), "pod-1")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err = m.SetUp(ctx, volume.MounterArgs{})
	require.ErrorIs(t, err, volume.ErrUncertain)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	var lost interface{ Done() <-chan struct{} }
	require.ErrorAs(t, err, &lost)

	s := newShare(t, share{})
	n.setUp(s.spec(), "pod-2") // Others go on.
	require.NoError(t, n.tearDown("pod-2"))
	require.NoError(t, listener.Close())
	<-accepted
	for _, c := range connections {
		require.NoError(t, c.Close())
	}
	<-lost.Done() // Without a server the kernel gives up.
	require.NoError(t, n.tearDown("pod-1"))
}

func TestAnExportThatWasMadeAnewIsMountedAnew(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			n, s := newNode(t, Options{}), newShare(t, way)
			m := n.mounter(s.spec("actimeo=0"), "pod-1")
			require.NoError(t, m.SetUp(t.Context(), volume.MounterArgs{}))
			require.NoError(t, os.RemoveAll(s.dir))
			require.NoError(t, os.Mkdir(filepath.Join(exportDir, "takes-its-inode"), 0o777))
			t.Cleanup(func() { _ = os.Remove(filepath.Join(exportDir, "takes-its-inode")) })
			require.NoError(t, os.Mkdir(s.dir, 0o777))
			s.write(t, "new", "")
			_, err := os.ReadDir(m.GetPath())
			require.ErrorIs(t, err, syscall.ESTALE)
			require.NoError(t, m.SetUp(t.Context(), volume.MounterArgs{}))
			assert.FileExists(t, filepath.Join(m.GetPath(), "new"))
			require.NoError(t, n.tearDown("pod-1"))
		})
	}
}

// The server is stopped and comes back: what hangs goes on, and nothing was lost.
func TestWritesGoOnWhenTheServerComesBack(t *testing.T) {
	n, s := newNode(t, Options{}), newShare(t, share{})
	path := n.setUp(s.spec(), "pod-1")
	require.NoError(t, os.WriteFile(filepath.Join(path, "before"), []byte("x"), 0o600))
	stopServer(t)
	written := make(chan error, 1)
	go func() { written <- os.WriteFile(filepath.Join(path, "during"), []byte("y"), 0o600) }()
	select {
	case err := <-written:
		t.Fatalf("a write ended without a server: %v", err)
	case <-time.After(500 * time.Millisecond):
	}
	startServer(t)
	require.NoError(t, <-written)
	content, err := os.ReadFile(filepath.Join(s.dir, "during"))
	require.NoError(t, err)
	assert.Equal(t, "y", string(content))
	require.NoError(t, n.tearDown("pod-1"))
}

func TestAServerThatIsNotThereYetIsTriedAgain(t *testing.T) {
	n, s := newNode(t, Options{}), newShare(t, share{version: "4.2"})
	stopServer(t)
	m := n.mounter(s.spec(), "pod-1")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	require.ErrorIs(t, m.SetUp(ctx, volume.MounterArgs{}), syscall.ECONNREFUSED)
	startServer(t)
	require.NoError(t, m.SetUp(t.Context(), volume.MounterArgs{}))
	require.NoError(t, n.tearDown("pod-1"))
}

// A teardown with a dead server, and with data that it has not got yet.
func TestADeadServersVolumeIsTakenAwayByForceWhereThatIsAllowed(t *testing.T) {
	s := newShare(t, share{version: "4.2"})
	n := newNode(t, Options{ForceAfter: 2 * time.Second, Lazy: true})
	path := n.setUp(s.spec(), "pod-1")
	file, err := os.Create(filepath.Join(path, "file"))
	require.NoError(t, err)
	_, err = file.WriteString("not yet there")
	require.NoError(t, err)
	stopServer(t)
	err = n.tearDown("pod-1")
	require.NoError(t, err, "it is lazy: the file is still open")
	assert.NoDirExists(t, path)
	mounted, err := n.plugin.options.Mounter.IsMountPoint(t.Context(), path)
	require.ErrorIs(t, err, os.ErrNotExist)
	assert.False(t, mounted)
	startServer(t)
	_ = file.Close() // It may have been aborted.
}

func TestRecyclingOnTheServer(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			n, s := newNode(t, Options{}), newShare(t, way)
			outside := filepath.Join(exportDir, "outside")
			require.NoError(t, os.WriteFile(outside, []byte("canary"), 0o600))
			require.NoError(t, os.MkdirAll(filepath.Join(s.dir, "a", "b"), 0o755))
			s.write(t, "a/b/file", "x")
			require.NoError(t, os.Symlink(outside, filepath.Join(s.dir, "link")))
			require.NoError(t, n.plugin.Recycle(t.Context(), "data", s.spec(), func(string, string) {}))
			entries, err := os.ReadDir(s.dir)
			require.NoError(t, err)
			assert.Empty(t, entries)
			assert.FileExists(t, outside)
			table, err := n.plugin.options.Mounter.List(t.Context())
			require.NoError(t, err)
			for _, m := range table {
				assert.False(t, isNFS(m), "%s is left", m.Path)
			}
		})
	}
}

// What an unmount in use says, and that nothing is forced by itself.
func TestAVolumeInUseStays(t *testing.T) {
	n, s := newNode(t, Options{}), newShare(t, share{})
	path := n.setUp(s.spec(), "pod-1")
	file, err := os.Create(filepath.Join(path, "file"))
	require.NoError(t, err)
	err = n.tearDown("pod-1")
	require.True(t, errors.Is(err, volume.ErrInUse) && errors.Is(err, mount.ErrUncertain) || errors.Is(err, volume.ErrInUse), "%v", err)
	require.NoError(t, file.Close())
	require.NoError(t, n.tearDown("pod-1"))
}
