package treewalk

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount/mounttest"
)

// recorder is a visitor that keeps the paths that it was told of.
type recorder struct {
	mu    sync.Mutex
	paths []string
	fails []error
	visit func(e *Entry) Verdict
}

func (r *recorder) Visit(e *Entry) Verdict {
	path := e.Path()
	r.mu.Lock()
	r.paths = append(r.paths, path)
	r.mu.Unlock()
	if r.visit != nil {
		return r.visit(e)
	}
	return Next
}

func (r *recorder) Fail(err error) Verdict {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fails = append(r.fails, err)
	return Next
}

func (r *recorder) walk(t *testing.T, root string, options Options) error {
	t.Helper()
	tree, err := Open(root, options)
	require.NoError(t, err)
	defer tree.Close()
	return tree.Walk(t.Context(), func() Visitor { return r })
}

func TestWalkSeesEverythingOnce(t *testing.T) {
	root := t.TempDir()
	var want []string
	for i := range 40 {
		dir := filepath.Join(root, fmt.Sprint("d", i))
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "in", "in"), 0o755))
		want = append(want, dir, filepath.Join(dir, "in"), filepath.Join(dir, "in", "in"))
		for j := range i * 5 {
			file := filepath.Join(dir, "in", strings.Repeat("f", 1+j%200)+fmt.Sprint(j))
			require.NoError(t, os.WriteFile(file, nil, 0o600))
			want = append(want, file)
		}
	}
	sort.Strings(want)
	for _, options := range []Options{
		{}, {Workers: 1}, {Workers: 7}, {MaxOpen: 1}, {Workers: 5, MaxOpen: 2, Without: FeatureOpenat2 | FeatureMountRoot},
	} {
		r := &recorder{}
		require.NoError(t, r.walk(t, root, options))
		sort.Strings(r.paths)
		assert.Equal(t, want, r.paths)
		assert.Empty(t, r.fails)
	}
}

// TestWhatTakesThePlaceOfADirectoryBeforeItIsEntered puts something else there after the visitor was told of a directory and
// before it is opened: a link to what lies outside, and a mount. Neither may be entered.
func TestWhatTakesThePlaceOfADirectoryBeforeItIsEntered(t *testing.T) {
	mounttest.RequireMounts(t)
	link := func(t *testing.T, outside, dir string) {
		require.NoError(t, os.Rename(dir, filepath.Join(t.TempDir(), "away")))
		require.NoError(t, os.Symlink(outside, dir))
	}
	bind := func(t *testing.T, outside, dir string) {
		require.NoError(t, unix.Mount(outside, dir, "", unix.MS_BIND, ""))
		t.Cleanup(func() { assert.NoError(t, unix.Unmount(dir, 0)) })
	}
	for _, c := range []struct {
		name string
		put  func(t *testing.T, outside, dir string)
		want Skipped
	}{{"a link", link, Skipped{Vanished: 1}}, {"a mount", bind, Skipped{Foreign: 1}}} {
		for _, without := range []Feature{0, FeatureOpenat2, FeatureMountRoot, FeatureOpenat2 | FeatureMountRoot} {
			t.Run(fmt.Sprint(c.name, " without ", without), func(t *testing.T) {
				root, outside := t.TempDir(), t.TempDir()
				dir := filepath.Join(root, "dir")
				for _, path := range []string{dir, filepath.Join(outside, "canary")} {
					require.NoError(t, os.Mkdir(path, 0o755))
				}
				r := &recorder{}
				r.visit = func(*Entry) Verdict { c.put(t, outside, dir); return Next }
				tree, err := Open(root, Options{Workers: 1, Without: without})
				require.NoError(t, err)
				defer tree.Close()
				require.NoError(t, tree.Walk(t.Context(), func() Visitor { return r }))
				assert.Equal(t, []string{dir}, r.paths)
				assert.Empty(t, r.fails)
				assert.Equal(t, c.want, tree.Skipped())
			})
		}
	}
}
