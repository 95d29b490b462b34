package volume

import (
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestMetricsStatFSAgainstTheKernel(t *testing.T) {
	dir := t.TempDir()
	var st unix.Statfs_t
	require.NoError(t, unix.Statfs(dir, &st))

	for _, p := range []MetricsProvider{NewMetricsStatFS(dir), &Dir{Path: dir}} {
		metrics, err := p.GetMetrics(t.Context())
		require.NoError(t, err)
		assert.WithinDuration(t, time.Now(), metrics.Time.Time, time.Hour)
		assert.Equal(t, int64(st.Blocks)*st.Frsize, metrics.Capacity.Value())
		assert.Positive(t, metrics.Used.Value())
		assert.LessOrEqual(t, metrics.Used.Value()+metrics.Available.Value(), metrics.Capacity.Value())
		if st.Files > 0 {
			assert.EqualValues(t, st.Files, metrics.Inodes.Value())
			assert.Equal(t, metrics.Inodes.Value(), metrics.InodesUsed.Value()+metrics.InodesFree.Value())
		}
	}
}

func TestMetricsOfUnusualFilesystems(t *testing.T) {
	small := metricsOf(&unix.Statfs_t{Blocks: 100, Bfree: 60, Bavail: 50, Bsize: 1 << 20, Frsize: 512, Files: 10, Ffree: 4})
	assert.EqualValues(t, 100*512, small.Capacity.Value(), "in units of frsize, not of bsize")
	assert.EqualValues(t, 40*512, small.Used.Value())
	assert.EqualValues(t, 50*512, small.Available.Value())
	assert.EqualValues(t, 6, small.InodesUsed.Value())

	old := metricsOf(&unix.Statfs_t{Blocks: 100, Bsize: 4096})
	assert.EqualValues(t, 100*4096, old.Capacity.Value(), "a kernel without frsize")
	assert.Nil(t, old.Inodes, "a filesystem that does not count inodes")
	assert.Nil(t, old.InodesFree)
	assert.Nil(t, old.InodesUsed)

	odd := metricsOf(&unix.Statfs_t{Blocks: 1, Bfree: 2, Frsize: 512, Files: 1, Ffree: math.MaxUint64})
	assert.Zero(t, odd.Used.Value(), "more free than there is")
	assert.Zero(t, odd.InodesUsed.Value())
	assert.EqualValues(t, math.MaxInt64, odd.InodesFree.Value())

	huge := metricsOf(&unix.Statfs_t{Blocks: math.MaxUint64, Frsize: 4096})
	assert.EqualValues(t, math.MaxInt64, huge.Capacity.Value())
}

func TestMetricsOfAMissingPath(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for _, p := range []MetricsProvider{
		NewMetricsStatFS(missing), NewMetricsDu(missing), NewMetricsBlock(missing), &Dir{Path: missing},
	} {
		metrics, err := p.GetMetrics(t.Context())
		require.ErrorIs(t, err, os.ErrNotExist, "%T", p)
		require.ErrorIs(t, err, unix.ENOENT, "%T", p)
		require.ErrorContains(t, err, missing)
		assert.Nil(t, metrics)
	}
}

func TestMetricsBlock(t *testing.T) {
	file := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.NoError(t, os.Truncate(file, 3<<30))
	metrics, err := NewMetricsBlock(file).GetMetrics(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 3<<30, metrics.Capacity.Value())
	assert.False(t, metrics.Time.IsZero())
	assert.Nil(t, metrics.Used)
	assert.Nil(t, metrics.Available)

	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	for _, wrong := range []string{filepath.Dir(file), "/dev/null", fifo} {
		_, err = NewMetricsBlock(wrong).GetMetrics(t.Context())
		require.ErrorIs(t, err, ErrInvalid, wrong)
	}
}

func TestMetricsDu(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), make([]byte, 1<<20), 0o600))
	require.NoError(t, os.Truncate(filepath.Join(dir, "file"), 1<<40))
	metrics, err := NewMetricsDu(dir).GetMetrics(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 2, metrics.InodesUsed.Value())
	assert.GreaterOrEqual(t, metrics.Used.Value(), int64(1<<20))
	assert.Less(t, metrics.Used.Value(), int64(1<<30), "holes do not count")

	whole, err := NewMetricsStatFS(dir).GetMetrics(t.Context())
	require.NoError(t, err)
	assert.Equal(t, whole.Capacity.Value(), metrics.Capacity.Value(), "the rest is the filesystem's")
	assert.NotNil(t, metrics.Available)
}
