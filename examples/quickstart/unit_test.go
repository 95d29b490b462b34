package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/volume"
)

// The names of the plugins that the built-in manifests use.
const (
	hostPath  = "kubernetes.io/host-path"
	emptyDir  = "kubernetes.io/empty-dir"
	loopBlock = "volumekit.io/loop-block"
)

func TestBinarySize(t *testing.T) {
	for want, bytes := range map[string]int64{
		"0": 0, "1023": 1023, "1Ki": 1024, "1.5Ki": 1536, "64Mi": 64 << 20, "62.9Mi": 65<<20 - 2<<20 - 100<<10, "8Ei": 1<<63 - 1,
	} {
		assert.Equal(t, want, binarySize(&bytes))
	}
	assert.Equal(t, "-", binarySize(nil))
}

func TestPathElementIsOneElement(t *testing.T) {
	for mountPath, want := range map[string]string{"/data": "data", "/var/lib//x/": "var~lib~x"} {
		assert.Equal(t, want, pathElement(mountPath))
	}
}

func TestExitCodes(t *testing.T) {
	failed := errors.New("failed")
	left := &leftoverError{root: "/r"}
	sig := &signalError{signal: syscall.SIGTERM}
	for _, c := range []struct {
		want int
		err  error
	}{
		{0, nil},
		{1, failed},
		{2, badInput(failed)},
		{2, fmt.Errorf("wrapped: %w", badInput(failed))},
		{143, sig},
		{143, join(failed, sig)},
		{1, join(sig, left)},
	} {
		assert.Equal(t, c.want, exitCode(c.err), "%v", c.err)
	}
}

func TestJoinKeepsWhatFailed(t *testing.T) {
	require.NoError(t, join(nil, nil))
	a, b := errors.New("a"), errors.New("b")
	assert.Equal(t, a, join(nil, a))
	assert.Equal(t, "a\nb", explain(join(a, join(nil, b))))
	require.ErrorIs(t, join(a, b), b)
	require.NoError(t, badInput())
}

func TestNotReadyIsExplainedVolumeByVolume(t *testing.T) {
	err := error(&volume.NotReadyError{
		PodName: types.NamespacedName{Namespace: "n", Name: "p"},
		Volumes: []volume.VolumeStanding{
			{OuterName: "a", Phase: "mounting", Err: errors.New("cause of a")},
			{OuterName: "b", Phase: "waiting", NextTry: time.Unix(0, 0)},
		},
		Err: context.DeadlineExceeded,
	})
	lines := strings.Split(explain(fmt.Errorf("wrapped: %w", err)), "\n")
	require.Len(t, lines, 3)
	assert.Contains(t, lines[0], "n/p")
	assert.Contains(t, lines[0], "-timeout")
	assert.Contains(t, lines[1], "cause of a")
	assert.Contains(t, lines[2], `"b" is waiting`)
}

func TestVolumesThatStayAreExplainedBesideOtherFailures(t *testing.T) {
	stuck := &stuckError{err: join(&volume.NotReadyError{
		Volumes: []volume.VolumeStanding{{OuterName: "a", Phase: "unmounting", Err: errors.New("busy")}},
		Err:     context.DeadlineExceeded,
	}, errors.New("more"))}
	text := explain(join(errors.New("first"), stuck))
	assert.Equal(t, "first\nvolumes could not be taken away in time (-timeout gives them longer)\n  \"a\" is unmounting: busy", text)
}

func TestPruneTakesVolumesOutOfPodsContainersAndClaims(t *testing.T) {
	m, err := loadManifests(options{}, nil)
	require.NoError(t, err)
	var asked []string
	out := m.prune(func(fsType string) error {
		asked = append(asked, fsType)
		return errors.New("missing")
	})
	assert.Equal(t, []string{"ext4", "ext4"}, asked)
	require.Len(t, out, 2)
	assert.Equal(t, leftOut{Pod: "default/first-light", Volume: "data", Plugin: loopBlock, Reason: "missing"}, out[0])
	assert.Empty(t, m.claims)
	require.Len(t, m.pods[0].Spec.Volumes, 3)
	for _, mount := range containerMounts(m.pods[0]) {
		assert.NotContains(t, []string{"data", "library"}, mount.Name)
	}
}

func TestPruneLeavesWhatCanBeServed(t *testing.T) {
	m, err := loadManifests(options{}, nil)
	require.NoError(t, err)
	assert.Empty(t, m.prune(func(string) error { return nil }))
	assert.Len(t, m.pods[0].Spec.Volumes, 5)
	assert.Len(t, m.claims, 2)
}

func TestTableShowsPathsUnderTheRootShort(t *testing.T) {
	size, used := int64(64<<20), int64(1<<20)
	text := table([]*readyPod{{name: "n/p", volumes: []row{
		{Pod: "n/p", Volume: "v", Plugin: loopBlock, Phase: "mounted", Path: "/r/pods/0123abcd-0000-4000-8000-0123456789ab/x", ReadOnly: true, Size: &size, Used: &used, ReadyMillis: 1.25},
		{Pod: "n/p", Volume: "w", Plugin: hostPath, Phase: "mounted", Path: "/usr"},
	}}}, "/r")
	lines := strings.Split(text, "\n")
	require.Len(t, lines, 3)
	assert.Equal(t, strings.Fields("v loop-block mounted, read-only ./pods/0123abcd…/x 64Mi 1Mi 1.2 ms"), strings.Fields(lines[1]))
	assert.Equal(t, strings.Fields("w host-path mounted /usr - - 0.0 ms"), strings.Fields(lines[2]))
}

// That a volume is read-only must be seen, not assumed: one that can be written is an error, and is left as it was.
func TestWritableVolumeThatShouldBeReadOnlyIsFound(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, []byte("content"), 0o600))
	c := &containers{binds: []bind{{volume: "d", path: dir, readOnly: true}, {volume: "f", path: file, readOnly: true}}}
	findings := c.use()
	require.Len(t, findings, 2)
	for _, f := range findings {
		assert.Contains(t, f.Error, errWritable.Error())
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, entries, 1)
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, "content", string(content))
}

// What one container wrote and another cannot read is an error of that other.
func TestVolumeThatIsNotSharedIsFound(t *testing.T) {
	c := &containers{binds: []bind{
		{pod: "n/p", container: "a", volume: "v", path: t.TempDir()}, {pod: "n/p", container: "b", volume: "v", path: t.TempDir()},
	}}
	failed := 0
	for _, f := range c.use() {
		if f.Error != "" {
			failed++
		}
	}
	assert.Equal(t, 2, failed)
}
