package csidriver

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/bridge/csi/internal/fakedriver"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volume/volumetest"
)

// recorder is a test whose failures are kept from the one that runs.
type recorder struct {
	testing.TB

	mu       sync.Mutex
	failures []string
}

func (r *recorder) Helper()             {}
func (r *recorder) Logf(string, ...any) {}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.failures) > 0
}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func (r *recorder) FailNow() {
	r.Errorf("failed")
	runtime.Goexit()
}

func (r *recorder) Skip(...any)          { runtime.Goexit() }
func (r *recorder) Skipf(string, ...any) { runtime.Goexit() }

// Both kinds of driver neither attach nor stage. A driver whose volumes are tmpfs copies none.
var (
	measures = []csi.NodeServiceCapability_RPC_Type{csi.NodeServiceCapability_RPC_GET_VOLUME_STATS}
	makes    = []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME}
	copies   = append(slices.Clone(makes), csi.ControllerServiceCapability_RPC_CLONE_VOLUME)
)

// brokenByBug runs the suite on a driver with a bug, and returns the rules that are broken.
func brokenByBug(t *testing.T, bug fakedriver.Bug) []string {
	t.Helper()
	s := serve(t, fakedriver.Options{Bug: bug, Node: measures, Controller: copies})
	driver := s.driver(t, nil)
	return brokenRules(t, func() volume.VolumePlugin {
		s.Kill() // With the agent. What the server is in this process must stay: it would be taken for a leak.
		return driver.Plugin()
	})
}

// brokenRules runs the suite on a plugin, and returns the rules that are broken.
func brokenRules(t *testing.T, newPlugin func() volume.VolumePlugin) (broken []string) {
	t.Helper()
	config := volumetest.Config{
		NewPlugin:    func(testing.TB) volume.VolumePlugin { return newPlugin() },
		NewBlockSpec: func(testing.TB) *volume.Spec { return nil },
		RootDir:      t.TempDir(), NodeName: "fake-node", Shared: true, Lifetime: volumetest.LifetimeOfStorage,
	}
	for _, c := range volumetest.Cases() {
		r := &recorder{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.Run(r, config)
		}()
		<-done
		if r.Failed() && !slices.Contains(broken, c.Rule) {
			broken = append(broken, c.Rule)
			t.Logf("%s: %.200s", c.Rule, r.failures[0])
		}
		unmountBelow(t, config.RootDir)
	}
	return broken
}

// twoDrivers is a plugin that makes every second set-up through a Driver of its own, as two agents on one node do: neither knows of the
// calls of the other.
type twoDrivers struct {
	*Plugin

	second *Plugin
	made   atomic.Int64
}

func (d *twoDrivers) Init(ctx context.Context, host volume.VolumeHost) error {
	return errors.Join(d.Plugin.Init(ctx, host), d.second.Init(ctx, host))
}

func (d *twoDrivers) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	if d.made.Add(1)%2 == 0 {
		return d.second.NewMounter(spec, pod)
	}
	return d.Plugin.NewMounter(spec, pod)
}

// inMemory is a driver whose calls the suite holds at each step of its mounter: it is called without a socket.
func inMemory(t *testing.T, bug fakedriver.Bug) *fakedriver.Driver {
	t.Helper()
	dir := t.TempDir()
	t.Cleanup(func() { unmountBelow(t, dir) })
	return fakedriver.New(fakedriver.Options{
		Dir: dir, Bug: bug, Memory: true, Node: measures, Controller: makes, Mounter: volumetest.Yielding(mount.New(mount.Options{})),
	})
}

// brokenByBoth runs the suite on a plugin that uses two Drivers, and returns the rules that are broken.
func brokenByBoth(t *testing.T, first, second *Driver) []string {
	t.Helper()
	return brokenRules(t, func() volume.VolumePlugin { return &twoDrivers{Plugin: first.Plugin(), second: second.Plugin()} })
}

// withoutSocket returns a way to the driver that calls it in the goroutine of the caller.
func withoutSocket(t *testing.T, d *fakedriver.Driver) *Driver {
	t.Helper()
	driver, err := New(Options{Socket: "/no/socket", Driver: fakedriver.Name})
	require.NoError(t, err)
	driver.client.dial = func(Options) (connection, error) { return d.Connection(), nil }
	return driver
}

// unmountBelow takes away what a bug has left.
func unmountBelow(t *testing.T, dir string) {
	t.Helper()
	table, err := mount.New(mount.Options{}).List(context.WithoutCancel(t.Context()))
	require.NoError(t, err)
	for _, m := range slices.Backward(table) {
		if rel, err := filepath.Rel(dir, m.Path); err == nil && filepath.IsLocal(rel) {
			require.NoError(t, unix.Unmount(m.Path, unix.MNT_DETACH))
		}
	}
}

// Bugs that csi-sanity does not see, each planted in a driver, are seen by the suite through its socket.
func TestTheSuiteSeesWhatCSISanityDoesNot(t *testing.T) {
	mounttest.RequireMounts(t)
	require.Empty(t, brokenByBug(t, fakedriver.NoBug))
	for bug, rule := range map[fakedriver.Bug]string{
		fakedriver.IgnoresReadOnly: "R1", fakedriver.NeverMounts: "M1", fakedriver.SharesOneDirectory: "M6", fakedriver.WipesAtPublish: "U5",
		fakedriver.StacksMounts: "M3", fakedriver.UnmountsLazily: "U8", fakedriver.ClonesNothing: "P4", fakedriver.LeavesTheStorage: "D3",
		fakedriver.MeasuresNothing: "X2", fakedriver.ForgetsAtRestart: "M4",
	} {
		t.Run(bug.String(), func(t *testing.T) { assert.Contains(t, brokenByBug(t, bug), rule) })
	}
}

// One Driver makes one call at a time for a volume (decision 0124). Two of them show that the driver has no lock for a volume.
func TestTheSuiteSeesADriverWithoutALock(t *testing.T) {
	mounttest.RequireMounts(t)
	sound, broken := inMemory(t, fakedriver.NoBug), inMemory(t, fakedriver.NoLock)
	require.Empty(t, brokenByBoth(t, withoutSocket(t, sound), withoutSocket(t, sound)))
	assert.Contains(t, brokenByBoth(t, withoutSocket(t, broken), withoutSocket(t, broken)), "M5")
	one := withoutSocket(t, broken)
	assert.Empty(t, brokenByBoth(t, one, one))
}
