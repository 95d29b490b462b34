package atomicwriter

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/mount/mounttest"
)

func TestWriteTellsWhatItDid(t *testing.T) {
	dir := t.TempDir()
	w := newWriter(t, dir, Options{})
	before := descriptors(t)

	first := mustWrite(t, w, payload{"a": {Data: []byte("1"), Mode: 0o644}, "d/b": {Mode: 0o400}, "d/c/e": {Mode: 0o600}})
	assert.Equal(t, Result{
		Published: true, Dir: published(dir), Added: []string{"a", "d/b", "d/c/e"}, Linked: []string{"a", "d"},
	}, first)

	second := mustWrite(t, w, payload{"a": {Data: []byte("2"), Mode: 0o644}, "d/b": {Mode: 0o400}, "n": {Mode: 0o600}})
	assert.Equal(t, Result{
		Published: true, Dir: published(dir), Added: []string{"n"}, Modified: []string{"a"}, Removed: []string{"d/c/e"},
		Linked: []string{"n"},
	}, second)
	assert.NotEqual(t, first.Dir, second.Dir)

	third := mustWrite(t, w, payload{"n": {Mode: 0o600}})
	assert.Equal(t, Result{
		Published: true, Dir: published(dir), Removed: []string{"a", "d/b"}, Pruned: []string{"a", "d"},
	}, third)

	fourth := mustWrite(t, w, payload{})
	assert.Equal(t, []string{"n"}, fourth.Pruned)
	assert.Empty(t, list(t, filepath.Join(dir, dataLink)+"/"))
	assert.Equal(t, before, descriptors(t))
}

func TestWriteOfTheSameChangesNothing(t *testing.T) {
	dir := t.TempDir()
	w := newWriter(t, dir, Options{SetPerms: func(_ context.Context, d *os.File) error {
		return os.Chmod(filepath.Join(d.Name(), "a"), 0o660) // as the owner of a whole volume does
	}})
	p := payload{"a": {Data: []byte("1"), Mode: 0o600}, "d/b": {Data: make([]byte, 100_000), Mode: 0o600}, "d/e": {Mode: 0o600}}
	first, err := w.Write(t.Context(), p)
	require.NoError(t, err)
	before := picture(t, dir)
	for range 3 {
		again, err := w.Write(t.Context(), p)
		require.NoError(t, err)
		assert.Equal(t, Result{Dir: first.Dir}, again)
	}
	assert.Equal(t, before, picture(t, dir))
}

// TestChangeOfModesOrOwnersAlone is what Kubernetes does not write.
func TestChangeOfModesOrOwnersAlone(t *testing.T) {
	dir := t.TempDir()
	w := newWriter(t, dir, Options{})
	me := int64(os.Geteuid())
	mustWrite(t, w, payload{"a": {Data: []byte("1"), Mode: 0o644}})
	for _, p := range []payload{
		{"a": {Data: []byte("1"), Mode: 0o600}},
		{"a": {Data: []byte("1"), Mode: 0o600, FsUser: &me}},
		{"a": {Data: []byte("1"), Mode: 0o755, FsUser: &me}},
		{"a": {Data: []byte("1"), Mode: 0o755}},
	} {
		result := mustWrite(t, w, p)
		assert.Equal(t, Result{Published: true, Dir: published(dir)}, result)
		assert.False(t, mustWrite(t, w, p).Published)
	}
}

func TestModesDoNotDependOnTheUmask(t *testing.T) {
	for _, umask := range []int{0, 0o77} {
		dir := t.TempDir()
		old := syscall.Umask(umask)
		result, err := newWriter(t, dir, Options{}).Write(t.Context(), payload{
			"open": {Mode: 0o777}, "closed": {Mode: 0o600}, "d/e/f": {Mode: 0o666},
		})
		syscall.Umask(old)
		require.NoError(t, err)
		requireShows(t, dir, payload{"open": {Mode: 0o777}, "closed": {Mode: 0o600}, "d/e/f": {Mode: 0o666}})
		assert.True(t, result.Published)
	}
}

func TestSetgidDirectoryHandsDownItsGroup(t *testing.T) {
	mounttest.RequireRoot(t)
	dir := t.TempDir()
	require.NoError(t, os.Chown(dir, 0, 4321))
	require.NoError(t, os.Chmod(dir, 0o775|os.ModeSetgid))
	mustWrite(t, newWriter(t, dir, Options{}), payload{"d/f": {Mode: 0o640}})
	for name, mode := range map[string]uint32{
		".": unix.S_IFDIR | unix.S_ISGID | dirMode, "d": unix.S_IFDIR | unix.S_ISGID | dirMode, "d/f": unix.S_IFREG | 0o640,
	} {
		st := statOf(t, filepath.Join(dir, published(dir), name))
		assert.Equal(t, mode, st.Mode, name)
		assert.EqualValues(t, 4321, st.Gid, name)
	}
}

func TestFilesAndLinksOfAnotherUser(t *testing.T) {
	mounttest.RequireRoot(t)
	dir := t.TempDir()
	w := newWriter(t, dir, Options{})
	p := payload{"a": {Mode: 0o400, FsUser: user(12345)}, "d/b": {Mode: 0o755, FsUser: user(4294967294)}, "root": {Mode: 0o600}}
	mustWrite(t, w, p)
	assert.EqualValues(t, 0, statOf(t, filepath.Join(dir, published(dir))).Uid)

	require.NoError(t, os.Lchown(filepath.Join(dir, "a"), 0, -1))
	result := mustWrite(t, w, p)
	assert.Equal(t, Result{Dir: published(dir), Linked: []string{"a"}}, result, "the owner of a link is put right")
	p["a"] = FileProjection{Mode: 0o400, FsUser: user(777)}
	result = mustWrite(t, w, p)
	assert.Equal(t, Result{Published: true, Dir: published(dir), Linked: []string{"a"}}, result)
}

func TestLinksAreRepairedThoughNothingChanged(t *testing.T) {
	dir := t.TempDir()
	w := newWriter(t, dir, Options{})
	p := payload{"a": {Mode: 0o644}, "b": {Mode: 0o644}, "c/d": {Mode: 0o644}}
	first := mustWrite(t, w, p)
	require.NoError(t, os.Remove(filepath.Join(dir, "a")))
	require.NoError(t, os.Remove(filepath.Join(dir, "b")))
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(dir, "b")))
	require.NoError(t, os.Symlink("..data/old", filepath.Join(dir, "old")))
	require.NoError(t, os.Symlink("..data/a", filepath.Join(dir, "workloads-own")))
	result, err := w.Write(t.Context(), p)
	require.NoError(t, err)
	assert.Equal(t, Result{Dir: first.Dir, Linked: []string{"a", "b"}, Pruned: []string{"old"}}, result)
	require.NoError(t, os.Remove(filepath.Join(dir, "workloads-own")))
	requireShows(t, dir, p)
}

func TestOnlyWhatWasRemovedIsTold(t *testing.T) {
	dir := t.TempDir()
	w := newWriter(t, dir, Options{})
	mustWrite(t, w, payload{"a": {}, "b": {}, "c": {}})
	w.before = func(call, name string) error {
		if call == "unlink" && name == "b" {
			return unix.EIO
		}
		return nil
	}
	result, err := w.Write(t.Context(), payload{"c": {}})
	require.ErrorIs(t, err, unix.EIO)
	require.True(t, outcome.IsUncertain(err))
	assert.Equal(t, []string{"a"}, result.Pruned)
	w.before = nil
	assert.Equal(t, []string{"b"}, mustWrite(t, w, payload{"c": {}}).Pruned)
}

func TestLargeSetIsNotWrittenAgain(t *testing.T) {
	w := newWriter(t, mountTmpfs(t, ""), Options{})
	p := payload{}
	for i := range maxListed + 100 {
		p[strconv.Itoa(i%50)+"/"+strconv.Itoa(i)] = FileProjection{Mode: 0o600}
	}
	first, err := w.Write(t.Context(), p)
	require.NoError(t, err)
	again, err := w.Write(t.Context(), p)
	require.NoError(t, err)
	assert.Equal(t, Result{Dir: first.Dir}, again)
}

func TestFileThatIsMissingIsWrittenAgain(t *testing.T) {
	dir := t.TempDir()
	w := newWriter(t, dir, Options{})
	p := payload{"a": {Mode: 0o644}, "c/d": {Mode: 0o644}}
	first := mustWrite(t, w, p)
	require.NoError(t, os.Remove(filepath.Join(dir, first.Dir, "c", "d")))
	second := mustWrite(t, w, p)
	assert.Equal(t, Result{Published: true, Dir: published(dir), Added: []string{"c/d"}}, second)
}

func TestSetPermsSeesTheWholeSetBeforeItIsPublished(t *testing.T) {
	dir := t.TempDir()
	calls := 0
	w := newWriter(t, dir, Options{})
	mustWrite(t, w, payload{"a": {Data: []byte("old"), Mode: 0o600}})
	old := published(dir)
	p := payload{"a": {Data: []byte("new"), Mode: 0o600}, "d/b": {Mode: 0o600}}
	w.options.SetPerms = func(ctx context.Context, d *os.File) error {
		calls++
		assert.NoError(t, ctx.Err())
		assert.Equal(t, dir, filepath.Dir(d.Name()))
		assert.Equal(t, old, published(dir))
		s, err := newSet(p)
		require.NoError(t, err)
		requireSet(t, d.Name(), s)
		names, err := d.Readdirnames(-1)
		assert.ElementsMatch(t, []string{"a", "d"}, names)
		return err
	}
	mustWrite(t, w, p)
	mustWrite(t, w, p)
	assert.Equal(t, 1, calls, "not when nothing has changed")
}

func TestSetPermsThatFailsLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	w := newWriter(t, dir, Options{})
	p := payload{"a": {Data: []byte("old"), Mode: 0o600}}
	mustWrite(t, w, p)
	before := descriptors(t)
	cause := errors.New("no such group")
	w.options.SetPerms = func(context.Context, *os.File) error { return cause }
	result, err := w.Write(t.Context(), payload{"b": {}})
	require.ErrorIs(t, err, cause)
	assert.False(t, outcome.IsUncertain(err))
	assert.False(t, result.Published)
	requireShows(t, dir, p)

	w.options.SetPerms = func(context.Context, *os.File) error { panic("bug") }
	assert.PanicsWithValue(t, "bug", func() { _, _ = w.Write(t.Context(), payload{"b": {}}) })
	requireShows(t, dir, p)
	assert.Equal(t, before, descriptors(t))
}

func TestContextThatEnds(t *testing.T) {
	for name, hook := range map[string]string{"while files are written": "create", "before all": "", "late": "rename"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			w := newWriter(t, dir, Options{})
			p := payload{"a": {Data: []byte("old"), Mode: 0o600}}
			mustWrite(t, w, p)
			ctx, cancel := context.WithCancelCause(t.Context())
			created := 0
			w.before = func(call, name string) error {
				if call == hook {
					cancel(nil)
				}
				if call == "create" {
					created++
				}
				return nil
			}
			if hook == "" {
				cancel(nil)
			}
			next := payload{"a": {Data: []byte("new"), Mode: 0o600}, "b": {Mode: 0o600}}
			result, err := w.Write(ctx, next)
			require.ErrorIs(t, err, context.Canceled)
			w.before = nil
			if hook != "rename" {
				assert.LessOrEqual(t, created, 1, "it stops soon")
				requireShows(t, dir, p)
				return
			}
			require.True(t, outcome.IsUncertain(err))
			assert.True(t, result.Published)
			assert.FileExists(t, filepath.Join(dir, "b"))
			assert.Len(t, mustWrite(t, w, next).Cleared, 1)
		})
	}
}

func TestDirectoryThatIsNotThere(t *testing.T) {
	dir := t.TempDir()
	_, err := newWriter(t, filepath.Join(dir, "missing"), Options{}).Write(t.Context(), nil)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	_, err = newWriter(t, filepath.Join(dir, "file"), Options{}).Write(t.Context(), nil)
	require.ErrorIs(t, err, unix.ENOTDIR)
	require.NoError(t, os.Symlink(t.TempDir(), filepath.Join(dir, "link")))
	_, err = newWriter(t, filepath.Join(dir, "link"), Options{}).Write(t.Context(), payload{"a": {}})
	require.ErrorIs(t, err, unix.ENOTDIR, "a link is not followed")
}

func TestPayloadThatIsInvalidChangesNothing(t *testing.T) {
	dir := t.TempDir()
	_, err := newWriter(t, dir, Options{}).Write(t.Context(), payload{"fine": {}, "../escape": {Data: []byte("top secret")}})
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "../escape")
	assert.NotContains(t, err.Error(), "secret")
	assert.Empty(t, list(t, dir))
}

func TestSyncComesBeforePublishing(t *testing.T) {
	dir := t.TempDir()
	w := newWriter(t, dir, Options{Sync: true})
	var calls []string
	w.before = func(call, name string) error {
		if call == "fsync" || call == "rename" {
			calls = append(calls, call+" "+name)
		}
		return nil
	}
	mustWrite(t, w, payload{"a": {Mode: 0o600}, "d/b": {Mode: 0o600}, "d/e/f": {Mode: 0o600}})
	at := map[string]int{}
	for i, c := range calls {
		at[c] = i
	}
	for _, name := range []string{"a", "b", "f"} {
		assert.Contains(t, at, "fsync "+name)
		assert.Less(t, at["fsync "+name], at["rename ..data"])
	}
	assert.Equal(t, []string{"fsync ", "fsync ", "fsync ", "rename ..data", "fsync ", "fsync "}, calls[3:], "d, d/e, the set; the volume, twice")
}

func TestOfKubernetesIsTakenOver(t *testing.T) {
	dir := t.TempDir()
	const old = "..2016_02_01_15_04_05.1234567890"
	require.NoError(t, os.Mkdir(filepath.Join(dir, old), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, old, "a"), []byte("1"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, old, "b"), []byte("1"), 0o644))
	require.NoError(t, os.Symlink(old, filepath.Join(dir, dataLink)))
	require.NoError(t, os.Symlink("..data/a", filepath.Join(dir, "a")))
	require.NoError(t, os.Symlink("..data/b", filepath.Join(dir, "b")))
	result := mustWrite(t, newWriter(t, dir, Options{}), payload{"a": {Data: []byte("1"), Mode: 0o644}})
	assert.Equal(t, Result{Published: true, Dir: published(dir), Removed: []string{"b"}, Pruned: []string{"b"}}, result)
}

func TestOddNames(t *testing.T) {
	p := payload{}
	for i, name := range []string{
		"a b", "a\nb", "a\tb", `a\b`, `\040`, "x (deleted)", "\xff\xfe", strings.Repeat("n", 255), "p1", "p10", ".dot", "-rf", "*",
		"deep/" + strings.Repeat("d/", 50) + "f", strings.Repeat("l", 255) + "/" + strings.Repeat("m", 255) + "/n",
	} {
		p[name] = FileProjection{Data: []byte{byte(i)}, Mode: 0o644}
	}
	dir := t.TempDir()
	w := newWriter(t, dir, Options{})
	mustWrite(t, w, p)
	assert.False(t, mustWrite(t, w, p).Published)
	mustWrite(t, w, payload{"p1": {}, "p10": {}})
}
