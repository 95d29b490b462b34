package dockerserver_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/bridge/docker/dockerserver"
	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/volume"
)

// driver is a server that runs, and its caller.
type driver struct {
	options dockerserver.Options
	client  *http.Client
	stop    func() // and wait until all has ended
}

// answer is the fields of all answers.
type answer struct {
	Implements   []string
	Mountpoint   string
	Err          string
	Capabilities map[string]string
	Volume       *listed
	Volumes      []listed
}

type listed struct {
	Name, Mountpoint, CreatedAt string
	Status                      map[string]any
}

func optionsIn(t testing.TB) dockerserver.Options {
	t.Helper()
	dir := t.TempDir()
	sockets, err := os.MkdirTemp("", "s") //nolint:usetesting // the path of a socket must be short
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(sockets)) })
	return dockerserver.Options{
		Socket: filepath.Join(sockets, "p", "vk.sock"), RootDir: filepath.Join(dir, "root"),
		StateDir: filepath.Join(dir, "state"), RuntimeDir: filepath.Join(dir, "run"), NodeName: "node-1",
		DefaultVolumeSize: 16 << 20, CallTimeout: time.Minute,
	}
}

// serve runs a server until the test ends, or its stop is called.
func serve(t testing.TB, plugin volume.VolumePlugin, options dockerserver.Options) *driver {
	t.Helper()
	if options.Logger == nil {
		options.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	server, err := dockerserver.New(plugin, options)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	d := &driver{options: options, client: client(options.Socket)}
	stopped := false
	d.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		d.client.CloseIdleConnections()
		assert.NoError(t, <-ended)
	}
	t.Cleanup(d.stop)
	require.Eventually(t, func() bool {
		_, err := d.post(t.Context(), "Plugin.Activate", nil)
		return err == nil
	}, time.Minute, time.Millisecond)
	return d
}

func client(socket string) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "unix", socket)
	}}}
}

// post makes a call with a body as it is.
func (d *driver) post(ctx context.Context, call string, body []byte) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://docker/"+call, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	response, err := d.client.Do(request)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(response.Body)
	response.Body = io.NopCloser(bytes.NewReader(text))
	return response, err
}

// try makes a call, and returns what was answered.
func (d *driver) try(ctx context.Context, call string, request any) (a answer, err error) {
	body, err := json.Marshal(request)
	if err != nil {
		return a, err
	}
	response, err := d.post(ctx, call, body)
	if err != nil {
		return a, err
	}
	if err := json.NewDecoder(response.Body).Decode(&a); err != nil {
		return a, err
	}
	if a.Err != "" || response.StatusCode != http.StatusOK {
		return a, fmt.Errorf("%s answers %d: %s", call, response.StatusCode, a.Err)
	}
	return a, nil
}

func (d *driver) call(t testing.TB, call string, request any) answer {
	t.Helper()
	a, err := d.try(t.Context(), call, request)
	require.NoError(t, err)
	return a
}

func (d *driver) refused(t testing.TB, call string, request any, says string) {
	t.Helper()
	_, err := d.try(t.Context(), call, request)
	require.ErrorContains(t, err, says)
}

type args map[string]any

func (d *driver) create(t testing.TB, name string, options map[string]string) {
	t.Helper()
	d.call(t, "VolumeDriver.Create", args{"Name": name, "Opts": options})
}

func (d *driver) mount(t testing.TB, name, id string) string {
	t.Helper()
	return d.call(t, "VolumeDriver.Mount", args{"Name": name, "ID": id}).Mountpoint
}

func (d *driver) unmount(t testing.TB, name, id string) {
	t.Helper()
	d.call(t, "VolumeDriver.Unmount", args{"Name": name, "ID": id})
}

func (d *driver) remove(t testing.TB, name string) {
	t.Helper()
	d.call(t, "VolumeDriver.Remove", args{"Name": name})
}

// mountsBelow are the mount points below dir.
func mountsBelow(t *testing.T, dir string) []string {
	t.Helper()
	table, err := mount.New(mount.Options{}).List(t.Context())
	require.NoError(t, err)
	var found []string
	for _, m := range table {
		if rel, err := filepath.Rel(dir, m.Path); err == nil && filepath.IsLocal(rel) {
			found = append(found, m.Path)
		}
	}
	return found
}

// assertNothingAttached looks at loop devices. Only root, and not that of a user namespace, can look at them or attach one.
func assertNothingAttached(t *testing.T, dir string) {
	t.Helper()
	devices, err := loop.New(loop.Options{}).Devices(t.Context())
	if errors.Is(err, fs.ErrPermission) {
		return
	}
	require.NoError(t, err)
	for _, d := range devices {
		rel, err := filepath.Rel(dir, d.BackingPath)
		assert.False(t, err == nil && filepath.IsLocal(rel), "attached: %s", d.BackingPath)
	}
}

// assertNothingLeft looks at records, mounts, loop devices and the directories of pods and images. The server must have stopped.
func assertNothingLeft(t *testing.T, options dockerserver.Options) {
	t.Helper()
	for _, dir := range []string{
		options.StateDir + "/volumes", options.StateDir + "/node", options.RuntimeDir + "/uses", options.RuntimeDir + "/node",
	} {
		records, err := record.Peek(dir)
		require.NoError(t, err)
		assert.Empty(t, records, dir)
	}
	assert.Empty(t, mountsBelow(t, filepath.Dir(options.RootDir)))
	assertNothingAttached(t, options.RootDir)
	for _, pattern := range []string{"pods/*", "plugins/*/*/images/*"} {
		left, err := filepath.Glob(filepath.Join(options.RootDir, pattern))
		require.NoError(t, err)
		assert.Empty(t, left)
	}
	assert.NoFileExists(t, options.Socket)
}
