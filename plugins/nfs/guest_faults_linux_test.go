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
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// wire is the connection to the server. It can be cut, as when the server is killed, or stopped: then no data passes, and the
// connection stays open.
type wire struct {
	t     *testing.T
	port  int
	flow  sync.RWMutex // held by who stops it
	ended sync.WaitGroup

	mu          sync.Mutex
	listener    net.Listener
	connections []net.Conn
}

func newWire(t *testing.T) *wire {
	t.Helper()
	w := &wire{t: t}
	w.mend()
	t.Cleanup(w.cut)
	return w
}

// options are those by which a volume goes over the wire, and gives up soon.
func (w *wire) options() []string {
	return []string{fmt.Sprintf("port=%d", w.port), "soft", "timeo=5", "retrans=1"}
}

// mend makes the server answer again.
func (w *wire) mend() {
	w.t.Helper()
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", w.port))
	require.NoError(w.t, err)
	w.port = listener.Addr().(*net.TCPAddr).Port
	w.mu.Lock()
	w.listener = listener
	w.mu.Unlock()
	w.ended.Go(func() { w.serve(listener) })
}

func (w *wire) serve(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", "127.0.0.1:2049")
		if err != nil {
			_ = client.Close()
			continue
		}
		w.mu.Lock()
		w.connections = append(w.connections, client, server)
		w.mu.Unlock()
		w.ended.Go(func() { w.carry(client, server) })
		w.ended.Go(func() { w.carry(server, client) })
	}
}

func (w *wire) carry(from, to net.Conn) {
	defer func() { _, _ = from.Close(), to.Close() }()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		w.flow.RLock()
		_, err = to.Write(buffer[:n])
		w.flow.RUnlock()
		if err != nil {
			return
		}
	}
}

// cut ends every connection and takes no more.
func (w *wire) cut() {
	w.mu.Lock()
	_ = w.listener.Close()
	for _, c := range w.connections {
		_ = c.Close()
	}
	w.connections = nil
	w.mu.Unlock()
	w.ended.Wait()
}

// refresh sets a volume up again, for a second at most.
func refresh(t *testing.T, m volume.Mounter) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	return m.SetUp(ctx, volume.MounterArgs{IsRemount: true})
}

func (n *node) isMounted(path string) bool {
	n.t.Helper()
	mounted, err := n.plugin.options.Mounter.IsMountPoint(n.t.Context(), path)
	require.NoError(n.t, err)
	return mounted
}

// A server that is silent, or killed, while a volume is in use makes calls fail, and nothing more: the volume stays mounted,
// others go on, and it is well when the server is.
func TestAServerThatGoesAwayAndComesBack(t *testing.T) {
	silent, speaks := func(w *wire) { w.flow.Lock() }, func(w *wire) { w.flow.Unlock() }
	for name, c := range map[string]struct {
		version     string
		goes, comes func(*wire)
	}{
		"silent 4.2": {"4.2", silent, speaks},
		"silent 3":   {"3", silent, speaks},
		"killed 4.2": {"4.2", (*wire).cut, (*wire).mend},
	} {
		t.Run(name, func(t *testing.T) {
			w, s := newWire(t), newShare(t, share{version: c.version, options: []string{"nolock"}})
			// Version 4 would find that the one server is the other, and wait for it.
			other := newShare(t, ways["3 by the kernel alone"])
			n := newNode(t, Options{})
			m := n.mounter(s.spec(append(w.options(), "actimeo=0")...), "pod-1")
			require.NoError(t, m.SetUp(t.Context(), volume.MounterArgs{}))
			file := filepath.Join(m.GetPath(), "file")
			require.NoError(t, os.WriteFile(file, []byte("x"), 0o600))

			comes := sync.OnceFunc(func() { c.comes(w) })
			t.Cleanup(comes)
			c.goes(w)
			written := make(chan error, 1)
			go func() { written <- os.WriteFile(filepath.Join(m.GetPath(), "during"), []byte("y"), 0o600) }()
			require.Error(t, refresh(t, m))
			n.setUp(other.spec(), "pod-2")
			require.NoError(t, n.tearDown("pod-2"))
			assert.True(t, n.isMounted(m.GetPath()))
			if c.version == "3" { // Version 4 may wait for its session.
				err := <-written
				require.True(t, isOneOf(err, syscall.EIO, syscall.ETIMEDOUT), "a soft mount gives up: %v", err)
				require.NotErrorIs(t, refresh(t, m), mount.ErrNotMounted)
			}

			comes()
			if c.version != "3" {
				<-written // or fails, since it had waited long enough
			}
			eventually(t, func() bool { return refresh(t, m) == nil })
			content, err := os.ReadFile(file)
			require.NoError(t, err)
			assert.Equal(t, "x", string(content))
			require.NoError(t, n.tearDown("pod-1"))
			assert.NoDirExists(t, m.GetPath())
		})
	}
}

func isOneOf(err error, errnos ...syscall.Errno) bool {
	for _, errno := range errnos {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// exports are the clients to whom the server gives exportDir. Both are this host, and so to take it away from one may take it
// away from the other.
var exports = []string{"127.0.0.1:" + exportDir, "[::1]:" + exportDir}

const exporter = "exportfs" //nolint:misspell // It is the name of the command.

func takeExportAway() {
	for _, client := range exports {
		_ = exec.Command(exporter, "-u", client).Run() // It may be gone with the one before.
	}
}

func giveExport(t testing.TB) {
	command(t, exporter, append([]string{"-o", "rw,fsid=0,no_root_squash,insecure,no_subtree_check"}, exports...)...)
}

// An export that is taken away and given back: volumes of it stay, and are well again. No new one is made meanwhile, and what
// is torn down is gone.
func TestAnExportThatVanishesAndReturns(t *testing.T) {
	for _, name := range []string{"4.2", "3 by the kernel alone"} {
		t.Run(name, func(t *testing.T) {
			n, s := newNode(t, Options{}), newShare(t, ways[name])
			stays, goes := n.mounter(s.spec("actimeo=0"), "pod-1"), n.mounter(s.spec("actimeo=0"), "pod-2")
			require.NoError(t, stays.SetUp(t.Context(), volume.MounterArgs{}))
			require.NoError(t, goes.SetUp(t.Context(), volume.MounterArgs{}))
			s.write(t, "file", "content")

			takeExportAway()
			given := sync.OnceFunc(func() { giveExport(t) })
			defer given()
			eventually(t, func() bool { _, err := os.ReadDir(stays.GetPath()); return err != nil })
			require.Error(t, refresh(t, stays))
			assert.True(t, n.isMounted(stays.GetPath()))
			require.NoError(t, n.tearDown("pod-2"))
			assert.NoDirExists(t, goes.GetPath())
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			err := goes.SetUp(ctx, volume.MounterArgs{})
			require.Error(t, err)
			assert.NoDirExists(t, goes.GetPath(), "%v", err)

			given()
			eventually(t, func() bool { return refresh(t, stays) == nil })
			content, err := os.ReadFile(filepath.Join(stays.GetPath(), "file"))
			require.NoError(t, err)
			assert.Equal(t, "content", string(content))
			require.NoError(t, n.tearDown("pod-1"))
		})
	}
}

// A volume with a stale handle can be taken away.
func TestAStaleVolumeIsTakenAway(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			n, s := newNode(t, Options{}), newShare(t, way)
			path := n.setUp(s.spec("actimeo=0"), "pod-1")
			require.NoError(t, os.RemoveAll(s.dir))
			_, err := os.ReadDir(path)
			require.ErrorIs(t, err, syscall.ESTALE)
			require.NoError(t, n.tearDown("pod-1"))
			assert.NoDirExists(t, path)
		})
	}
}

func TestAServerIsReachedByIPv6(t *testing.T) {
	for _, name := range []string{"4.2", "4.0", "3 by the kernel alone", "3 by mount.nfs"} {
		t.Run(name, func(t *testing.T) {
			n, s := newNode(t, Options{}), newShare(t, ways[name])
			s.write(t, "file", "content")
			for _, server := range []string{"::1", "[::1]"} {
				spec := s.spec()
				spec.PersistentVolume.Spec.NFS.Server = server
				path := n.setUp(spec, "pod-1")
				content, err := os.ReadFile(filepath.Join(path, "file"))
				require.NoError(t, err)
				assert.Equal(t, "content", string(content))
				n.setUp(spec, "pod-1")
				found, err := n.plugin.options.Mounter.Lookup(t.Context(), path)
				require.NoError(t, err)
				assert.Contains(t, found.SuperOptions, "addr=::1")
				require.NoError(t, n.tearDown("pod-1"))
			}
		})
	}
}

func TestAServerIsReachedByItsNameAndByTheHelperOfTheSite(t *testing.T) {
	for _, name := range []string{"4.2", "4.0", "3 by mount.nfs"} {
		for who, options := range map[string]Options{
			"the plugin": {},
			"the site":   {Helper: mount.New(mount.Options{Helpers: map[string]mount.Helper{fsType: {}}})},
		} {
			t.Run(name+" for "+who, func(t *testing.T) {
				n, s := newNode(t, options), newShare(t, ways[name])
				s.write(t, "file", "content")
				spec := s.spec()
				spec.PersistentVolume.Spec.NFS.Server = "localhost"
				path := n.setUp(spec, "pod-1")
				content, err := os.ReadFile(filepath.Join(path, "file"))
				require.NoError(t, err)
				assert.Equal(t, "content", string(content))
				n.setUp(spec, "pod-1") // It is known for what it is.
				require.NoError(t, n.tearDown("pod-1"))
				assert.NoDirExists(t, path)
			})
		}
	}
}

// A teardown while the server is gone ends by its deadline, and is finished by one of those after it, without the server too
// where the mount gives up by itself.
func TestATeardownWithoutAServerEndsByItsDeadline(t *testing.T) {
	for _, name := range []string{"4.2", "3 by the kernel alone"} {
		t.Run(name, func(t *testing.T) {
			n, s := newNode(t, Options{}), newShare(t, ways[name])
			spec := s.spec("soft", "timeo=10", "retrans=1")
			path := n.setUp(spec, "pod-1")
			stopServer(t)
			back := sync.OnceFunc(func() { startServer(t) })
			defer back()
			u, err := n.plugin.NewUnmounter("data", "pod-1")
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := u.TearDown(ctx); err != nil {
				require.ErrorIs(t, err, volume.ErrUncertain, "it is not known")
			}
			eventually(t, func() bool { return n.tearDown("pod-1") == nil })
			assert.NoDirExists(t, path)
			back()
			n.setUp(spec, "pod-1")
			require.NoError(t, n.tearDown("pod-1"))
		})
	}
}

// A recycling that a silent server holds up ends by its deadline and leaves nothing in the way of the next one.
func TestARecyclingThatWasHeldUpIsDoneAgain(t *testing.T) {
	w, s := newWire(t), newShare(t, ways["3 by the kernel alone"])
	n := newNode(t, Options{})
	s.write(t, "file", "content")
	spec := s.spec(w.options()...)
	w.flow.Lock()
	speaks := sync.OnceFunc(w.flow.Unlock)
	defer speaks()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err := n.plugin.Recycle(ctx, "data", spec, func(string, string) {})
	require.ErrorIs(t, err, volume.ErrUncertain)
	assert.FileExists(t, filepath.Join(s.dir, "file"))
	speaks()
	var told []string
	eventually(t, func() bool {
		return n.plugin.Recycle(t.Context(), "data", spec, func(_, message string) { told = append(told, message) }) == nil
	})
	assert.Len(t, told, 1)
	entries, err := os.ReadDir(s.dir)
	require.NoError(t, err)
	assert.Empty(t, entries)
	table, err := n.plugin.options.Mounter.List(t.Context())
	require.NoError(t, err)
	for _, m := range table {
		assert.False(t, isNFS(m), "%s is left", m.Path)
	}
}
