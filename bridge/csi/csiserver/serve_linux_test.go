package csiserver_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/volumekit/volumekit/bridge/csi/csiserver"
	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/volume"
)

// driver is a server that runs, and callers of it.
type driver struct {
	options    csiserver.Options
	connection *grpc.ClientConn
	identity   csi.IdentityClient
	control    csi.ControllerClient
	node       csi.NodeClient
	stop       func() // and wait until all has ended
}

// optionsIn are those of a server below dir.
func optionsIn(dir string) csiserver.Options {
	return csiserver.Options{
		Socket: filepath.Join(dir, "csi.sock"), RootDir: filepath.Join(dir, "root"),
		StateDir: filepath.Join(dir, "state"), RuntimeDir: filepath.Join(dir, "run"), NodeName: "node-1",
	}
}

// serve runs a server until the test ends, or its stop is called.
func serve(t *testing.T, plugin volume.VolumePlugin, options csiserver.Options) *driver {
	t.Helper()
	if options.Logger == nil {
		options.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	server, err := csiserver.New(plugin, options)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	connection, err := grpc.NewClient("unix:"+options.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	require.NoError(t, err)
	d := &driver{
		options: options, connection: connection, identity: csi.NewIdentityClient(connection),
		control: csi.NewControllerClient(connection), node: csi.NewNodeClient(connection),
	}
	stopped := false
	d.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		assert.NoError(t, <-ended)
		assert.NoError(t, connection.Close())
	}
	t.Cleanup(d.stop)
	_, err = d.identity.Probe(t.Context(), &csi.ProbeRequest{})
	require.NoError(t, err)
	return d
}

// assertNothingLeft looks at records, mounts, loop devices and the directories that pods and staging had, below dir.
func assertNothingLeft(t *testing.T, options csiserver.Options) {
	t.Helper()
	for _, dir := range []string{options.StateDir, options.RuntimeDir} {
		records, err := record.Peek(dir)
		require.NoError(t, err)
		assert.Empty(t, records, dir)
	}
	table, err := mount.New(mount.Options{}).List(t.Context())
	require.NoError(t, err)
	for _, m := range table {
		rel, err := filepath.Rel(filepath.Dir(options.RootDir), m.Path)
		assert.False(t, err == nil && filepath.IsLocal(rel), "mounted: %s", m.Path)
	}
	devices, err := loop.New(loop.Options{}).Devices(t.Context())
	require.NoError(t, err)
	for _, d := range devices {
		rel, err := filepath.Rel(options.RootDir, d.BackingPath)
		assert.False(t, err == nil && filepath.IsLocal(rel), "attached: %s", d.BackingPath)
	}
	pods, err := filepath.Glob(filepath.Join(options.RootDir, "pods", "*"))
	require.NoError(t, err)
	assert.Empty(t, pods)
	images, err := filepath.Glob(filepath.Join(options.RootDir, "plugins", "*", "*", "images", "*"))
	require.NoError(t, err)
	assert.Empty(t, images)
	_, err = os.Lstat(options.Socket)
	require.ErrorIs(t, err, os.ErrNotExist)
}
