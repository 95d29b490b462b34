package volume

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/volume/usage"
)

func TestMetricsStatFSAgainstTheKernel(t *testing.T) {
	dir := t.TempDir()
	// A new filesystem in memory has not used anything.
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), make([]byte, 4096), 0o600))
	var st unix.Statfs_t
	require.NoError(t, unix.Statfs(dir, &st))

	for _, p := range []MetricsProvider{NewMetricsStatFS(dir), NewMetricsStatFSWith(dir, MetricsOptions{Measurer: new(usage.Measurer)})} {
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

// TestDirMeasuresOnlyWhatIsMounted holds that a volume that is not set up is not measured as the filesystem above it.
func TestDirMeasuresOnlyWhatIsMounted(t *testing.T) {
	unmounted := t.TempDir()
	for _, p := range []MetricsProvider{
		&Dir{Path: unmounted},
		NewMetricsStatFSWith(unmounted, MetricsOptions{Expect: usage.Expect{MountPoint: true}}),
		NewMetricsDuWith(unmounted, MetricsOptions{Expect: usage.Expect{Device: 1}}),
	} {
		metrics, err := p.GetMetrics(t.Context())
		require.ErrorIs(t, err, usage.ErrWrongFilesystem, "%T", p)
		require.ErrorContains(t, err, unmounted)
		assert.Nil(t, metrics)
	}

	metrics, err := (&Dir{Path: "/"}).GetMetrics(t.Context())
	require.NoError(t, err, "the root directory is where a filesystem is mounted")
	assert.NotNil(t, metrics.Capacity)
}
