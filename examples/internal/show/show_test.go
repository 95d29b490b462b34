package show

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/examples/internal/sandbox"
	"github.com/volumekit/volumekit/volume"
)

func TestBinarySize(t *testing.T) {
	for want, bytes := range map[string]int64{
		"0": 0, "1023": 1023, "1Ki": 1024, "1.5Ki": 1536, "64Mi": 64 << 20, "62.9Mi": 65<<20 - 2<<20 - 100<<10, "8Ei": 1<<63 - 1,
	} {
		assert.Equal(t, want, binarySize(&bytes))
	}
	assert.Equal(t, "-", binarySize(nil))
}

func TestExitCodes(t *testing.T) {
	failed := errors.New("failed")
	left := &sandbox.LeftoverError{Root: "/r"}
	sig := &sandbox.SignalError{Signal: syscall.SIGTERM}
	for _, c := range []struct {
		want int
		err  error
	}{
		{0, nil},
		{1, failed},
		{2, BadInput(failed)},
		{2, fmt.Errorf("wrapped: %w", BadInput(failed))},
		{143, sig},
		{143, Join(failed, sig)},
		{1, Join(sig, left)},
	} {
		assert.Equal(t, c.want, ExitCode(c.err), "%v", c.err)
	}
}

func TestJoinKeepsWhatFailed(t *testing.T) {
	require.NoError(t, Join(nil, nil))
	a, b := errors.New("a"), errors.New("b")
	assert.Equal(t, a, Join(nil, a))
	assert.Equal(t, "a\nb", Explain(Join(a, Join(nil, b))))
	require.ErrorIs(t, Join(a, b), b)
	require.NoError(t, BadInput())
}

func TestNotReadyIsExplainedVolumeByVolume(t *testing.T) {
	err := error(&volume.NotReadyError{
		PodName: types.NamespacedName{Namespace: "n", Name: "p"},
		Volumes: []volume.NotReadyVolume{
			{OuterName: "a", Phase: "mounting", Err: errors.New("cause of a")},
			{OuterName: "b", Phase: "waiting", NextTry: time.Unix(0, 0)},
		},
		Err: context.DeadlineExceeded,
	})
	lines := strings.Split(Explain(fmt.Errorf("wrapped: %w", err)), "\n")
	require.Len(t, lines, 3)
	assert.Contains(t, lines[0], "n/p")
	assert.Contains(t, lines[0], "-timeout")
	assert.Contains(t, lines[1], "cause of a")
	assert.Contains(t, lines[2], `"b" is waiting`)
}

func TestVolumesThatStayAreExplainedBesideOtherFailures(t *testing.T) {
	stuck := &StuckError{Err: Join(&volume.NotReadyError{
		Volumes: []volume.NotReadyVolume{{OuterName: "a", Phase: "unmounting", Err: errors.New("busy")}},
		Err:     context.DeadlineExceeded,
	}, errors.New("more"))}
	text := Explain(Join(errors.New("first"), stuck))
	assert.Equal(t, "first\nvolumes could not be taken away in time (-timeout gives them longer)\n  \"a\" is unmounting: busy", text)
}

func TestTableShowsPathsUnderTheRootShort(t *testing.T) {
	size, used := int64(64<<20), int64(1<<20)
	text := Table([]Row{
		{Pod: "n/p", Volume: "v", Plugin: "volumekit.io/loop-block", Phase: "mounted", Path: "/r/pods/0123abcd-0000-4000-8000-0123456789ab/x", ReadOnly: true, Size: &size, Used: &used, ReadyMillis: 1.25},
		{Pod: "n/p", Volume: "w", Plugin: "kubernetes.io/host-path", Phase: "mounted", Path: "/usr"},
	}, "/r")
	lines := strings.Split(text, "\n")
	require.Len(t, lines, 3)
	assert.Equal(t, strings.Fields("v loop-block mounted, read-only ./pods/0123abcd…/x 64Mi 1Mi 1.2 ms"), strings.Fields(lines[1]))
	assert.Equal(t, strings.Fields("w host-path mounted /usr - - 0.0 ms"), strings.Fields(lines[2]))
}
