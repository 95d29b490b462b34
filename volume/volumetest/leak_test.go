package volumetest

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOpenFilesAreThoseBeneathTheRoot(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("missing: /proc/self/fd")
	}
	root, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	require.Empty(t, openFiles(root))
	inside, err := os.Create(filepath.Join(root, "file"))
	require.NoError(t, err)
	outside, err := os.Create(filepath.Join(t.TempDir(), "file"))
	require.NoError(t, err)
	defer func() { require.NoError(t, outside.Close()) }()
	require.Len(t, openFiles(root), 1)
	assert.Contains(t, openFiles(root)[0], filepath.Join(root, "file"))
	require.NoError(t, inside.Close())
	require.Empty(t, openFiles(root))
}

func TestGoroutinesOfOtherCasesAreNotCounted(t *testing.T) {
	release := make(chan struct{})
	ended := make(chan struct{})
	started := make(chan struct{})
	pprof.Do(t.Context(), pprof.Labels(leakLabel, "one"), func(context.Context) {
		go func() {
			defer close(ended)
			close(started)
			<-release
		}()
	})
	<-started
	assert.Contains(t, labelledStacks("one"), "TestGoroutinesOfOtherCasesAreNotCounted")
	assert.Empty(t, labelledStacks("two"))
	close(release)
	<-ended
	assert.Empty(t, goroutinesLeft(t.Context(), "one"))
}

func TestAFileThatIsClosedInAMomentIsNoLeak(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("missing: /proc/self/fd")
	}
	root, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	file, err := os.Create(filepath.Join(root, "file"))
	require.NoError(t, err)
	before := openFiles(root)
	require.Len(t, before, 1)
	assert.Empty(t, openFilesLeft(t.Context(), root, before), "it was open before")
	looked := false
	left := lasting(t.Context(), func() string {
		open := openFiles(root)
		if !looked {
			require.NoError(t, file.Close())
		}
		looked = true
		return strings.Join(open, " ")
	})
	assert.Empty(t, left)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	file, err = os.Create(filepath.Join(root, "other"))
	require.NoError(t, err)
	assert.Contains(t, openFilesLeft(ended, root, nil), filepath.Join(root, "other"))
	require.NoError(t, file.Close())
}
