package main

import (
	"io"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/examples/internal/manifest"
	"github.com/volumekit/volumekit/examples/internal/sandbox"
	"github.com/volumekit/volumekit/examples/internal/show"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// cycles is how often the pod is set up and torn down: VOLUMEKIT_CYCLES times, else 25 with -short and 100 without it.
func cycles(t *testing.T) int {
	t.Helper()
	if text := os.Getenv("VOLUMEKIT_CYCLES"); text != "" {
		n, err := strconv.Atoi(text)
		require.NoError(t, err, "VOLUMEKIT_CYCLES")
		return n
	}
	if testing.Short() {
		return 25
	}
	return 100
}

// The quickstart's pod, set up and torn down many times in one process, leaves no mount, loop device, goroutine or file
// descriptor behind. The volumes are provisioned once; each is attached, staged, mounted, unmounted, unstaged and
// detached every time.
func TestManyCyclesLeaveNothing(t *testing.T) {
	mounttest.RequireMounts(t)
	goroutines := runtime.NumGoroutine()
	agent := startSoak(t)
	cycle(t, agent)
	openFiles := countFiles(t)
	for range cycles(t) {
		cycle(t, agent)
		if t.Failed() {
			break
		}
	}
	// The last operation may have a record open for a moment after its volume is gone.
	assert.Eventually(t, func() bool {
		return countFiles(t) <= openFiles
	}, settled, settled/1000, "file descriptors: %d before", openFiles)
	left, err := sandbox.FindLeftovers(t.Context(), agent.root.Path)
	require.NoError(t, err)
	assert.Empty(t, left.Mounts)
	assert.Empty(t, left.LoopDevices)

	require.NoError(t, agent.deletePods(t.Context()))
	_, err = agent.deleteClaims(t.Context(), defaultTimeout)
	require.NoError(t, err)
	require.NoError(t, agent.stop(t.Context()))
	require.NoError(t, prove(t.Context(), agent.root, nil, agent.out))
	assert.NoDirExists(t, agent.root.Path)
	assert.Eventually(t, func() bool {
		return runtime.NumGoroutine()-1 <= goroutines // less the one that asks
	}, settled, settled/1000, "goroutines")
}

// startSoak starts an agent on the built-in manifests, or as much of them as can be mounted here.
func startSoak(t *testing.T) *agent {
	t.Helper()
	objects, err := manifest.Load("", nil, builtinPod+"---\n"+builtinStorage)
	require.NoError(t, err)
	root, err := makeRoot(options{})
	require.NoError(t, err)
	agent, err := newAgent(t.Context(), root, show.NewOutput(false, io.Discard, io.Discard))
	require.NoError(t, err)
	require.NoError(t, objects.Check(agent.plugins))
	for _, l := range objects.Prune(sandbox.Missing) {
		t.Log(l)
	}
	require.NoError(t, agent.create(t.Context(), objects))
	agent.start(t.Context())
	return agent
}

// cycle sets the pod up, looks that it is there, and tears it down.
func cycle(t *testing.T, agent *agent) {
	t.Helper()
	volumes, err := agent.setUp(t.Context(), defaultTimeout)
	require.NoError(t, err)
	require.NotEmpty(t, volumes)
	for _, v := range volumes {
		require.DirExists(t, v.Path)
	}
	require.NoError(t, agent.tearDown(t.Context(), defaultTimeout))
}

// settled is how long goroutines that were told to end may take to do so.
const settled = 10 * time.Second

// countFiles returns how many file descriptors this process has open.
func countFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}
