package csi_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/bridge/csi/csidriver"
	"github.com/volumekit/volumekit/bridge/csi/csiserver"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volume/volumetest"
)

// serveWord has the test binary serve loop-block in the place of running tests.
const serveWord = "serve-loop-block"

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == serveWord {
		if err := serve(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	mounttest.Main(m)
}

// serve serves loop-block below dir until it is told to end.
func serve(dir string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	server, err := csiserver.New(loopblock.New(loopblock.Options{}), csiserver.Options{
		Socket: socketOf(dir), RootDir: filepath.Join(dir, "root"), StateDir: filepath.Join(dir, "state"),
		RuntimeDir: filepath.Join(dir, "run"), NodeName: "node-1", Attach: csiserver.AttachOnNode,
	})
	if err != nil {
		return err
	}
	return server.Run(ctx)
}

func socketOf(dir string) string { return filepath.Join(dir, "csi.sock") }

// served returns a driver that is connected to loop-block, which another process serves, so that what is left open in this process is
// the driver's.
func served(t *testing.T) *csidriver.Driver {
	t.Helper()
	dir, err := os.MkdirTemp("", "csi") //nolint:usetesting // t.TempDir is too long for a socket.
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	var output bytes.Buffer
	command := exec.CommandContext(context.WithoutCancel(t.Context()), "/proc/self/exe", serveWord, dir)
	command.Stdout, command.Stderr = &output, &output
	require.NoError(t, command.Start())
	t.Cleanup(func() {
		assert.NoError(t, command.Process.Signal(syscall.SIGTERM))
		assert.NoError(t, command.Wait(), "%s", &output)
	})
	driver, err := csidriver.New(csidriver.Options{Socket: socketOf(dir), Driver: loopblock.Driver})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, driver.Close()) })
	require.Eventually(t, func() bool { return driver.Connect(t.Context()) == nil }, time.Minute, time.Millisecond)
	return driver
}

// notThroughASocket are the rules that loop-block keeps and that nobody can keep through a driver that stages below a root of its own:
// nothing is mounted at the path that it is given for staging, as the specification allows.
var notThroughASocket = []string{"S1", "S2", "S5", "S10"}

// A plugin that is served, and driven through its socket, keeps the rules that it keeps without.
func TestLoopBlockBehindBothBridges(t *testing.T) {
	mounttest.RequireRoot(t)
	driver := served(t)
	config := volumetest.Config{
		NewPlugin: func(testing.TB) volume.VolumePlugin { return driver.Plugin() },
		Shared:    true,
		Lifetime:  volumetest.LifetimeOfStorage,
		Require: volume.CapPersistent | volume.CapProvision | volume.CapDelete | volume.CapDeviceMount | volume.CapBlock |
			volume.CapExpand | volume.CapNodeExpand | volume.CapClone,
	}
	for _, c := range volumetest.Cases() {
		if slices.Contains(notThroughASocket, c.Rule) {
			continue
		}
		t.Run(c.Rule+" "+c.Name, func(t *testing.T) { c.Run(t, config) })
	}
}
