package ownership

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// BenchmarkApply gives trees to a group: state=all changes the group and the mode of every file, state=right finds nothing
// to do, state=skipped looks at the root only.
func BenchmarkApply(b *testing.B) {
	requireChown(b)
	for _, n := range []int{10_000, 200_000} {
		root := b.TempDir()
		for i := range n {
			sub := filepath.Join(root, fmt.Sprint("d", i/10_000), fmt.Sprint("s", i/100))
			if i%100 == 0 {
				require.NoError(b, os.MkdirAll(sub, 0o755))
			}
			require.NoError(b, unix.Mknod(filepath.Join(sub, fmt.Sprint("file", i)), unix.S_IFREG|0o644, 0))
		}
		benchmark(b, fmt.Sprintf("files=%d/state=all", n), n, func() { reset(b, root) }, root, Options{})
		benchmark(b, fmt.Sprintf("files=%d/state=right", n), n, nil, root, Options{})
		benchmark(b, fmt.Sprintf("files=%d/state=skipped", n), 1, nil, root, Options{Policy: &onRoot})
	}
}

func benchmark(b *testing.B, name string, n int, before func(), root string, o Options) {
	b.Run(name, func(b *testing.B) {
		b.ReportAllocs()
		o.Group = of(group)
		var used int64
		for b.Loop() {
			if before != nil {
				b.StopTimer()
				before()
				b.StartTimer()
			}
			began := processorTime(b)
			_, err := Apply(b.Context(), root, o)
			require.NoError(b, err)
			used += processorTime(b) - began
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/file")
		b.ReportMetric(float64(used)/float64(b.N*n), "cpu-ns/file")
	})
}

func processorTime(b *testing.B) int64 {
	b.Helper()
	var u unix.Rusage
	require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return u.Utime.Nano() + u.Stime.Nano()
}

// reset gives everything to group 0 and takes the bits away.
func reset(b *testing.B, root string) {
	b.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		mode := uint32(0o644)
		if d.IsDir() {
			mode = 0o755
		}
		return errors.Join(err, os.Lchown(path, -1, 0), unix.Chmod(path, mode))
	})
	require.NoError(b, err)
}
