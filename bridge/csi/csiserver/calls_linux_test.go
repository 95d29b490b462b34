package csiserver_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"

	"github.com/volumekit/volumekit/bridge/csi/csiserver"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/volume"
)

// log is what a server has logged. Its zero value can be used.
type log struct {
	mu     sync.Mutex
	text   bytes.Buffer
	waiter chan struct{} // closed with the next line; nil if no caller waits
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiter != nil {
		close(l.waiter)
		l.waiter = nil
	}
	return l.text.Write(p)
}

// await returns when a line has the text.
func (l *log) await(ctx context.Context, text string) error {
	for {
		more, found := l.next(text)
		if found {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// next reports whether a line has the text; else more is closed with the next line.
func (l *log) next(text string) (more <-chan struct{}, found bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if strings.Contains(l.text.String(), text) {
		return nil, true
	}
	if l.waiter == nil {
		l.waiter = make(chan struct{})
	}
	return l.waiter, false
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// faked serves the fake, whose storage and mounts are in memory.
func faked(t *testing.T, options csiserver.Options) (*caller, *fake.Plugin) {
	t.Helper()
	mounter := fake.NewMounter(fake.MounterOptions{})
	plugin := fake.NewPlugin(fake.PluginOptions{Mounter: mounter})
	options.Mounter = mounter
	d := serve(t, plugin, options)
	return &caller{driver: d, capability: mounted(writer), staging: "/staging"}, plugin
}

// Each way in which a call of the plugin can fail is answered with a code that says whether the effect may be there.
func TestCodesOfThePluginsErrors(t *testing.T) {
	c, plugin := faked(t, optionsIn(t.TempDir()))
	require.NoError(t, c.create(t.Context(), "data"))
	require.NoError(t, c.attach(t.Context()))
	cause := errors.New("cause")
	for _, row := range []struct {
		err  error
		code codes.Code
	}{
		{cause, codes.Internal},
		{volume.Uncertain(cause), codes.Unavailable},
		{volume.Transient(cause), codes.Unavailable},
		{volume.Uncertain(fmt.Errorf("%w: %w", cause, volume.ErrInvalid)), codes.Unavailable},
		{context.DeadlineExceeded, codes.DeadlineExceeded},
		{fmt.Errorf("%w: %w", cause, volume.ErrInvalid), codes.InvalidArgument},
		{fmt.Errorf("%w: %w", cause, volume.ErrInUse), codes.FailedPrecondition},
		{fmt.Errorf("%w: %w", cause, volume.ErrUnsupported), codes.FailedPrecondition},
		{fmt.Errorf("%w: %w", cause, volume.ErrNotFound), codes.NotFound},
		{fmt.Errorf("%w: %w", cause, volume.ErrInfeasible), codes.OutOfRange},
		{fmt.Errorf("%w: %w", cause, syscall.ENOSPC), codes.ResourceExhausted},
	} {
		plugin.Inject(fake.MethodMountDevice, fake.Fail(row.err))
		codeIs(t, row.code, c.stage(t.Context()))
	}
	plugin.Inject(fake.MethodMountDevice, fake.PanicWith("out of order"))
	codeIs(t, codes.Internal, c.stage(t.Context()))
	require.NoError(t, c.stage(t.Context()))
}

// An uncertain modification is not answered with a code that says that it has no effect.
func TestCodesOfAModificationThatFails(t *testing.T) {
	c, plugin := faked(t, optionsIn(t.TempDir()))
	require.NoError(t, c.create(t.Context(), "data"))
	for _, row := range []struct {
		err  error
		code codes.Code
	}{
		{fs.ErrNotExist, codes.NotFound},
		{volume.Uncertain(fs.ErrNotExist), codes.Unavailable},
		{volume.Transient(fs.ErrNotExist), codes.Unavailable},
		{volume.ErrInfeasible, codes.InvalidArgument},
		{volume.Uncertain(volume.ErrInfeasible), codes.Unavailable},
	} {
		plugin.Inject(fake.MethodModifyVolume, fake.Fail(row.err))
		_, err := c.control.ControllerModifyVolume(t.Context(), &csi.ControllerModifyVolumeRequest{VolumeId: c.volume.GetVolumeId()})
		codeIs(t, row.code, err)
	}
}

// A success without a mount would have a workload write into the directory beneath.
func TestASuccessThatMountedNothingIsAnError(t *testing.T) {
	c, plugin := faked(t, optionsIn(t.TempDir()))
	require.NoError(t, c.create(t.Context(), "data"))
	require.NoError(t, c.attach(t.Context()))
	plugin.Inject(fake.MethodMountDevice, fake.SkipWork())
	codeIs(t, codes.Unavailable, c.stage(t.Context()))
	require.NoError(t, c.stage(t.Context()))
	plugin.Inject(fake.MethodSetUp, fake.SkipWork())
	codeIs(t, codes.Unavailable, c.publish(t.Context(), "/target"))
	require.NoError(t, c.publish(t.Context(), "/target"))
}

func TestOneCallChangesAVolumeAtATime(t *testing.T) {
	c, plugin := faked(t, optionsIn(t.TempDir()))
	require.NoError(t, c.create(t.Context(), "data"))
	require.NoError(t, c.attach(t.Context()))
	release := make(chan struct{})
	plugin.Inject(fake.MethodMountDevice, fake.HangUntil(release))
	first := make(chan error, 1)
	go func() { first <- c.stage(t.Context()) }()
	require.NoError(t, plugin.AwaitCalls(t.Context(), fake.MethodMountDevice, 1))
	codeIs(t, codes.Aborted, c.stage(t.Context()))
	codeIs(t, codes.Aborted, c.unstage(t.Context()))
	codeIs(t, codes.Aborted, c.detach(t.Context()))
	other := &caller{driver: c.driver, capability: c.capability, staging: "/other"}
	require.NoError(t, other.create(t.Context(), "other"), "another volume is not held up")
	require.NoError(t, other.attach(t.Context()))
	require.NoError(t, other.stage(t.Context()))
	close(release)
	require.NoError(t, <-first)
	require.NoError(t, c.unstage(t.Context()))
}

// The caller has gone, and the call of the plugin goes on: nothing else is started on the volume until it has ended.
func TestAVolumeIsKeptUntilAnAbandonedCallHasEnded(t *testing.T) {
	var lines log
	options := optionsIn(t.TempDir())
	options.Logger = slog.New(slog.NewTextHandler(&lines, nil))
	c, plugin := faked(t, options)
	require.NoError(t, c.create(t.Context(), "data"))
	require.NoError(t, c.attach(t.Context()))
	running := abandoned{done: make(chan struct{})}
	plugin.Inject(fake.MethodMountDevice, fake.Fail(running))
	codeIs(t, codes.Unavailable, c.stage(t.Context()))
	codeIs(t, codes.Aborted, c.stage(t.Context()))
	close(running.done)
	require.NoError(t, lines.await(t.Context(), "an abandoned call has ended"))
	require.NoError(t, c.stage(t.Context()))
}

// abandoned is an error of a call that still runs.
type abandoned struct{ done chan struct{} }

func (a abandoned) Error() string         { return "it has not returned" }
func (a abandoned) Uncertain() bool       { return true }
func (a abandoned) Done() <-chan struct{} { return a.done }

const (
	secret = "hunter2-hunter2"
	size   = "104857612" // of a mount flag that the fake's filesystem knows
)

// Neither secrets nor mount flags are in errors, logs and records, whatever the plugin says.
func TestSecretsAreNowhere(t *testing.T) {
	var lines log
	options := optionsIn(t.TempDir())
	options.Logger = slog.New(slog.NewTextHandler(&lines, &slog.HandlerOptions{Level: slog.LevelDebug}))
	c, plugin := faked(t, options)
	c.capability = mounted(writer, "size="+size)
	require.NoError(t, c.create(t.Context(), "data"))
	require.NoError(t, c.attach(t.Context()))
	stage := func() error {
		_, err := c.node.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{
			VolumeId: "data", StagingTargetPath: "/staging", VolumeCapability: c.capability, PublishContext: c.context,
			VolumeContext: c.volume.GetVolumeContext(), Secrets: map[string]string{"token": secret},
		})
		return err
	}
	for _, fault := range []fake.Fault{
		fake.Fail(errors.New("mount -o size=" + size)), fake.Fail(errors.New("token " + secret)),
		fake.PanicWith(secret), fake.Fail(volume.Uncertain(errors.New(secret))),
	} {
		plugin.Inject(fake.MethodMountDevice, fault)
		err := stage()
		require.Error(t, err)
		assert.NotContains(t, err.Error(), secret)
		assert.NotContains(t, err.Error(), size)
	}
	require.NoError(t, stage())
	require.NoError(t, c.publish(t.Context(), "/target"))
	for _, dir := range []string{options.StateDir, options.RuntimeDir} {
		records, err := record.Peek(dir)
		require.NoError(t, err)
		assert.NotEmpty(t, records)
		assert.NotContains(t, fmt.Sprint(records), secret)
		assert.NotContains(t, fmt.Sprint(records), size)
	}
	assert.Contains(t, lines.String(), "NodeStageVolume")
	assert.NotContains(t, lines.String(), secret)
	assert.NotContains(t, lines.String(), size)
}

func TestRequestsAreBounded(t *testing.T) {
	c, _ := faked(t, optionsIn(t.TempDir()))
	require.NoError(t, c.create(t.Context(), "data"))
	codeIs(t, codes.InvalidArgument, c.create(t.Context(), strings.Repeat("n", 129)))
	codeIs(t, codes.InvalidArgument, c.create(t.Context(), "a\x00b"))
	c.context = map[string]string{"k": strings.Repeat("v", 5000)}
	codeIs(t, codes.InvalidArgument, c.stage(t.Context()))
	c.context = map[string]string{"k": strings.Repeat("v", 100_000)}
	codeIs(t, codes.ResourceExhausted, c.stage(t.Context()))
}

// The caller waits for ever, and so does the plugin: the server ends the call.
func TestCallsAreBoundedInTime(t *testing.T) {
	options := optionsIn(t.TempDir())
	options.CallTimeout = time.Millisecond
	c, plugin := faked(t, options)
	plugin.Inject(fake.MethodProvision, fake.HangUntil(never()))
	codeIs(t, codes.DeadlineExceeded, c.create(t.Context(), "slow"))
}

// never is a channel that is never closed.
func never() <-chan struct{} { return make(chan struct{}) }

// A call that was cut off is repeated, and finds what the first one has done.
func TestAVolumeIsMadeOnceForEachName(t *testing.T) {
	c, plugin := faked(t, optionsIn(t.TempDir()))
	plugin.Inject(fake.MethodProvision, fake.FailAfter(volume.Uncertain(errors.New("the answer was lost"))))
	codeIs(t, codes.Unavailable, c.create(t.Context(), "data"))
	require.NoError(t, c.create(t.Context(), "data"))
	assert.Equal(t, []string{"data"}, plugin.Backend().Handles())
	long := strings.Repeat("long name/", 12)
	require.NoError(t, c.create(t.Context(), long))
	first := c.volume.GetVolumeId()
	require.NoError(t, c.create(t.Context(), long))
	assert.Equal(t, first, c.volume.GetVolumeId())
	assert.Len(t, plugin.Backend().Handles(), 2)
}

// Detach is called until it has succeeded, and the volume is not deleted before.
func TestAnAttachmentIsKeptUntilItIsKnownToBeGone(t *testing.T) {
	c, plugin := faked(t, optionsIn(t.TempDir()))
	require.NoError(t, c.create(t.Context(), "data"))
	plugin.Inject(fake.MethodAttach, fake.FailAfter(errors.New("it says no, and does it")))
	plugin.Inject(fake.MethodDetach, fake.Fail(errors.New("not now")))
	codeIs(t, codes.Unavailable, c.attach(t.Context()))
	codeIs(t, codes.FailedPrecondition, c.delete(t.Context()))
	require.NoError(t, c.detach(t.Context()))
	assert.Empty(t, plugin.Backend().Nodes("data"))
	require.NoError(t, c.delete(t.Context()))
	assert.Empty(t, plugin.Backend().Handles())
}

// Detach may refuse a node that does not exist: the first Attach to it has attached nothing. A later one says nothing of the first.
func TestANodeThatDoesNotExistHasNotTheVolume(t *testing.T) {
	c, plugin := faked(t, optionsIn(t.TempDir()))
	require.NoError(t, c.create(t.Context(), "data"))
	missing := fmt.Errorf("no such node: %w", volume.ErrNotFound)
	plugin.Inject(fake.MethodAttach, fake.Fail(missing), fake.FailAfter(volume.Uncertain(errors.New("lost"))), fake.Fail(missing))
	plugin.Inject(fake.MethodDetach, fake.FailN(2, missing))
	codeIs(t, codes.NotFound, c.attach(t.Context()))
	require.NoError(t, c.delete(t.Context()))
	require.NoError(t, c.create(t.Context(), "data"))
	codeIs(t, codes.Unavailable, c.attach(t.Context()))
	codeIs(t, codes.Unavailable, c.attach(t.Context()))
	codeIs(t, codes.FailedPrecondition, c.delete(t.Context()))
	require.NoError(t, c.detach(t.Context()))
	require.NoError(t, c.delete(t.Context()))
}

// A plugin that is a bridge to another driver says that the node is full, and leaves open what else it did.
func TestANodeThatIsFullHasNotTheVolume(t *testing.T) {
	c, plugin := faked(t, optionsIn(t.TempDir()))
	require.NoError(t, c.create(t.Context(), "data"))
	full := volume.Uncertain(fmt.Errorf("full: %w", volume.ErrAttachLimit))
	plugin.Inject(fake.MethodAttach, fake.FailAfter(full))
	plugin.Inject(fake.MethodDetach, fake.Fail(errors.New("not now")))
	codeIs(t, codes.Unavailable, c.attach(t.Context()))
	codeIs(t, codes.FailedPrecondition, c.delete(t.Context()))
	plugin.Inject(fake.MethodAttach, fake.FailAfter(full))
	codeIs(t, codes.ResourceExhausted, c.attach(t.Context()))
	assert.Empty(t, plugin.Backend().Nodes("data"), "it was detached, so that the answer is so")
	require.NoError(t, c.delete(t.Context()))
}

func TestAVolumeForOneNodeIsAttachedToOne(t *testing.T) {
	c, _ := faked(t, optionsIn(t.TempDir()))
	require.NoError(t, c.create(t.Context(), "data"))
	require.NoError(t, c.attach(t.Context()))
	_, err := c.control.ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{
		VolumeId: "data", NodeId: "node-2", VolumeCapability: c.capability, VolumeContext: c.volume.GetVolumeContext(),
	})
	codeIs(t, codes.FailedPrecondition, err)
	list, err := c.control.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
	require.NoError(t, err)
	require.Len(t, list.GetEntries(), 1)
	assert.Equal(t, []string{"node-1"}, list.GetEntries()[0].GetStatus().GetPublishedNodeIds())
}

func TestPagesOfVolumes(t *testing.T) {
	c, _ := faked(t, optionsIn(t.TempDir()))
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		require.NoError(t, c.create(t.Context(), name))
	}
	var ids []string
	token := ""
	for {
		list, err := c.control.ListVolumes(t.Context(), &csi.ListVolumesRequest{MaxEntries: 2, StartingToken: token})
		require.NoError(t, err)
		for _, e := range list.GetEntries() {
			ids = append(ids, e.GetVolume().GetVolumeId())
		}
		if token = list.GetNextToken(); token == "" {
			break
		}
		c.volume = &csi.Volume{VolumeId: ids[len(ids)-1]}
		require.NoError(t, c.delete(t.Context()), "the volume that the token is of")
	}
	assert.Equal(t, []string{"a", "b", "c", "d", "e"}, ids)
}

func TestVolumesOfThisNodeAreRefusedElsewhere(t *testing.T) {
	options := optionsIn(t.TempDir())
	options.Topology = map[string]string{"topology.example.com/node": "node-1"}
	c, _ := faked(t, options)
	create := func(nodes ...string) (*csi.CreateVolumeResponse, error) {
		r := &csi.TopologyRequirement{}
		for _, node := range nodes {
			r.Requisite = append(r.Requisite, &csi.Topology{Segments: map[string]string{"topology.example.com/node": node}})
		}
		return c.control.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
			Name: "data", VolumeCapabilities: []*csi.VolumeCapability{c.capability}, AccessibilityRequirements: r,
		})
	}
	_, err := create("node-2")
	codeIs(t, codes.ResourceExhausted, err)
	made, err := create("node-2", "node-1")
	require.NoError(t, err)
	require.Len(t, made.GetVolume().GetAccessibleTopology(), 1)
	assert.Equal(t, options.Topology, made.GetVolume().GetAccessibleTopology()[0].GetSegments())
}

// What a plugin can still make is answered for this node, for what it can serve, and never as zero where it is not known.
func TestCapacityOfAPlugin(t *testing.T) {
	mounttest.RequireRoot(t)
	options := optionsIn(t.TempDir())
	options.Topology = map[string]string{"topology.example.com/node": "node-1"}
	c := serve(t, loopblock.New(loopblock.Options{}), options)
	place := func(node string) *csi.Topology {
		return &csi.Topology{Segments: map[string]string{"topology.example.com/node": node}}
	}
	here, err := c.control.GetCapacity(t.Context(), &csi.GetCapacityRequest{
		AccessibleTopology: place("node-1"), Parameters: map[string]string{"fstype": "xfs", "csi.storage.k8s.io/pv/name": "x"},
	})
	require.NoError(t, err)
	assert.Positive(t, here.GetAvailableCapacity())
	assert.Equal(t, 300*mebibyte, here.GetMinimumVolumeSize().GetValue())
	ofXFS, err := c.control.GetCapacity(t.Context(), &csi.GetCapacityRequest{VolumeCapabilities: []*csi.VolumeCapability{{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "xfs"}},
	}}})
	require.NoError(t, err)
	assert.Equal(t, 300*mebibyte, ofXFS.GetMinimumVolumeSize().GetValue())
	for name, request := range map[string]*csi.GetCapacityRequest{
		"another node": {AccessibleTopology: place("node-2")},
		"an access mode that no volume has": {VolumeCapabilities: []*csi.VolumeCapability{{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
		}}},
	} {
		none, err := c.control.GetCapacity(t.Context(), request)
		require.NoError(t, err, name)
		assert.Zero(t, none.GetAvailableCapacity(), name)
	}
	_, err = c.control.GetCapacity(t.Context(), &csi.GetCapacityRequest{Parameters: map[string]string{"x": "y"}})
	codeIs(t, codes.InvalidArgument, err)

	unknown, _ := faked(t, optionsIn(t.TempDir()))
	_, err = unknown.control.GetCapacity(t.Context(), &csi.GetCapacityRequest{})
	codeIs(t, codes.Unavailable, err)
}

// stopper cancels when a server says that it serves, which it does before it begins.
type stopper struct{ cancel context.CancelFunc }

func (s stopper) Write(p []byte) (int, error) {
	s.cancel()
	return len(p), nil
}

// A server that is told to stop before it has begun to serve ends well.
func TestAStopBeforeTheFirstCall(t *testing.T) {
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		options := optionsIn(t.TempDir())
		options.Logger = slog.New(slog.NewTextHandler(stopper{cancel}, nil))
		server, err := csiserver.New(fake.NewPlugin(fake.PluginOptions{Mounter: fake.NewMounter(fake.MounterOptions{})}), options)
		require.NoError(t, err)
		require.NoError(t, server.Run(ctx))
	}
}

func TestTheSocket(t *testing.T) {
	options := optionsIn(t.TempDir())
	c, _ := faked(t, options)
	info, err := os.Lstat(options.Socket)
	require.NoError(t, err)
	assert.Equal(t, os.ModeSocket|0o600, info.Mode())
	second := optionsIn(t.TempDir())
	second.Socket = options.Socket
	require.ErrorIs(t, run(t, second), csiserver.ErrSocketInUse)
	second.Socket, second.StateDir = second.Socket+"2", options.StateDir
	require.ErrorIs(t, run(t, second), record.ErrLocked)
	c.stop()
	_, err = os.Lstat(options.Socket)
	require.ErrorIs(t, err, os.ErrNotExist)

	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: options.Socket, Net: "unix"})
	require.NoError(t, err)
	left.SetUnlinkOnClose(false)
	require.NoError(t, left.Close())
	c, _ = faked(t, options)
	c.stop()
	inside := optionsIn(t.TempDir())
	inside.Socket = filepath.Join(filepath.Dir(inside.Socket), "made", "csi.sock")
	c, _ = faked(t, inside)
	c.stop()

	require.NoError(t, os.WriteFile(options.Socket, nil, 0o600))
	require.ErrorIs(t, run(t, options), volume.ErrInvalid, "a file in its place")
	require.NoError(t, os.Remove(options.Socket))
	require.NoError(t, os.Chmod(filepath.Dir(options.Socket), 0o777))
	require.ErrorIs(t, run(t, options), volume.ErrInvalid, "a directory in which others write")
}

// run runs a server that is to fail.
func run(t *testing.T, options csiserver.Options) error {
	t.Helper()
	server, err := csiserver.New(fake.NewPlugin(fake.PluginOptions{Mounter: fake.NewMounter(fake.MounterOptions{})}), options)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return server.Run(ctx)
}

// A call that is under way when the server is to stop has its answer.
func TestAStopWaitsForCalls(t *testing.T) {
	c, plugin := faked(t, optionsIn(t.TempDir()))
	release := make(chan struct{})
	plugin.Inject(fake.MethodProvision, fake.HangUntil(release))
	first := make(chan error, 1)
	go func() { first <- c.create(t.Context(), "data") }()
	require.NoError(t, plugin.AwaitCalls(t.Context(), fake.MethodProvision, 1))
	stopped := make(chan struct{})
	go func() { defer close(stopped); c.stop() }()
	require.True(t, c.connection.WaitForStateChange(t.Context(), connectivity.Ready), "the server says that it goes away")
	close(release)
	require.NoError(t, <-first)
	<-stopped
}

// A call that does not end is cancelled after the grace, and its effect is on record.
func TestAStopCancelsCallsAfterItsGrace(t *testing.T) {
	options := optionsIn(t.TempDir())
	options.Grace = time.Millisecond
	c, plugin := faked(t, options)
	plugin.Inject(fake.MethodProvision, fake.HangUntil(never()))
	first := make(chan error, 1)
	go func() { first <- c.create(t.Context(), "data") }()
	require.NoError(t, plugin.AwaitCalls(t.Context(), fake.MethodProvision, 1))
	c.stop()
	require.Error(t, <-first)
	records, err := record.Peek(options.StateDir)
	require.NoError(t, err)
	assert.Contains(t, records, "volume/data")
}

func TestWhatTheDriverIs(t *testing.T) {
	options := optionsIn(t.TempDir())
	options.Services = csiserver.ControllerOnly
	options.RuntimeDir = ""
	c, _ := faked(t, options)
	info, err := c.identity.GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{})
	require.NoError(t, err)
	assert.Equal(t, "fake.example.com", info.GetName())
	assert.NotEmpty(t, info.GetVendorVersion())
	_, err = c.node.NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
	codeIs(t, codes.Unimplemented, err)
}
