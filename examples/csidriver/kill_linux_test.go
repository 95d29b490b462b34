package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/volumekit/volumekit/internal/faultrun"
	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/mount/mounttest"
)

func TestMain(m *testing.M) {
	faultrun.Main()
	mounttest.Main(m)
}

// envAll has the driver killed before every call, and not before some of them.
const envAll = "CSIDRIVER_ALL"

// patience is how long anything may take; it takes milliseconds.
const patience = time.Minute

// programs are the executables, built without the race detector: hundreds are started.
type programs struct{ driver, second string }

func build(t *testing.T) programs {
	t.Helper()
	mounttest.RequireRoot(t)
	dir := t.TempDir()
	for _, pkg := range []string{".", "github.com/volumekit/volumekit/internal/faultrun/become"} {
		command := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", dir+"/", pkg)
		out, err := command.CombinedOutput()
		require.NoError(t, err, string(out))
	}
	return programs{driver: filepath.Join(dir, "csidriver"), second: filepath.Join(dir, "become")}
}

// machine is a mount namespace in which drivers run one after the other, and the caller of them.
type machine struct {
	programs
	dir       string
	namespace *faultrun.Namespace
	judges    []faultrun.Judge // of the next drivers; none: no more kills
	process   *process
	logs      strings.Builder
	kills     int

	connection *grpc.ClientConn
	control    csi.ControllerClient
	node       csi.NodeClient
	block      bool
	volume     *csi.Volume
}

// process is one driver that runs.
type process struct {
	run    *faultrun.Run
	ended  chan struct{}
	result faultrun.Result
	err    error
}

func newMachine(t *testing.T, p programs, judges ...faultrun.Judge) *machine {
	t.Helper()
	namespace, err := faultrun.NewNamespace()
	require.NoError(t, err)
	m := &machine{programs: p, dir: t.TempDir(), namespace: namespace, judges: judges}
	t.Cleanup(func() { assert.NoError(t, namespace.Close()) })
	m.connection, err = grpc.NewClient("unix:"+m.path("csi.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: time.Millisecond, Multiplier: 1, MaxDelay: time.Millisecond}}))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, m.connection.Close()) })
	m.control, m.node = csi.NewControllerClient(m.connection), csi.NewNodeClient(m.connection)
	return m
}

func (m *machine) path(name string) string { return filepath.Join(m.dir, name) }

// start starts a driver.
func (m *machine) start(ctx context.Context) error {
	var judge faultrun.Judge
	if len(m.judges) > 0 {
		judge, m.judges = m.judges[0], m.judges[1:]
	}
	run, err := faultrun.Start(ctx, faultrun.Program{
		Path: m.driver, Second: m.second, Namespace: m.namespace, Dir: "/", Judge: judge,
		Args:   []string{"-node", "node-1", "-socket", m.path("csi.sock"), "-root", m.path("root"), "-run", m.path("run")},
		Env:    []string{"PATH=" + os.Getenv("PATH"), "GOGC=off"},
		Stdout: &m.logs, Stderr: &m.logs,
	})
	if err != nil {
		return err
	}
	p := &process{run: run, ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		p.result, p.err = run.Wait()
	}()
	m.process = p
	return nil
}

// call makes a call until a driver has answered it, as callers do: one that was cut off is made again.
func (m *machine) call(ctx context.Context, what string, f func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		if m.process == nil {
			if err := m.start(ctx); err != nil {
				return err
			}
		}
		err := m.try(limited, f)
		if err == nil {
			return nil
		}
		if limited.Err() != nil || !mayBeKilled(err) {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
}

// try makes a call, and takes note if the driver was killed meanwhile.
func (m *machine) try(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p := m.process
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-p.ended:
			cancel() // the driver no longer answers
		case <-ctx.Done():
		}
	}()
	err := f(ctx)
	cancel()
	<-watched
	select {
	case <-p.ended:
	default:
		return err
	}
	if p.err != nil || !p.result.Killed {
		return fmt.Errorf("the driver has ended: %w", errors.Join(p.err, err))
	}
	m.kills++
	m.process = nil
	return err
}

// mayBeKilled reports whether the error is that of a connection that was cut off, and not of a driver that answered.
func mayBeKilled(err error) bool {
	code := status.Code(err)
	return code == codes.Unavailable || code == codes.Canceled
}

func (m *machine) capability() *csi.VolumeCapability {
	c := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}}
	c.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}}
	if m.block {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	}
	return c
}

const size = 8 << 20

func (m *machine) create(ctx context.Context) error {
	made, err := m.control.CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name: "data", VolumeCapabilities: []*csi.VolumeCapability{m.capability()}, CapacityRange: &csi.CapacityRange{RequiredBytes: size},
	})
	m.volume = made.GetVolume()
	return err
}

func (m *machine) stage(ctx context.Context) error {
	_, err := m.node.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
		VolumeId: "data", StagingTargetPath: m.path("staging"), VolumeCapability: m.capability(), VolumeContext: m.volume.GetVolumeContext(),
	})
	return err
}

func (m *machine) publish(target string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := m.node.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
			VolumeId: "data", StagingTargetPath: m.path("staging"), TargetPath: m.path(target), VolumeCapability: m.capability(),
			VolumeContext: m.volume.GetVolumeContext(),
		})
		return err
	}
}

func (m *machine) unpublish(target string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := m.node.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: "data", TargetPath: m.path(target)})
		return err
	}
}

func (m *machine) unstage(ctx context.Context) error {
	_, err := m.node.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: "data", StagingTargetPath: m.path("staging")})
	return err
}

func (m *machine) delete(ctx context.Context) error {
	_, err := m.control.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: "data"})
	return err
}

// file is where the workload writes: in the filesystem, or on the device.
func (m *machine) file(target string) string {
	if m.block {
		return m.path(target)
	}
	return filepath.Join(m.path(target), "file")
}

const content = "what the workload has written"

// live lives a life of a volume: what is written at one target is there at another one.
func (m *machine) live(ctx context.Context) error {
	for _, step := range []struct {
		what string
		call func(context.Context) error
	}{
		{"create", m.create},
		{"stage", m.stage},
		{"publish", m.publish("first")},
		{"write", m.inside(func() error { return m.write("first") })},
		{"unpublish", m.unpublish("first")},
		{"publish again", m.publish("second")},
		{"read", m.inside(func() error { return m.read("second") })},
		{"unpublish again", m.unpublish("second")},
		{"unstage", m.unstage},
		{"delete", m.delete},
	} {
		if err := m.call(ctx, step.what, step.call); err != nil {
			return err
		}
	}
	return nil
}

// inside is a call that no driver has a part in.
func (m *machine) inside(f func() error) func(context.Context) error {
	return func(context.Context) error { return m.namespace.Do(f) }
}

func (m *machine) write(target string) error {
	if err := m.mountedOnce(target); err != nil {
		return err
	}
	file, err := os.OpenFile(m.file(target), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = file.WriteString(content)
	return errors.Join(err, file.Close())
}

func (m *machine) read(target string) error {
	if err := m.mountedOnce(target); err != nil {
		return err
	}
	file, err := os.Open(m.file(target))
	if err != nil {
		return err
	}
	found := make([]byte, len(content))
	_, err = file.Read(found)
	if string(found) != content {
		err = errors.Join(err, fmt.Errorf("%q is there, and %q was written", found, content))
	}
	return errors.Join(err, file.Close())
}

// mountedOnce makes sure that nothing lies on another mount: at the target, where it is staged and where it is set up.
func (m *machine) mountedOnce(target string) error {
	mounts, err := m.mounts()
	if err != nil {
		return err
	}
	most := 3
	if m.block {
		most = 1
	}
	if !slices.Contains(mounts, m.path(target)) || len(mounts) != most || len(slices.Compact(slices.Sorted(slices.Values(mounts)))) != most {
		return fmt.Errorf("mounted are %q", mounts)
	}
	return nil
}

// mounts are the mount points below the machine's directory.
func (m *machine) mounts() ([]string, error) {
	table, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	var mounts []string
	for line := range strings.Lines(string(table)) {
		if fields := strings.Fields(line); strings.HasPrefix(fields[4], m.dir+"/") {
			mounts = append(mounts, fields[4])
		}
	}
	return mounts, nil
}

func (m *machine) probe(ctx context.Context) error {
	_, err := csi.NewIdentityClient(m.connection).Probe(ctx, &csi.ProbeRequest{})
	return err
}

// stop tells the driver to stop, and returns false when it was killed meanwhile.
func (m *machine) stop(t *testing.T) bool {
	t.Helper()
	require.NoError(t, m.process.run.Signal(syscall.SIGTERM))
	<-m.process.ended
	require.NoError(t, m.process.err)
	if m.process.result.Killed {
		m.kills++
		return false
	}
	assert.Equal(t, 0, m.process.result.State.ExitCode(), "a driver that is told to stop: %s", &m.logs)
	return true
}

// end stops the driver, and looks that nothing is left.
func (m *machine) end(t *testing.T) {
	t.Helper()
	for !m.stop(t) {
		require.NoError(t, m.start(t.Context()))
		require.NoError(t, m.call(t.Context(), "probe", m.probe))
	}
	require.NoError(t, m.namespace.Do(func() error {
		mounts, err := m.mounts()
		assert.Empty(t, mounts)
		return err
	}))
	devices, err := loop.New(loop.Options{}).Devices(t.Context())
	require.NoError(t, err)
	for _, d := range devices {
		assert.False(t, strings.HasPrefix(d.BackingPath, m.dir+"/"), "attached: %s", d.BackingPath)
	}
	for _, dir := range []string{"root/state", "run"} {
		records, err := record.Peek(m.path(dir))
		require.NoError(t, err)
		assert.Empty(t, records)
	}
	assert.Empty(t, m.files(t))
}

// files are those that a stopped driver has left, but for directories that it has once.
func (m *machine) files(t *testing.T) []string {
	t.Helper()
	once := []string{
		"root", "root/state", "run", "root/pods", "root/plugins", "root/plugins/volumekit.io", "root/plugins/volumekit.io/loop-block",
		"root/plugins/volumekit.io/loop-block/images", "root/plugins/volumekit.io/loop-block/mounts",
	}
	var left []string
	require.NoError(t, filepath.WalkDir(m.dir, func(path string, _ os.DirEntry, err error) error {
		if rel, relErr := filepath.Rel(m.dir, path); relErr == nil && rel != "." && !slices.Contains(once, rel) {
			left = append(left, rel)
		}
		return err
	}))
	return left
}

// TestADriverThatIsKilledLosesNothing: the driver is killed before a system call that changes the world, its own or of a program
// that it runs, and in each third life the next one is too. The caller repeats what had no answer.
func TestADriverThatIsKilledLosesNothing(t *testing.T) {
	programs := build(t)
	for _, block := range []bool{false, true} {
		t.Run(fmt.Sprintf("block=%t", block), func(t *testing.T) { killEvery(t, programs, block) })
	}
}

func killEvery(t *testing.T, p programs, block bool) {
	whole := newMachine(t, p)
	whole.block = block
	require.NoError(t, whole.live(t.Context()), "%s", &whole.logs)
	whole.end(t)
	calls := whole.process.result.Calls
	step := 9
	if os.Getenv(envAll) != "" {
		step = 1
	}
	kills := 0
	for n := 1; n <= calls; n += step {
		judges := []faultrun.Judge{faultrun.KillBefore(n)}
		if n/step%3 == 2 {
			judges = append(judges, faultrun.KillBefore(1+n%23))
		}
		m := newMachine(t, p, judges...)
		m.block = block
		require.NoError(t, m.live(t.Context()), "killed before call %d of %d: %s", n, calls, &m.logs)
		m.end(t)
		kills += m.kills
	}
	t.Logf("killed %d times, in lives of %d calls", kills, calls)
	assert.GreaterOrEqual(t, kills, calls/step*9/10)
}
