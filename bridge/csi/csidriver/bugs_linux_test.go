package csidriver

import (
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

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

// brokenRules runs the suite on a driver with a bug, and returns the rules that are broken.
func brokenRules(t *testing.T, bug fakedriver.Bug) (broken []string) {
	t.Helper()
	s := serve(t, fakedriver.Options{
		Bug: bug, Dir: t.TempDir(),
		Node: []csi.NodeServiceCapability_RPC_Type{csi.NodeServiceCapability_RPC_GET_VOLUME_STATS},
		Controller: []csi.ControllerServiceCapability_RPC_Type{
			csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
		},
	})
	driver := s.driver(t, nil)
	config := volumetest.Config{
		NewPlugin: func(testing.TB) volume.VolumePlugin {
			s.Kill() // With the agent. What the server is in this process must stay: it would be taken for a leak.
			return driver.Plugin()
		},
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

// unmountBelow takes away what a bug has left.
func unmountBelow(t *testing.T, dir string) {
	t.Helper()
	table, err := mount.New(mount.Options{}).List(t.Context())
	require.NoError(t, err)
	for _, m := range slices.Backward(table) {
		if rel, err := filepath.Rel(dir, m.Path); err == nil && filepath.IsLocal(rel) {
			require.NoError(t, unix.Unmount(m.Path, unix.MNT_DETACH))
		}
	}
}

// Bugs that csi-sanity does not see, each planted in a driver, are seen by the suite through its socket. One more, a driver that has no lock
// for a volume, does no harm here: one Driver makes one call at a time (decision 0124).
func TestTheSuiteSeesWhatCSISanityDoesNot(t *testing.T) {
	mounttest.RequireMounts(t)
	require.Empty(t, brokenRules(t, fakedriver.NoBug))
	for bug, rule := range map[fakedriver.Bug]string{
		fakedriver.IgnoresReadOnly: "R1", fakedriver.NeverMounts: "M1", fakedriver.SharesOneDirectory: "M6", fakedriver.WipesAtPublish: "U5",
		fakedriver.StacksMounts: "M3", fakedriver.UnmountsLazily: "U8", fakedriver.ClonesNothing: "P4", fakedriver.LeavesTheStorage: "D3",
		fakedriver.MeasuresNothing: "X2", fakedriver.ForgetsAtRestart: "M4",
	} {
		t.Run(bug.String(), func(t *testing.T) { assert.Contains(t, brokenRules(t, bug), rule) })
	}
}
