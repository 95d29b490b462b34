package containers

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/mount/safepath"
	"github.com/volumekit/volumekit/volume"
)

// TestALockThatIsNotGivenBackEndsWithTheContext, for those who prepare, release and take away.
func TestALockThatIsNotGivenBackEndsWithTheContext(t *testing.T) {
	s := NewSubpaths(nil, t.TempDir(), func(context.Context) error { return nil })
	release, _ := s.locks.Take(nil, subpathKey{"uid", SubpathName("example.com/disk", "data")})
	defer release()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.CleanSubpaths(ctx, "uid", "example.com/disk", "data"), context.Canceled)
	require.ErrorIs(t, s.CleanSubpaths(ctx, "uid", "example.com/disk", "data"), volume.ErrTransient)
	require.ErrorIs(t, s.releaseVolume(ctx, subpathKey{"uid", SubpathName("example.com/disk", "data")}, "main"), context.Canceled)
	_, err := s.Prepare(ctx, "uid", safepath.Subpath{Owner: safepath.Owner{VolumeName: SubpathName("example.com/disk", "data")}}, nil)
	require.ErrorIs(t, err, context.Canceled)
}
