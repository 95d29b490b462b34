package safepath

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/mount"
)

func TestARootIsComparedByWhatIsOpen(t *testing.T) {
	inEachWay(t, func(t *testing.T, w *world) {
		w.mkdir("kept/in/deep")
		w.mkdir("other")
		kept := w.path("kept")
		require.NoError(t, os.Symlink(kept, w.path("to-kept")))
		w.mkdir("elsewhere")
		bound := w.path("elsewhere")
		require.NoError(t, w.mounter.Mount(t.Context(), mount.Request{Source: w.path("kept/in"), Target: bound, Options: []string{"bind"}}))
		defer func() { require.NoError(t, w.mounter.Unmount(t.Context(), bound, mount.UnmountOptions{})) }()

		missing := w.path("missing/below")
		for path, want := range map[string]struct{ apart, outside error }{
			kept:                         {ErrOverlap, ErrOverlap},
			w.path("kept/in"):            {ErrOverlap, ErrOverlap},
			w.path("to-kept/in/deep"):    {ErrOverlap, ErrOverlap},
			filepath.Join(bound, "deep"): {nil, nil}, // a part of it that is mounted elsewhere does not lie in it
			w.dir:                        {ErrOverlap, nil},
			"/":                          {ErrOverlap, nil},
			w.path("other"):              {nil, nil},
		} {
			root, err := Open(t.Context(), path, Options{Without: w.without, FollowLinks: true})
			require.NoError(t, err)
			require.ErrorIs(t, root.checkApart(t.Context(), w.path("to-kept")), want.apart, path)
			require.ErrorIs(t, root.CheckOutside(t.Context(), w.path("to-kept")), want.outside, path)
			require.NoError(t, root.CheckOutside(t.Context(), missing), path)
			if path == w.dir || path == "/" {
				require.ErrorIs(t, root.checkApart(t.Context(), missing), ErrOverlap, path)
			} else {
				require.NoError(t, root.checkApart(t.Context(), missing), path)
			}
			require.NoError(t, root.Close())
		}
	})
}
