package csi_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/bridge/csi/csidriver"
	"github.com/volumekit/volumekit/bridge/csi/csiserver"
	"github.com/volumekit/volumekit/bridge/csi/internal/csitest"
	"github.com/volumekit/volumekit/internal/faultrun"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins/hostpath"
	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volume/volumetest"
)

// serveWord is the argument with which the test binary serves a plugin and runs no tests.
const serveWord = "serve-loop-block"

// What the process serves: loop-block, whose volumes the node or a controller attaches, or host-path, whose volumes are not attached.
const (
	attachOnNode       = "on-node"
	attachByController = "by-controller"
	hostPaths          = "host-paths"
)

func TestMain(m *testing.M) {
	faultrun.Main()
	csitest.Main()
	if len(os.Args) == 4 && os.Args[1] == serveWord {
		if err := serve(os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) == 4 && os.Args[1] == fakeWord {
		if err := serveFake(os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	mounttest.Main(m)
}

// serve serves loop-block or host-path below dir until SIGTERM.
func serve(dir, attach string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	options := csiserver.Options{
		Socket: socketOf(dir), RootDir: filepath.Join(dir, "root"), StateDir: filepath.Join(dir, "state"),
		RuntimeDir: filepath.Join(dir, "run"), NodeName: "node-1", Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	if attach == attachOnNode {
		options.Attach = csiserver.AttachOnNode
	}
	plugin := volume.VolumePlugin(loopblock.New(loopblock.Options{MaxVolumes: 5}))
	if attach == hostPaths {
		plugin = hostpath.New(hostpath.Options{BaseDir: filepath.Join(dir, "volumes")})
		options.Logger = slog.New(slog.DiscardHandler)
	}
	server, err := csiserver.New(plugin, options)
	if err != nil {
		return err
	}
	return server.Run(ctx)
}

func socketOf(dir string) string { return filepath.Join(dir, "csi.sock") }

// serving has the output of a process. It closes begun when the process logs that it serves.
type serving struct {
	mu    sync.Mutex
	text  bytes.Buffer
	begun chan struct{}
}

func (s *serving) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := bytes.Contains(s.text.Bytes(), []byte("msg=serving"))
	n, err := s.text.Write(p)
	if !before && bytes.Contains(s.text.Bytes(), []byte("msg=serving")) {
		close(s.begun)
	}
	return n, err
}

func (s *serving) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// shortDir makes a directory whose path is short enough for a socket's address.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "csi") //nolint:usetesting // t.TempDir is too long for a socket.
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// byName returns the name of each node as the driver's id of it, as loop-block does.
type byName struct{}

func (byName) DriverNode(_ context.Context, driver string, node types.NodeName) (storagev1.CSINodeDriver, error) {
	return storagev1.CSINodeDriver{Name: driver, NodeID: string(node)}, nil
}

// served returns a driver that is connected to loop-block in another process. A descriptor that this process leaks is then the driver's.
func served(t *testing.T, attach string) *csidriver.Driver {
	t.Helper()
	dir := shortDir(t)
	output := &serving{begun: make(chan struct{})}
	command := exec.CommandContext(context.WithoutCancel(t.Context()), "/proc/self/exe", serveWord, dir, attach)
	command.Stdout, command.Stderr = output, output
	require.NoError(t, command.Start())
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGTERM) // Wait reports a process that has ended by itself.
		assert.NoError(t, <-ended, "%s", output)
	})
	select {
	case <-output.begun:
	case err := <-ended:
		ended <- err
		require.FailNow(t, "the driver has ended", "%v: %s", err, output)
	}
	driver, err := csidriver.New(csidriver.Options{Socket: socketOf(dir), Driver: loopblock.Driver, Nodes: byName{}})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, driver.Close()) })
	require.NoError(t, driver.Connect(t.Context()))
	return driver
}

// notThroughASocket lists rules that loop-block keeps and a served plugin cannot keep. The server stages below a root of its own and
// mounts nothing at the staging path of the call, as the specification allows. See decision 0127.
var notThroughASocket = []string{"S1", "S2", "S5", "S10"}

// A plugin that is served and used through its socket keeps the same rules as the plugin itself, except notThroughASocket.
func TestLoopBlockBehindBothBridges(t *testing.T) {
	mounttest.RequireRoot(t)
	driver := served(t, attachOnNode)
	config := volumetest.Config{
		NewPlugin: func(testing.TB) volume.VolumePlugin { return driver.Plugin() },
		Shared:    true,
		Lifetime:  volumetest.LifetimeOfStorage,
		Require: volume.CapPersistent | volume.CapProvision | volume.CapDelete | volume.CapDeviceMount | volume.CapBlock |
			volume.CapExpand | volume.CapNodeExpand | volume.CapClone | volume.CapModify |
			volume.CapSnapshot | volume.CapListSnapshots | volume.CapGroupSnapshot | volume.CapCapacity,
		MutableParameters: [2]map[string]string{
			{loopblock.ParameterDirectIO: "true", loopblock.ParameterReadAhead: "1Mi"},
			{loopblock.ParameterDirectIO: "false", loopblock.ParameterReadAhead: "64Ki"},
		},
	}
	for _, c := range volumetest.Cases() {
		if slices.Contains(notThroughASocket, c.Rule) {
			continue
		}
		t.Run(c.Rule+" "+c.Name, func(t *testing.T) { c.Run(t, config) })
	}
}

// loop-block is served, used through its socket, and served again. It passes as many specs of csi-sanity as loop-block served once:
// see csiserver.TestSanityOfLoopBlock.
func TestSanityThroughBothBridges(t *testing.T) {
	mounttest.RequireRoot(t)
	for name, block := range map[string]bool{"filesystems": false, "devices": true} {
		t.Run(name, func(t *testing.T) {
			driver, dir := served(t, attachByController), shortDir(t)
			server, err := csiserver.New(driver.Plugin(), csiserver.Options{
				Socket: socketOf(dir), RootDir: filepath.Join(dir, "root"), StateDir: filepath.Join(dir, "state"),
				RuntimeDir: filepath.Join(dir, "run"), NodeName: "node-1",
			})
			require.NoError(t, err)
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- server.Run(ctx) }()
			result := csitest.Sanity(t, csitest.Run{
				Socket: socketOf(dir), Dir: t.TempDir(), Size: 64 << 20, ExpandedSize: 96 << 20, AttachLimit: true, Block: block,
			})
			stop()
			require.NoError(t, <-ended)
			assert.Equal(t, 95, result.Passed)
		})
	}
}
