package ownership

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/mount/mounttest"
)

const (
	reg  = unix.S_IFREG
	dir  = unix.S_IFDIR
	link = unix.S_IFLNK
)

// modes is what becomes of every kind of file: by name, before, and after for a volume that is written and for one that is
// only read.
var modes = map[string]struct {
	before         file
	after, afterRO uint32
	setID          bool // loses setuid or setgid
}{
	"file":            {before: file{reg | 0o600, 0}, after: reg | 0o660, afterRO: reg | 0o640},
	"closed":          {before: file{reg, 0}, after: reg | 0o660, afterRO: reg | 0o440},
	"others":          {before: file{reg | 0o606, 0}, after: reg | 0o666, afterRO: reg | 0o646},
	"program":         {before: file{reg | 0o755, 0}, after: reg | 0o775, afterRO: reg | 0o755},
	"of-group":        {before: file{reg | 0o600, group}, after: reg | 0o660, afterRO: reg | 0o640},
	"right":           {before: file{reg | 0o660, group}, after: reg | 0o660, afterRO: reg | 0o660},
	"setuid":          {before: file{reg | 0o4755, 0}, after: reg | 0o775, afterRO: reg | 0o755},
	"setgid":          {before: file{reg | 0o2771, 0}, after: reg | 0o771, afterRO: reg | 0o771},
	"setuid-setgid":   {before: file{reg | 0o6771, 0}, after: reg | 0o771, afterRO: reg | 0o771},
	"setuid-of-group": {before: file{reg | 0o4755, group}, after: reg | 0o4775, afterRO: reg | 0o4755},
	"locks":           {before: file{reg | 0o2644, 0}, after: reg | 0o2664, afterRO: reg | 0o2644},
	"fifo":            {before: file{unix.S_IFIFO | 0o600, 0}, after: unix.S_IFIFO | 0o660, afterRO: unix.S_IFIFO | 0o640},
	"socket":          {before: file{unix.S_IFSOCK | 0o600, 0}, after: unix.S_IFSOCK | 0o660, afterRO: unix.S_IFSOCK | 0o640},
	"link":            {before: file{link | 0o777, 0}, after: link | 0o777, afterRO: link | 0o777},
	"dir":             {before: file{dir | 0o700, 0}, after: dir | 0o2770, afterRO: dir | 0o2750},
	"dir-closed":      {before: file{dir, 0}, after: dir | 0o2770, afterRO: dir | 0o2550},
	"dir-sticky":      {before: file{dir | 0o1777, 0}, after: dir | 0o3777, afterRO: dir | 0o3777},
	"dir-right":       {before: file{dir | 0o2775, group}, after: dir | 0o2775, afterRO: dir | 0o2775},
	"dir/a/b/file":    {before: file{reg | 0o400, 0}, after: reg | 0o660, afterRO: reg | 0o440},
}

func TestEveryKindOfFileGetsTheGroupAndTheBits(t *testing.T) {
	requireChown(t)
	everyWay(t, func(t *testing.T, without feature) {
		for _, readOnly := range []bool{false, true} {
			root := t.TempDir()
			require.NoError(t, os.Chmod(root, 0o700))
			for name, m := range modes {
				put(t, filepath.Join(root, name), m.before)
			}
			require.NoError(t, os.Chmod(filepath.Join(root, "dir"), 0o700))
			passwd := fileOf(t, "/etc/passwd")

			report := mustApply(t, root, Options{ReadOnly: readOnly, without: without})
			want := Counts{Visited: 1, GroupChanged: 1, ModeChanged: 1, Links: 1}
			wantRoot := uint32(dir | 0o2770)
			if readOnly {
				wantRoot = dir | 0o2750
			}
			assert.Equal(t, file{wantRoot, group}, fileOf(t, root))
			for name, m := range modes {
				after := m.after
				if readOnly {
					after = m.afterRO
				}
				got := fileOf(t, filepath.Join(root, name))
				assert.Equalf(t, fmt.Sprintf("%o of %d", after, group), fmt.Sprintf("%o of %d", got.mode, got.gid),
					"%s, read-only=%t", name, readOnly)
				count(&want, m.before, after)
			}
			// Two directories above the deepest file, made with 0755.
			want.Visited, want.GroupChanged, want.ModeChanged = want.Visited+2, want.GroupChanged+2, want.ModeChanged+2
			assert.Equal(t, Report{Counts: want, Reason: policyAlways, Complete: true}, report)
			assert.Equal(t, passwd, fileOf(t, "/etc/passwd"), "what a link leads to")
		}
	})
}

func count(sum *Counts, before file, after uint32) {
	sum.Visited++
	if before.gid != group {
		sum.GroupChanged++
	}
	kept := before.mode
	if before.gid != group && before.mode&unix.S_IFMT != dir {
		kept &^= clearedByChown(before.mode & 0o7777)
		if kept != before.mode {
			sum.SetIDCleared++
		}
	}
	if kept != after {
		sum.ModeChanged++
	}
}

func TestHardLinksAreChangedOnce(t *testing.T) {
	requireChown(t)
	root, outside := t.TempDir(), t.TempDir()
	put(t, filepath.Join(root, "a", "file"), file{reg | 0o600, 0})
	require.NoError(t, os.Link(filepath.Join(root, "a", "file"), filepath.Join(root, "b")))
	require.NoError(t, os.Link(filepath.Join(root, "a", "file"), filepath.Join(outside, "c")))
	report := mustApply(t, root, Options{Workers: 1})
	assert.Equal(t, file{reg | 0o660, group}, fileOf(t, filepath.Join(outside, "c")))
	assert.EqualValues(t, 4, report.Visited)
	assert.EqualValues(t, 3, report.GroupChanged, "the root, the directory and the file")
}

func TestRootMayBeAFile(t *testing.T) {
	requireChown(t)
	everyWay(t, func(t *testing.T, without feature) {
		root := filepath.Join(t.TempDir(), "file")
		put(t, root, file{reg | 0o400, 0})
		report := mustApply(t, root, Options{Policy: &onRoot, without: without})
		assert.Equal(t, file{reg | 0o660, group}, fileOf(t, root))
		assert.Equal(t, Report{
			Counts: Counts{Visited: 1, GroupChanged: 1, ModeChanged: 1}, Reason: rootNotDirectory, Complete: true,
		}, report)
	})
}

func TestRootThatIsALinkIsRefused(t *testing.T) {
	outside := t.TempDir()
	root := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(outside, root))
	before := fileOf(t, outside)
	for _, name := range []string{root, root + "/."} {
		report, err := apply(t, name, Options{Group: of(int64(os.Getgid()))})
		if name == root {
			require.ErrorIs(t, err, ErrInvalid)
			require.ErrorIs(t, err, unix.ELOOP)
			assert.Equal(t, Report{}, report)
			assert.Equal(t, before, fileOf(t, outside))
		}
	}
}

func TestRootThatIsMissing(t *testing.T) {
	_, err := apply(t, filepath.Join(t.TempDir(), "missing"), Options{})
	require.ErrorIs(t, err, fs.ErrNotExist)
	assert.Equal(t, outcome.Final, outcome.ClassOf(err))
}

func TestOnRootMismatchSkipsOnlyWhenTheRootIsRight(t *testing.T) {
	requireChown(t)
	for _, c := range []struct {
		root     file
		readOnly bool
		policy   *v1.PodFSGroupChangePolicy
		want     Reason
	}{
		{root: file{dir | 0o2770, group}, policy: &onRoot, want: rootMatches},
		{root: file{dir | 0o2777, group}, policy: &onRoot, want: rootMatches},
		{root: file{dir | 0o770, group}, policy: &onRoot, want: rootMode},
		{root: file{dir | 0o2750, group}, policy: &onRoot, want: rootMode},
		{root: file{dir | 0o2070, group}, policy: &onRoot, want: rootMode},
		{root: file{dir | 0o2770, group + 1}, policy: &onRoot, want: rootGroup},
		{root: file{dir | 0o2550, group}, policy: &onRoot, readOnly: true, want: rootMatches},
		{root: file{dir | 0o2540, group}, policy: &onRoot, readOnly: true, want: rootMode},
		{root: file{dir | 0o2770, group}, policy: &always, want: policyAlways},
		{root: file{dir | 0o2770, group}, policy: nil, want: policyAlways},
	} {
		root := filepath.Join(t.TempDir(), "root")
		put(t, filepath.Join(root, "file"), file{reg | 0o600, 0})
		put(t, root, c.root)
		report := mustApply(t, root, Options{Policy: c.policy, ReadOnly: c.readOnly})
		skipped := c.want == rootMatches
		assert.Equal(t, c.want, report.Reason, "%o", c.root.mode)
		assert.Equal(t, skipped, report.Skipped)
		assert.Equal(t, !skipped, report.Complete)
		gid := uint32(group)
		if skipped {
			gid = 0
			assert.Zero(t, report.Counts)
		}
		assert.Equal(t, gid, fileOf(t, filepath.Join(root, "file")).gid, "%o", c.root.mode)
	}
}

func TestWithoutAGroupNothingIsTouched(t *testing.T) {
	root := t.TempDir()
	before := fileOf(t, root)
	report, err := Apply(t.Context(), root, Options{})
	require.NoError(t, err)
	assert.Equal(t, Report{Skipped: true, Reason: noGroup}, report)
	assert.Equal(t, before, fileOf(t, root))
}

func TestWhatIsNoGroupOrPolicyIsRefused(t *testing.T) {
	root := t.TempDir()
	before := fileOf(t, root)
	for _, gid := range []int64{-1, math.MinInt64, math.MaxUint32, math.MaxUint32 + 1} {
		_, err := Apply(t.Context(), root, Options{Group: of(gid)})
		require.ErrorIs(t, err, ErrInvalid, gid)
	}
	require.NoError(t, CheckGroup(nil))
	require.NoError(t, CheckGroup(of(math.MaxUint32-1)))
	policy := v1.PodFSGroupChangePolicy("Sometimes")
	_, err := apply(t, root, Options{Policy: &policy})
	require.ErrorIs(t, err, ErrInvalid)
	assert.Equal(t, before, fileOf(t, root))
}

func TestContextThatHasEndedBeginsNothing(t *testing.T) {
	root := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	before := fileOf(t, root)
	_, err := Apply(ctx, root, Options{Group: of(group)})
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, ErrTransient)
	assert.Equal(t, before, fileOf(t, root))
}

// grow makes n files in directories of 50.
func grow(t testing.TB, root string, n int) {
	t.Helper()
	for i := range n {
		sub := filepath.Join(root, fmt.Sprint("d", i/1000), fmt.Sprint("s", i/50))
		if i%50 == 0 {
			require.NoError(t, os.MkdirAll(sub, 0o755))
		}
		require.NoError(t, os.WriteFile(filepath.Join(sub, fmt.Sprint("f", i)), nil, 0o644))
	}
}

// times is when each entry of a tree was read and changed last.
func times(t *testing.T, root string) map[string][2]unix.Timespec {
	t.Helper()
	all := map[string][2]unix.Timespec{}
	require.NoError(t, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		st := lstat(t, path)
		all[path] = [2]unix.Timespec{st.Ctim, st.Atim}
		return err
	}))
	return all
}

func TestWhereAllIsRightNotEvenATimeChanges(t *testing.T) {
	requireChown(t)
	everyWay(t, func(t *testing.T, without feature) {
		root := t.TempDir()
		grow(t, root, 500)
		put(t, filepath.Join(root, "link"), file{link, 0})
		first := mustApply(t, root, Options{without: without})
		assert.EqualValues(t, 513, first.Visited)
		assert.EqualValues(t, 513, first.GroupChanged)
		times(t, root) // which sets access times itself, but only once after a change
		before := times(t, root)
		again := mustApply(t, root, Options{without: without})
		after := times(t, root)
		require.Len(t, after, len(before))
		for path := range before {
			require.Equal(t, before[path], after[path], path)
		}
		assert.Equal(t, Report{Counts: Counts{Visited: 513, Links: 1}, Reason: policyAlways, Complete: true}, again)
	})
}

// A directory that was changed after it was last read has its access time set by the next one who reads it.
func TestReadingADirectoryLeavesNoTrace(t *testing.T) {
	requireChown(t)
	everyWay(t, func(t *testing.T, without feature) {
		root := t.TempDir()
		put(t, filepath.Join(root, "a", "b"), file{reg | 0o660, group})
		put(t, filepath.Join(root, "a"), file{dir | 0o2770, group})
		put(t, root, file{dir | 0o2770, group})
		old := []unix.Timespec{{Sec: 1}, {Sec: 1 << 30}}
		for _, path := range []string{root, filepath.Join(root, "a")} {
			require.NoError(t, unix.UtimesNanoAt(unix.AT_FDCWD, path, old, 0))
		}
		mustApply(t, root, Options{without: without})
		for _, path := range []string{root, filepath.Join(root, "a")} {
			assert.EqualValues(t, 1, lstat(t, path).Atim.Sec, path)
		}
	})
}

// immutable is FS_IMMUTABLE_FL of linux/fs.h.
const immutable = 0x10

func chattr(t *testing.T, path string, flags int) {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags); errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("missing: a filesystem for temporary files that knows chattr +i")
	} else {
		require.NoError(t, err)
	}
}

func TestFailureIsReportedAndLeavesTheRootForTheNextTry(t *testing.T) {
	mounttest.RequireRoot(t)
	everyWay(t, func(t *testing.T, without feature) {
		root := t.TempDir()
		grow(t, root, 200)
		frozen := filepath.Join(root, "d0", "s1", "f77")
		chattr(t, frozen, immutable)
		defer chattr(t, frozen, 0)
		before := fileOf(t, root)
		report, err := apply(t, root, Options{Policy: &onRoot, without: without})
		require.ErrorIs(t, err, unix.EPERM)
		var failed *FailedError
		require.ErrorAs(t, err, &failed)
		assert.EqualValues(t, 1, failed.Total)
		assert.Equal(t, root, failed.Dir)
		var path *fs.PathError
		require.ErrorAs(t, err, &path)
		assert.Equal(t, fs.PathError{Op: "chown", Path: frozen, Err: unix.EPERM}, *path)
		assert.Equal(t, outcome.Final, outcome.ClassOf(err))
		assert.Equal(t, Counts{Visited: 205, GroupChanged: 204, ModeChanged: 204, Failed: 1}, report.Counts, "it went on")
		assert.False(t, report.Complete)
		assert.Equal(t, before, fileOf(t, root), "the root comes last")

		chattr(t, frozen, 0)
		report = mustApply(t, root, Options{Policy: &onRoot, without: without})
		assert.Equal(t, Counts{Visited: 206, GroupChanged: 2, ModeChanged: 2}, report.Counts)
		assert.Equal(t, rootGroup, report.Reason)
		assert.Equal(t, file{reg | 0o664, group}, fileOf(t, frozen))
		report = mustApply(t, root, Options{Policy: &onRoot, without: without})
		assert.True(t, report.Skipped)
	})
}
