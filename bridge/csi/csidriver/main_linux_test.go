package csidriver

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/bridge/csi/internal/fakedriver"
	"github.com/volumekit/volumekit/mount/mounttest"
)

func TestMain(m *testing.M) { mounttest.Main(m) }

// owners are those of the root directory, which is another user's where the tests run in a user namespace.
func owners(t testing.TB) []uint32 {
	t.Helper()
	var root unix.Stat_t
	require.NoError(t, unix.Stat("/", &root))
	return []uint32{root.Uid}
}

// served is a fake driver behind a socket.
type served struct {
	*fakedriver.Driver

	t      *testing.T
	socket string
	stop   func()
}

func serve(t *testing.T, options fakedriver.Options) *served {
	t.Helper()
	dir, err := os.MkdirTemp("", "csi") //nolint:usetesting // t.TempDir is too long for a socket.
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	if options.Dir == "" {
		options.Dir = t.TempDir()
	}
	s := &served{Driver: fakedriver.New(options), t: t, socket: filepath.Join(dir, "csi.sock")}
	s.start()
	t.Cleanup(func() { s.stop() })
	return s
}

func (s *served) start() {
	s.t.Helper()
	stop, err := s.Serve(s.socket)
	require.NoError(s.t, err)
	s.stop = stop
}

func (s *served) restart() {
	s.t.Helper()
	s.stop()
	s.start()
}

// client returns a client of the driver.
func (s *served) client(change func(*Options)) *client {
	s.t.Helper()
	options := Options{Socket: s.socket, Driver: fakedriver.Name, Owners: owners(s.t)}
	if change != nil {
		change(&options)
	}
	options, err := options.complete()
	require.NoError(s.t, err)
	l := newClient(options)
	s.t.Cleanup(func() { assert.NoError(s.t, l.close()) })
	return l
}
