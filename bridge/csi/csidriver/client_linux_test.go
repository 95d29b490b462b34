package csidriver

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/volumekit/volumekit/bridge/csi/internal/csispec"
	"github.com/volumekit/volumekit/bridge/csi/internal/fakedriver"
	"github.com/volumekit/volumekit/volume"
)

func TestOneConnectionIsKept(t *testing.T) {
	d := serve(t, fakedriver.Options{})
	l := d.client(nil)
	first, err := l.session(t.Context())
	require.NoError(t, err)
	for range 10 {
		s, err := l.session(t.Context())
		require.NoError(t, err)
		assert.Same(t, first, s)
	}
	assert.Equal(t, 1, d.Count("Probe"))
}

// After each reconnect the plugin reads the driver's name, its capabilities and its id of this node.
func TestADriverIsAskedAgainAfterEachReconnect(t *testing.T) {
	d := serve(t, fakedriver.Options{})
	l := d.client(nil)
	before, err := l.session(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "fake-node", before.facts.nodeID)
	assert.True(t, before.facts.node[csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME])

	d.stop()
	require.Eventually(t, func() bool { _, err = l.session(t.Context()); return err != nil }, time.Minute, time.Millisecond)
	require.ErrorIs(t, err, volume.ErrTransient, "nothing was begun")
	assert.True(t, l.known().node[csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME], "what was answered is known for as long as nothing else is")

	d.Update(func(o *fakedriver.Options) {
		o.NodeID, o.Node = "other", []csi.NodeServiceCapability_RPC_Type{csi.NodeServiceCapability_RPC_GET_VOLUME_STATS}
	})
	d.start()
	after, err := l.session(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "other", after.facts.nodeID)
	assert.False(t, after.facts.node[csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME])
}

// What was not answered is unknown, not unsupported: a connection on which a question failed is not used.
func TestWhatWasNotAnsweredIsUnknown(t *testing.T) {
	for _, method := range []string{"Probe", "GetPluginInfo", "GetPluginCapabilities", "ControllerGetCapabilities", "NodeGetCapabilities", "NodeGetInfo"} {
		t.Run(method, func(t *testing.T) {
			d := serve(t, fakedriver.Options{})
			l := d.client(nil)
			d.Plan(method, fakedriver.Fault{Code: codes.Internal})
			_, err := l.session(t.Context())
			require.ErrorIs(t, err, volume.ErrTransient)
			assert.Empty(t, l.known())

			s, err := l.session(t.Context())
			require.NoError(t, err)
			assert.True(t, s.facts.controller[csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME])
			assert.True(t, s.facts.node[csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME])
		})
	}
}

// A socket of one service serves the plugin that uses that one; the other is told which to use.
func TestOneServiceAloneIsReachable(t *testing.T) {
	unimplemented := fakedriver.Fault{Code: codes.Unimplemented, Always: true}
	for _, c := range []struct {
		services Services
		method   string
	}{{Node, "ControllerGetCapabilities"}, {Controller, "NodeGetCapabilities"}} {
		d := serve(t, fakedriver.Options{})
		d.Plan(c.method, unimplemented)
		_, err := d.client(nil).session(t.Context())
		require.ErrorContains(t, err, "Options.Services")
		_, err = d.client(func(o *Options) { o.Services = c.services }).session(t.Context())
		require.NoError(t, err)
	}
}

func TestAnotherDriverIsRefused(t *testing.T) {
	d := serve(t, fakedriver.Options{Name: "other.csi.example.com"})
	_, err := d.client(nil).session(t.Context())
	require.ErrorIs(t, err, volume.ErrInvalid)
	require.ErrorContains(t, err, "other.csi.example.com")
}

func TestNamesAndIDsThatTheSpecificationDoesNotAllowAreRefused(t *testing.T) {
	for _, name := range []string{"no/slash.example.com", "-begins.example.com", strings.Repeat("a", 60) + ".com"} {
		d := serve(t, fakedriver.Options{Name: name})
		_, err := d.client(func(o *Options) { o.Driver = "" }).session(t.Context())
		require.ErrorIs(t, err, volume.ErrInvalid, name)
	}
	for _, id := range []string{strings.Repeat("a", 257), "node\x00"} {
		d := serve(t, fakedriver.Options{NodeID: id})
		_, err := d.client(nil).session(t.Context())
		require.ErrorIs(t, err, volume.ErrInvalid, id)
	}
	require.ErrorIs(t, checkPluginName("hostpath"), volume.ErrInvalid, "it has no dot, and so is no plugin's")
}

// A call does not go over a connection that was made after its driver was asked.
func TestNoCallGoesOverAnotherConnection(t *testing.T) {
	d := serve(t, fakedriver.Options{})
	l := d.client(nil)
	s, err := l.session(t.Context())
	require.NoError(t, err)
	d.restart()
	_, err = call(t.Context(), s, "DeleteVolume", csi.NewControllerClient(s.conn).DeleteVolume, &csi.DeleteVolumeRequest{VolumeId: "a"})
	require.ErrorIs(t, err, volume.ErrUncertain)
	assert.Zero(t, d.Count("DeleteVolume"))
}

// An answer that is too large, or has a field that is, comes when the call has had its effect.
func TestAnAnswerThatIsTooLargeIsUncertain(t *testing.T) {
	for name, change := range map[string]func(*csi.Volume){
		"message": func(v *csi.Volume) { v.VolumeContext = map[string]string{"a": strings.Repeat("a", 5<<20)} },
		"map":     func(v *csi.Volume) { v.VolumeContext = map[string]string{"a": strings.Repeat("a", 5<<10)} },
		"id":      func(v *csi.Volume) { v.VolumeId = strings.Repeat("a", 129) },
	} {
		t.Run(name, func(t *testing.T) {
			d := serve(t, fakedriver.Options{})
			d.Plan("CreateVolume", fakedriver.Fault{Change: func(answer proto.Message) { change(answer.(*csi.CreateVolumeResponse).GetVolume()) }})
			s, err := d.client(nil).session(t.Context())
			require.NoError(t, err)
			_, err = call(t.Context(), s, "CreateVolume", csi.NewControllerClient(s.conn).CreateVolume, &csi.CreateVolumeRequest{Name: "a"})
			require.ErrorIs(t, err, volume.ErrUncertain)
			require.NotErrorIs(t, err, volume.ErrAttachLimit)
			assert.Less(t, len(err.Error()), 1000)
			assert.Len(t, d.Volumes(), 1)
		})
	}
}

func TestLongerIDsAreAllowedWhereTheyAreAskedFor(t *testing.T) {
	d := serve(t, fakedriver.Options{})
	s, err := d.client(func(o *Options) { o.MaxString = 512 }).session(t.Context())
	require.NoError(t, err)
	name := strings.Repeat("a", 200)
	_, err = call(t.Context(), s, "CreateVolume", csi.NewControllerClient(s.conn).CreateVolume, &csi.CreateVolumeRequest{Name: name})
	require.NoError(t, err)
}

// A driver that says nothing holds up its callers until their time is over, each for itself, and no longer.
func TestASilentDriverEndsWithTheContext(t *testing.T) {
	d := serve(t, fakedriver.Options{})
	speaks := make(chan struct{})
	defer close(speaks)
	d.Plan("Probe", fakedriver.Fault{Hold: speaks, Always: true})
	l := d.client(nil)
	var ended [3]chan error
	var cancels [3]context.CancelFunc
	for i := range ended {
		ctx, cancel := context.WithCancel(t.Context())
		ended[i], cancels[i] = make(chan error, 1), cancel
		go func() { _, err := l.session(ctx); ended[i] <- err }()
	}
	require.Eventually(t, func() bool { return d.Count("Probe") == 1 }, time.Minute, time.Millisecond)
	for i := range ended {
		cancels[i]()
		err := <-ended[i]
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, volume.ErrTransient)
	}
}

// A call that was cut off is uncertain, also where it took its effect later.
func TestACallThatWasCutOffIsUncertain(t *testing.T) {
	d := serve(t, fakedriver.Options{})
	goesOn := make(chan struct{})
	d.Plan("CreateVolume", fakedriver.Fault{Hold: goesOn})
	s, err := d.client(cutsOffAtOnce).session(t.Context())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for d.Count("CreateVolume") == 0 {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	_, err = call(ctx, s, "CreateVolume", csi.NewControllerClient(s.conn).CreateVolume, &csi.CreateVolumeRequest{Name: "a"})
	require.ErrorIs(t, err, volume.ErrUncertain)
	require.ErrorIs(t, err, context.Canceled)
	close(goesOn)
	require.Eventually(t, func() bool { return len(d.Volumes()) == 1 }, time.Minute, time.Millisecond)
}

func TestASocketThatOthersMayWriteToIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		socket, dir os.FileMode
		refused     bool
	}{
		"only the owner":          {0o700, 0o755, false},
		"others may read":         {0o755, 0o755, false},
		"others may write":        {0o777, 0o755, true},
		"others may replace it":   {0o700, 0o777, true},
		"a directory like /tmp":   {0o700, 0o777 | os.ModeSticky, false},
		"others may write in tmp": {0o702, 0o777 | os.ModeSticky, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "csi") //nolint:usetesting // t.TempDir is too long for a socket.
			require.NoError(t, err)
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			path := filepath.Join(dir, "s")
			listener, err := net.Listen("unix", path)
			require.NoError(t, err)
			t.Cleanup(func() { _ = listener.Close() })
			require.NoError(t, os.Chmod(path, c.socket))
			require.NoError(t, os.Chmod(dir, c.dir))
			err = checkSocket(path, owners(t))
			if c.refused {
				require.ErrorIs(t, err, ErrUntrustedSocket)
				require.ErrorContains(t, err, dir)
				return
			}
			require.NoError(t, err)
		})
	}
}

func TestWhatIsNoSocketIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.ErrorIs(t, checkSocket(path, nil), volume.ErrInvalid)
	require.ErrorIs(t, checkSocket(path+"-absent", nil), os.ErrNotExist)
	_, err := Options{Socket: "csi.sock"}.complete()
	require.ErrorIs(t, err, volume.ErrInvalid)
}

func TestAClosedClientConnectsNoMore(t *testing.T) {
	d := serve(t, fakedriver.Options{})
	l := d.client(nil)
	_, err := l.session(t.Context())
	require.NoError(t, err)
	require.NoError(t, l.close())
	_, err = l.session(t.Context())
	require.ErrorIs(t, err, volume.ErrTransient)
	assert.Equal(t, 1, d.Count("Probe"))
}

func TestARequestThatIsTooLargeIsNotSent(t *testing.T) {
	d := serve(t, fakedriver.Options{})
	s, err := d.client(nil).session(t.Context())
	require.NoError(t, err)
	_, err = call(t.Context(), s, "CreateVolume", csi.NewControllerClient(s.conn).CreateVolume,
		&csi.CreateVolumeRequest{Name: strings.Repeat("a", csispec.MaxString+1)})
	require.ErrorIs(t, err, volume.ErrInvalid)
	require.NotErrorIs(t, err, volume.ErrUncertain)
	assert.Zero(t, d.Count("CreateVolume"))
}
