//go:build csidriver

package csi_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/bridge/csi/csidriver"
	"github.com/volumekit/volumekit/bridge/csi/csiserver"
	"github.com/volumekit/volumekit/bridge/csi/internal/csitest"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volume/volumetest"
)

// The driver that is tested, and the arguments of one that is a program: {socket}, {dir} and {node} stand for what each run has.
const (
	envDriver     = "CSI_DRIVER"
	envDriverArgs = "CSI_DRIVER_ARGS"
	// envBroken has the rules that it is known to break, which are not run.
	envBroken = "CSI_DRIVER_BROKEN"
)

// anyDriver is the driver that `make test-csi` was given: a socket that is served, or a program that is started for a test and
// killed after it.
type anyDriver struct {
	name, socket, dir string
	// ended is closed when the program has ended; nil for a socket that is served.
	ended chan struct{}
}

func startAnyDriver(t *testing.T) anyDriver {
	t.Helper()
	mounttest.RequireRoot(t)
	given := os.Getenv(envDriver)
	require.NotEmpty(t, given, "give the driver's socket or program in %s", envDriver)
	info, err := os.Stat(given)
	require.NoError(t, err)
	d := anyDriver{socket: given, dir: shortDir(t)}
	if info.Mode().Type() != os.ModeSocket {
		d.socket = socketOf(d.dir)
		d.start(t, given)
	}
	options := csidriver.Options{Socket: d.socket, ConnectTimeout: time.Minute}
	starting, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for {
		if d.name, err = csidriver.Identify(t.Context(), options); err == nil {
			return d
		}
		select {
		case <-starting.Done():
			require.NoError(t, err, "the driver does not report its name")
		case <-d.ended:
			require.NoError(t, err, "the driver has ended: look at what it has told")
		case <-time.After(10 * time.Millisecond): // It is being started.
		}
	}
}

// start starts a program, whose socket only its owner may write to.
func (d *anyDriver) start(t *testing.T, program string) {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	command := exec.CommandContext(context.WithoutCancel(t.Context()), "/bin/sh", append([]string{"-c", `umask 077 && exec "$@"`, "sh", program}, argsOfAnyDriver(d.dir)...)...)
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, command.Start())
	d.ended = make(chan struct{})
	go func() { // ends with the program
		defer close(d.ended)
		_ = command.Wait() // It was killed, or its log says why it ended.
	}()
	t.Cleanup(func() {
		_ = command.Process.Kill()
		<-d.ended
		if t.Failed() {
			text, err := os.ReadFile(log.Name())
			t.Logf("the driver has told (%v): %s", err, text[max(0, len(text)-4000):])
		}
		assert.NoError(t, log.Close())
	})
}

// argsOfAnyDriver are the arguments of the program, for a directory.
func argsOfAnyDriver(dir string) []string {
	fill := strings.NewReplacer("{socket}", socketOf(dir), "{dir}", dir, "{node}", "node-1")
	args := strings.Fields(os.Getenv(envDriverArgs))
	for i := range args {
		args[i] = fill.Replace(args[i])
	}
	return args
}

func (d anyDriver) connect(t *testing.T) *csidriver.Driver {
	t.Helper()
	driver, err := csidriver.New(csidriver.Options{Socket: d.socket, Driver: d.name, Nodes: byName{}})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, driver.Close()) })
	require.NoError(t, driver.Connect(t.Context()))
	return driver
}

// TestAnyDriverUnderTheSuite runs each rule of the contract on the driver as a plugin.
func TestAnyDriverUnderTheSuite(t *testing.T) {
	d := startAnyDriver(t)
	driver := d.connect(t)
	config := volumetest.Config{
		NewPlugin: func(testing.TB) volume.VolumePlugin { return driver.Plugin() },
		Shared:    true, Lifetime: volumetest.LifetimeOfStorage, Require: volume.CapPersistent,
	}
	broken := strings.Fields(os.Getenv(envBroken))
	for _, c := range volumetest.Cases() {
		if slices.Contains(broken, c.Rule) {
			continue
		}
		t.Run(c.Rule+" "+c.Name, func(t *testing.T) { c.Run(t, config) })
	}
}

// TestAnyDriverUnderSanity compares csi-sanity on the driver with csi-sanity on the driver as a plugin that is served again.
func TestAnyDriverUnderSanity(t *testing.T) {
	for name, block := range map[string]bool{"filesystems": false, "devices": true} {
		t.Run(name, func(t *testing.T) {
			run := csitest.Run{Size: 64 << 20, ExpandedSize: 96 << 20, Block: block}
			direct := run
			direct.Socket, direct.Dir = startAnyDriver(t).socket, t.TempDir()
			alone := csitest.Sanity(t, direct)

			d, dir := startAnyDriver(t), shortDir(t)
			server, err := csiserver.New(d.connect(t).Plugin(), csiserver.Options{
				Socket: socketOf(dir), RootDir: filepath.Join(dir, "root"), StateDir: filepath.Join(dir, "state"),
				RuntimeDir: filepath.Join(dir, "run"), NodeName: "node-1",
			})
			require.NoError(t, err)
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- server.Run(ctx) }()
			run.Socket, run.Dir = socketOf(dir), t.TempDir()
			both := csitest.Sanity(t, run)
			stop()
			require.NoError(t, <-ended)
			t.Logf("csi-sanity: %d passed, %d failed, %d skipped alone; %d, %d and %d through both bridges",
				alone.Passed, len(alone.Failed), len(alone.Skipped), both.Passed, len(both.Failed), len(both.Skipped))
		})
	}
}

// TestAnyDriverLosesNothing is TestNothingIsLostOverTheSocket with the driver, which is a program. It is killed itself only where
// CSI_DRIVER_KILLED says that it promises to survive that.
func TestAnyDriverLosesNothing(t *testing.T) {
	name := startAnyDriver(t).name
	programs := build(t)
	programs.driver, programs.driverArgs, programs.driverName = os.Getenv(envDriver), argsOfAnyDriver, name
	programs.stages = slices.DeleteFunc(slices.Clone(stages), func(stage string) bool { return stage == "grown" })
	whole := newMachine(t, programs)
	require.NoError(t, whole.live(t.Context(), whole.compare(t.Context(), whole)), "%s", &whole.logs)
	whole.end(t, whole)
	for way := range ways(whole) {
		if os.Getenv("CSI_DRIVER_KILLED") == "" && way != "the agent" && way != "the agent in a call" {
			continue
		}
		t.Run(strings.ReplaceAll(way, " ", "-"), func(t *testing.T) { killEvery(t, whole, way) })
	}
}
