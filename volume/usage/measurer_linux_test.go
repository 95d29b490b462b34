package usage

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/mount/mounttest"
)

func TestMeasurerIsSharedByManyCallers(t *testing.T) {
	roots, m := []string{t.TempDir(), t.TempDir(), t.TempDir()}, &Measurer{}
	var callers sync.WaitGroup
	for i, root := range roots {
		makeTree(t, root, 50*(i+1), 10)
		want := expected(t, root)
		for range 8 {
			callers.Go(func() {
				used, err := m.Measure(t.Context(), root)
				assert.NoError(t, err)
				assert.Equal(t, want, used)
				_, err = m.FS(t.Context(), root, Expect{})
				assert.NoError(t, err)
			})
		}
	}
	callers.Wait()
	assert.Empty(t, m.Abandoned())
}

// TestMeasurerBoundsWhatItLeavesBehind lets more servers hang than may be abandoned.
func TestMeasurerBoundsWhatItLeavesBehind(t *testing.T) {
	mounttest.RequireMounts(t)
	m, healthy := &Measurer{MaxAbandoned: 2}, t.TempDir()
	var lost []error
	var servers []*mounttest.FUSE
	for range m.MaxAbandoned {
		server := newServer(t)
		server.Hang(mounttest.FUSEStatfs)
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() {
			_, err := m.FS(ctx, server.Path(), Expect{})
			result <- err
		}()
		server.Await(mounttest.FUSEStatfs)
		_, err := m.FS(t.Context(), healthy, Expect{})
		require.NoError(t, err, "a call that is waited for is not lost")
		cancel()
		lost, servers = append(lost, <-result), append(servers, server)
	}
	assert.Len(t, m.Abandoned(), m.MaxAbandoned)
	_, err := m.FS(t.Context(), healthy, Expect{})
	require.ErrorIs(t, err, ErrStuck)
	require.ErrorIs(t, err, outcome.ErrTransient)
	_, err = new(Measurer).FS(t.Context(), healthy, Expect{})
	require.NoError(t, err, "another measurer knows nothing of it")

	servers[0].Heal()
	<-outcome.DoneOf(lost[0])
	_, err = m.FS(t.Context(), healthy, Expect{})
	require.NoError(t, err)
	servers[1].Heal()
	<-outcome.DoneOf(lost[1])
	assert.Empty(t, m.Abandoned())
}
