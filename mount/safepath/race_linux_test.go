package safepath

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// tries is how often names are exchanged in each race, in both ways together.
const tries = 100_000

// outcomes counts how the tries of a race ended.
type outcomes struct{ worked, refused int }

// count takes the error of one try: only those that say what is the matter may come.
func (o *outcomes) count(t *testing.T, err error) {
	t.Helper()
	switch {
	case err == nil:
		o.worked++
	case errors.Is(err, ErrEscapes), errors.Is(err, ErrRaced):
		o.refused++
	default:
		require.NoError(t, err)
	}
}

// check proves that there was a race at all.
func (o *outcomes) check(t *testing.T, swaps int) {
	t.Helper()
	t.Logf("%d tries worked, %d were refused, %d swaps", o.worked, o.refused, swaps)
	assert.Positive(t, o.worked)
	assert.Positive(t, o.refused)
}

// CVE-2017-1002101, CVE-2021-25741: the sub-path itself is swapped for a link to the host's root.
func TestSubpathSwappedForALinkToTheHostsRootIsNeverTheHostsRoot(t *testing.T) {
	inEachWay(t, func(t *testing.T, w *world) {
		w.mkdir("a")
		w.link("/", "link")
		want := inodeOf(t, w.path("a"))
		tree := w.tree()
		var o outcomes
		swaps := w.race("a", "link", func() {
			fd, err := tree.openKind(t.Context(), "a", Directory|RegularFile)
			if o.count(t, err); err == nil {
				require.Equal(t, want, inodeOfFD(t, fd))
				closeFD(fd)
			}
		})
		o.check(t, swaps)
	})
}

func TestParentSwappedForALinkToTheHostsRootNeverLeadsToTheHost(t *testing.T) {
	inEachWay(t, func(t *testing.T, w *world) {
		w.mkdir("a/etc")
		w.link("/", "link")
		want := inodeOf(t, w.path("a/etc"))
		tree := w.tree()
		var o outcomes
		swaps := w.race("a", "link", func() {
			fd, err := tree.openKind(t.Context(), "a/etc", Directory)
			if o.count(t, err); err == nil {
				require.Equal(t, want, inodeOfFD(t, fd))
				closeFD(fd)
			}
		})
		o.check(t, swaps)
	})
}

// CVE-2024-45310: directories are made on the host through a volume.
func TestDirectoriesAreNeverMadeOutsideWhileALinkIsSwapped(t *testing.T) {
	inEachWay(t, func(t *testing.T, w *world) {
		w.mkdir("a")
		w.link(w.outside, "link")
		real, err := unix.Open(w.path("a"), unix.O_PATH, 0)
		require.NoError(t, err)
		defer closeFD(real)
		tree := w.tree()
		var o outcomes
		swaps := w.race("a", "link", func() {
			o.count(t, tree.mkdirAll(t.Context(), "a/made", MkdirOptions{Mode: 0o755}))
			_ = unix.Unlinkat(real, "made", unix.AT_REMOVEDIR) // it may not have been made
		})
		o.check(t, swaps)
		w.isUnharmed()
	})
}

func TestNothingIsRemovedOutsideWhileALinkIsSwapped(t *testing.T) {
	inEachWay(t, func(t *testing.T, w *world) {
		w.mkdir("a")
		w.link(w.outside, "link")
		real, err := unix.Open(w.path("a"), unix.O_PATH, 0)
		require.NoError(t, err)
		defer closeFD(real)
		tree := w.tree()
		var o outcomes
		swaps := w.race("a", "link", func() {
			_ = unix.Mknodat(real, "canary", unix.S_IFREG|0o644, 0) // it may be there still
			o.count(t, tree.remove(t.Context(), "a/canary"))
		})
		o.check(t, swaps)
		w.isUnharmed()
	})
}

// The tree itself is now a directory and now a link.
func TestNoTreeIsRemovedOutsideWhileItIsSwappedForALink(t *testing.T) {
	inEachWay(t, func(t *testing.T, w *world) {
		tree := w.tree()
		var o outcomes
		swaps := w.race("a", "link", func() {
			_ = unix.Mkdir(w.path("a"), 0o755) // one of the two is gone
			_ = unix.Symlink(w.outside, w.path("link"))
			_ = unix.Mkdir(w.path("a/full"), 0o755) // or outside, while the link is there
			_ = unix.Rmdir(filepath.Join(w.outside, "full"))
			o.count(t, tree.removeAll(t.Context(), "a", w.mounter))
		})
		t.Logf("%d trees were removed, %d were not, %d swaps", o.worked, o.refused, swaps)
		assert.Positive(t, swaps)
		w.isUnharmed()
	})
}

func TestNoTreeIsRemovedOutsideWhileALinkIsSwappedInsideIt(t *testing.T) {
	inEachWay(t, func(t *testing.T, w *world) {
		tree := w.tree()
		removed := 0
		swaps := w.race("top/a", "top/link", func() {
			require.NoError(t, unix.Mkdir(w.path("top"), 0o755))
			require.NoError(t, unix.Symlink(w.outside, w.path("top/link")))
			require.NoError(t, unix.Mkdir(w.path("top/a"), 0o755))
			_ = unix.Mkdir(w.path("top/a/full"), 0o755) // or outside, while the link is there
			_ = unix.Rmdir(filepath.Join(w.outside, "full"))
			require.NoError(t, tree.removeAll(t.Context(), "top", w.mounter))
			removed++
		})
		t.Logf("%d trees were removed, %d swaps", removed, swaps)
		assert.Positive(t, swaps)
		w.isUnharmed()
	})
}
