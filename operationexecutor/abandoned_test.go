package operationexecutor_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

var update = flag.Bool("update", false, "write testdata/abandoned.txt anew")

// abandoning is an operation, each of whose calls is made to end badly in turn.
type abandoning struct {
	name    string
	world   func(t *testing.T, o *operationexecutor.ExecutorOptions) *world
	before  []start
	start   start
	methods []string
}

func startMap(w *world) (*operationexecutor.Operation, error)    { return w.mapBlock() }
func startUnmap(w *world) (*operationexecutor.Operation, error)  { return w.unmapBlock() }
func startAttach(w *world) (*operationexecutor.Operation, error) { return w.attach("data") }
func startDetach(w *world) (*operationexecutor.Operation, error) { return w.detach("data") }

// mountingWorld has a plugin that mounts and says so, and containers with parts of the volume.
func mountingWorld(t *testing.T, o *operationexecutor.ExecutorOptions) *world {
	table, port := &mountTable{}, &subpaths{}
	w := newWorld(t, setup{attachable: true, stageable: true, mounts: table, mounting: true, executor: *o,
		generator: func(o *operationexecutor.GeneratorOptions) { o.Subpaths = port }})
	port.history, port.do = w.history, func(ctx context.Context) error { return w.plugin.do(ctx, "CleanSubpaths") }
	w.honest(table)
	w.attached("data")
	return w
}

func mappingWorld(t *testing.T, o *operationexecutor.ExecutorOptions) *world {
	mapper := &blockMapper{}
	w := newWorld(t, setup{attachable: true, stageable: true, block: true, executor: *o,
		generator: func(o *operationexecutor.GeneratorOptions) { o.BlockMapper = mapper }})
	mapper.plugin = w.plugin
	require.NoError(t, w.actual.MarkVolumeAsAttached(volumeName("data"), blockSpec(), node, ""))
	return w
}

func expandingWorld(t *testing.T, o *operationexecutor.ExecutorOptions) *world {
	claims := newClaimStatus(claimOf("data", "2Gi", "1Gi")).at(nodePending, "2Gi")
	w := newWorld(t, setup{
		attachable: true, stageable: true, abilities: volume.CapExpand | volume.CapNodeExpand, executor: *o,
		generator: func(o *operationexecutor.GeneratorOptions) { o.Claims, o.Capacity = claims, claims },
	})
	require.NoError(t, w.actual.MarkVolumeAsAttached(volumeName("data"), claimedSpec("data", "2Gi"), node, "/dev/data"))
	return w
}

func startMountOfClaim(w *world) (*operationexecutor.Operation, error) {
	v := w.volumeToMount(claimedSpec("data", "2Gi"), "p", "2Gi")
	return w.executor.MountVolume(w.t.Context(), v, operationexecutor.MountOptions{}, w.actual)
}

func startExpand(w *world) (*operationexecutor.Operation, error) {
	return w.expand(claimedSpec("data", "1Gi"))
}

func abandonings() []abandoning {
	mounted, mapped := []start{mountOf("data", "p")}, []start{startMap}
	unmounted := []start{mountOf("data", "p"), unmountOf("data", "p")}
	return []abandoning{
		{"attach", mountingWorld, nil, startAttach, []string{"Attach"}},
		{"mount", mountingWorld, nil, mountOf("data", "p"), []string{"NewMounter", "CanMount", "WaitForAttach", "MountDevice", "SetUp"}},
		{"mount of a staged volume", mountingWorld, mounted, mountOf("data", "q"), []string{"WaitForAttach", "SetUp"}},
		{"refresh", mountingWorld, mounted, func(w *world) (*operationexecutor.Operation, error) { return w.remount("data", "p") },
			[]string{"WaitForAttach", "SetUp"}},
		{"mount with expansion", expandingWorld, nil, startMountOfClaim, []string{"NodeExpand"}},
		{"unmount", mountingWorld, mounted, unmountOf("data", "p"), []string{"CleanSubpaths", "TearDown"}},
		{"unmount device", mountingWorld, unmounted, unmountDeviceOf("data"), []string{"UnmountDevice"}},
		{"detach", mountingWorld, nil, startDetach, []string{"Detach"}},
		{"map", mappingWorld, nil, startMap, []string{"WaitForAttach", "SetUpDevice", "MapPodDevice", "ResolveDevice", "MapDevice"}},
		{"map for another time", mappingWorld, mapped, startMap, []string{"WaitForAttach", "MapPodDevice", "ResolveDevice", "MapDevice"}},
		{"unmap", mappingWorld, mapped, startUnmap, []string{"UnmapDevice", "UnmapPodDevice"}},
		{"unmap device", mappingWorld, []start{startMap, startUnmap}, unmountDeviceOf("data"), []string{"MappedPods", "TearDownDevice", "RemoveMapPath"}},
		{"expand", expandingWorld, nil, startExpand, []string{"ExpandVolumeDevice"}},
	}
}

// TestWhatIsBelievedAfterACallThatDoesNotReturn, for each call of each operation: the outcome, the order of all that was
// told, and the state are those of testdata/abandoned.txt; and a call that returns late changes nothing more. A call that ends
// its goroutine is one more way not to return.
func TestWhatIsBelievedAfterACallThatDoesNotReturn(t *testing.T) {
	var report strings.Builder
	for _, a := range abandonings() {
		for _, method := range a.methods {
			for _, bad := range []string{"hangs", "exits"} {
				synctest.Test(t, func(t *testing.T) {
					fmt.Fprintf(&report, "%s: %s %s\n%s\n", a.name, method, bad, a.run(t, method, bad))
				})
			}
		}
	}
	const golden = "testdata/abandoned.txt"
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(golden, []byte(report.String()), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	assert.Equal(t, string(want), report.String())
}

func (a abandoning) run(t *testing.T, method, bad string) string {
	var w *world
	told := &observer{started: func(operationexecutor.OperationInfo, operationexecutor.Result) {}}
	told.finished = told.started
	told.history = &history{}
	options := operationexecutor.ExecutorOptions{Observer: told}
	w = a.world(t, &options)
	for _, begin := range a.before {
		w.succeeded(begin(w))
	}
	synctest.Wait()
	w.clear()
	told.clear()
	w.recorder.events = nil
	released := make(chan struct{})
	w.plugin.on(method, func(context.Context) error {
		if bad == "exits" {
			runtime.Goexit()
		}
		<-released
		return nil
	})
	op := w.ended(a.start(w))
	report := a.report(w, told, op)
	close(released)
	synctest.Wait()
	time.Sleep(time.Hour) // of the bubble
	require.NoError(t, w.executor.Wait(t.Context()))
	assert.Equal(t, report, a.report(w, told, op), "a late return changes nothing")
	return report
}

// report is all that was told of an operation, and the state after it.
func (a abandoning) report(w *world, told *observer, op *operationexecutor.Operation) string {
	synctest.Wait()
	var b strings.Builder
	fmt.Fprintf(&b, "\t%v: %v\n\tstaged: %v; pods: %v, %v\n", op.Result().Class, op.Err(), w.device("data"), w.pod("data", "p"), w.pod("data", "q"))
	if v, ok := w.actual.GetAttachedVolume(volumeName("data")); ok {
		fmt.Fprintf(&b, "\tattached: %v, device %q at %q\n", v.AttachState, v.DevicePath, v.DeviceMountPath)
	}
	fmt.Fprintf(&b, "\tcalled: %s\n\ttold: %s\n\tevents: %s\n", strings.Join(w.all(), ", "), strings.Join(told.all(), ", "), strings.Join(w.recorder.all(), ", "))
	return b.String()
}
