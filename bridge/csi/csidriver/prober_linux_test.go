package csidriver

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/bridge/csi/internal/fakedriver"
	"github.com/volumekit/volumekit/bridge/csi/internal/registration"
	"github.com/volumekit/volumekit/volume"
)

// finder has a registry of plugins and a prober that finds plugins for it in a directory of sockets.
type finder struct {
	t       *testing.T
	dir     string
	prober  *Prober
	plugins *volume.VolumePluginMgr
	found   []string // the drivers for which ProberOptions.Found was called
}

func newFinder(t *testing.T, change func(*ProberOptions)) *finder {
	t.Helper()
	f := &finder{t: t, dir: shortDir(t)}
	host, err := volume.NewHost(volume.HostOptions{RootDir: t.TempDir(), NodeName: "node-1"})
	require.NoError(t, err)
	f.plugins = volume.NewVolumePluginMgr(host)
	options := ProberOptions{Dir: f.dir, Drivers: Options{Owners: owners(t)}}
	options.Found = func(_ context.Context, d *Driver) error {
		f.found = append(f.found, d.options.Driver)
		return nil
	}
	if change != nil {
		change(&options)
	}
	f.prober, err = NewProber(options)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, f.prober.Close()) })
	return f
}

func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "csi") //nolint:usetesting // t.TempDir is too long for a socket.
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// probe waits for changes and returns the names of the changed plugins.
func (f *finder) probe() []string {
	f.t.Helper()
	changed, err := f.plugins.Probe(f.t.Context(), f.prober)
	require.NoError(f.t, err)
	return changed
}

// serveAt serves a fake driver of that name, and returns the function that stops it.
func (f *finder) serveAt(path, name string) func() {
	f.t.Helper()
	stop, err := fakedriver.New(fakedriver.Options{Dir: f.t.TempDir(), Name: name}).Serve(path)
	require.NoError(f.t, err)
	return sync.OnceFunc(stop)
}

// attacher returns the attacher of the fake driver's plugin.
func (f *finder) attacher() attacher {
	f.t.Helper()
	plugin, err := f.plugins.FindAttachablePluginByName("csi.example.com/fake")
	require.NoError(f.t, err)
	a, err := plugin.NewAttacher()
	require.NoError(f.t, err)
	return a.(attacher)
}

// A driver that starts again has a new socket and a new plugin, here with another id of the node. The new plugin detaches earlier
// volumes with the id with which they were attached.
func TestADriverThatIsFoundAgainDetachesWithTheEarlierID(t *testing.T) {
	f := newFinder(t, nil)
	d, path := fakedriver.New(fakedriver.Options{Dir: t.TempDir(), NodeID: "id-1"}), filepath.Join(f.dir, "driver.sock")
	stop, err := d.Serve(path)
	require.NoError(t, err)
	f.probe()
	plugin := f.attacher().plugin
	provisioner, err := plugin.NewProvisioner(volume.VolumeOptions{PVName: "pv", PVC: claim()})
	require.NoError(t, err)
	pv, err := provisioner.Provision(t.Context(), nil, nil)
	require.NoError(t, err)
	_, err = f.attacher().Attach(t.Context(), volume.NewSpecFromPersistentVolume(pv, false), "node-1")
	require.NoError(t, err)

	stop()
	require.NoError(t, f.awaitGone(path))
	d.Update(func(o *fakedriver.Options) { o.NodeID = "id-2" })
	stop, err = d.Serve(path)
	require.NoError(t, err)
	defer stop()
	f.probe()
	require.NotSame(t, plugin, f.attacher().plugin)
	require.NoError(t, f.attacher().Detach(t.Context(), pv.Spec.CSI.VolumeHandle, "node-1"))
	assert.Empty(t, d.Volumes()[0].Nodes)
}

// awaitGone removes the socket of a stopped driver, if it is still there, and waits until its plugin is removed.
func (f *finder) awaitGone(path string) error {
	f.t.Helper()
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f.probe()
	return nil
}

// registrar announces one driver, as node-driver-registrar does, and keeps the results of its registration.
type registrar struct {
	info     registration.Info
	statuses chan registration.Status
}

func (r *registrar) GetInfo(context.Context) (registration.Info, error) { return r.info, nil }

func (r *registrar) Notify(_ context.Context, s registration.Status) error {
	r.statuses <- s
	return nil
}

// register serves a registrar in the directory.
func (f *finder) register(socket string, info registration.Info) *registrar {
	f.t.Helper()
	r := &registrar{info: info, statuses: make(chan registration.Status, 10)}
	listener, err := net.Listen("unix", filepath.Join(f.dir, socket))
	require.NoError(f.t, err)
	require.NoError(f.t, os.Chmod(listener.Addr().String(), 0o700))
	server := registration.NewServer(r)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	f.t.Cleanup(func() { server.Stop(); serving.Wait() })
	return r
}

// A driver has a plugin while its socket exists. It may start before the prober or after it.
func TestDriversAreFoundByTheirSockets(t *testing.T) {
	f := newFinder(t, nil)
	first, second := filepath.Join(f.dir, "first.sock"), filepath.Join(f.dir, "second.sock")
	defer f.serveAt(first, "first.example.com")()
	assert.Equal(t, []string{"example.com/first"}, f.probe())
	later := make(chan []string)
	go func() { later <- f.probe() }()
	stop := f.serveAt(second, "second.example.com")
	assert.Equal(t, []string{"example.com/second"}, <-later)
	assert.Equal(t, []string{"first.example.com", "second.example.com"}, f.found)
	plugin, err := f.plugins.FindPluginByName("example.com/second")
	require.NoError(t, err)

	stop() // This removes the socket, too.
	assert.Equal(t, []string{"example.com/second"}, f.probe())
	_, err = f.plugins.FindPluginByName("example.com/second")
	require.ErrorIs(t, err, volume.ErrNoPlugin)
	defer f.serveAt(second, "second.example.com")()
	assert.Equal(t, []string{"example.com/second"}, f.probe())
	again, err := f.plugins.FindPluginByName("example.com/second")
	require.NoError(t, err)
	assert.NotSame(t, plugin, again)
	_, err = f.plugins.FindPluginByName("example.com/first")
	require.NoError(t, err)
	assert.Empty(t, f.prober.Refused())
}

// The prober finds a driver through its kubelet registrar, and reports to the registrar that the driver is used.
func TestADriverIsFoundByItsRegistrar(t *testing.T) {
	f := newFinder(t, nil)
	endpoint := filepath.Join(shortDir(t), "csi.sock")
	defer f.serveAt(endpoint, fakedriver.Name)()
	r := f.register(fakedriver.Name+"-reg.sock", registration.Info{
		Type: registration.CSIPlugin, Name: fakedriver.Name, Endpoint: endpoint, Versions: []string{"1.0.0"},
	})
	assert.Equal(t, []string{"csi.example.com/fake"}, f.probe())
	assert.Equal(t, registration.Status{Registered: true}, <-r.statuses)
	require.NoError(t, os.Remove(filepath.Join(f.dir, fakedriver.Name+"-reg.sock")))
	assert.Equal(t, []string{"csi.example.com/fake"}, f.probe(), "its registrar is gone")
	assert.Empty(t, f.plugins.PluginNames())
}

// The prober refuses a driver that cannot be used, with an error that its registrar gets, too. It finds the other drivers.
func TestDriversThatAreRefused(t *testing.T) {
	f := newFinder(t, nil)
	refused := func(socket string) error { return f.prober.Refused()[filepath.Join(f.dir, socket)] }
	inside, open := shortDir(t), shortDir(t)
	require.NoError(t, os.Chmod(open, 0o777)) //nolint:gosec // That is what is refused.
	for _, path := range []string{filepath.Join(inside, "csi.sock"), filepath.Join(open, "csi.sock")} {
		defer f.serveAt(path, fakedriver.Name)()
	}
	rows := map[string]struct {
		info registration.Info
		is   error
	}{
		"name":     {registration.Info{Type: registration.CSIPlugin, Name: "other.example.com", Endpoint: inside + "/csi.sock"}, volume.ErrInvalid},
		"type":     {registration.Info{Type: "DevicePlugin", Name: fakedriver.Name, Endpoint: inside + "/csi.sock"}, volume.ErrUnsupported},
		"version":  {registration.Info{Type: registration.CSIPlugin, Name: fakedriver.Name, Endpoint: inside + "/csi.sock", Versions: []string{"0.3.0"}}, volume.ErrUnsupported},
		"relative": {registration.Info{Type: registration.CSIPlugin, Name: fakedriver.Name, Endpoint: "csi.sock"}, volume.ErrInvalid},
		"open":     {registration.Info{Type: registration.CSIPlugin, Name: "open.example.com", Endpoint: open + "/csi.sock"}, ErrUntrustedSocket},
		"badname":  {registration.Info{Type: registration.CSIPlugin, Name: "no_name", Endpoint: inside + "/csi.sock"}, volume.ErrInvalid},
	}
	registrars := map[string]*registrar{}
	for name, row := range rows {
		registrars[name] = f.register(name, row.info)
	}
	events := make(chan []string)
	go func() { events <- f.probe() }()
	for name := range rows {
		said := <-registrars[name].statuses
		assert.False(t, said.Registered, name)
		assert.NotEmpty(t, said.Error, name)
	}
	defer f.serveAt(filepath.Join(f.dir, "well"), "well.example.com")()
	assert.Equal(t, []string{"example.com/well"}, <-events)
	f.prober.work.Wait()
	for name, row := range rows {
		require.ErrorIs(t, refused(name), row.is, name)
	}
}

// If two drivers have the same name, the prober keeps the first. It uses the second when the first is gone.
func TestTwoDriversOfOneName(t *testing.T) {
	f := newFinder(t, nil)
	stop := f.serveAt(filepath.Join(f.dir, "a"), fakedriver.Name)
	assert.Equal(t, []string{"csi.example.com/fake"}, f.probe())
	endpoint := filepath.Join(shortDir(t), "csi.sock")
	defer f.serveAt(endpoint, fakedriver.Name)()
	r := f.register("b", registration.Info{Type: registration.CSIPlugin, Name: fakedriver.Name, Endpoint: endpoint})
	events := make(chan []string)
	go func() { events <- f.probe() }()
	said := <-r.statuses
	assert.False(t, said.Registered)
	assert.Contains(t, said.Error, filepath.Join(f.dir, "a"), "it says where the other one is")
	stop()
	assert.Equal(t, []string{"csi.example.com/fake"}, <-events, "the first is gone")
	assert.Equal(t, []string{"csi.example.com/fake"}, f.probe(), "the second is tried again, and used")
	assert.Equal(t, registration.Status{Registered: true}, <-r.statuses)
}

// A driver that does not answer does not delay other drivers. Closing the prober ends the call to it.
func TestASilentSocketHoldsUpNoOther(t *testing.T) {
	f := newFinder(t, nil)
	listener, err := net.Listen("unix", filepath.Join(f.dir, "silent"))
	require.NoError(t, err)
	require.NoError(t, os.Chmod(listener.Addr().String(), 0o700))
	defer func() { assert.NoError(t, listener.Close()) }()
	defer f.serveAt(filepath.Join(f.dir, "well"), "well.example.com")()
	ctx, cancel := context.WithCancel(t.Context())
	changed, err := f.plugins.Probe(ctx, f.prober)
	require.NoError(t, err)
	assert.Equal(t, []string{"example.com/well"}, changed)
	cancel()
	_, err = f.prober.Probe(ctx)
	require.ErrorIs(t, err, context.Canceled)
	_, err = f.plugins.FindPluginBySpec(volume.NewSpecFromVolume(&v1.Volume{VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "well.example.com"}}}))
	require.NoError(t, err)
}
