package usage

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// makeTree makes n files, perDir in each directory, the directories in each other by eights; half of the files empty, one
// in twenty a link to the one before.
func makeTree(tb testing.TB, root string, n, perDir int) {
	tb.Helper()
	content := make([]byte, 8<<10)
	dirs := []string{root}
	for made := 0; made < n; {
		k := len(dirs) - 1
		parent := dirs[k/8]
		dir := filepath.Join(parent, fmt.Sprintf("dir%d", k))
		require.NoError(tb, os.MkdirAll(dir, 0o750))
		dirs = append(dirs, dir)
		for i := 0; i < perDir && made < n; i, made = i+1, made+1 {
			name := filepath.Join(dir, fmt.Sprintf("file-%06d.dat", i))
			if i%20 == 18 { // the one before is not empty
				require.NoError(tb, os.Link(filepath.Join(dir, fmt.Sprintf("file-%06d.dat", i-1)), name))
				continue
			}
			require.NoError(tb, os.WriteFile(name, content[:i%2*(made*37%len(content))], 0o600))
		}
	}
}

// BenchmarkMeasure measures trees whose inodes are in the kernel's cache.
func BenchmarkMeasure(b *testing.B) {
	for _, c := range []struct {
		name      string
		n, perDir int
	}{{"small-10", 10, 100}, {"nested-10000", 10_000, 100}, {"flat-50000", 50_000, 50_000}, {"nested-200000", 200_000, 100}} {
		b.Run(c.name, func(b *testing.B) {
			root := b.TempDir()
			makeTree(b, root, c.n, c.perDir)
			m := &Measurer{}
			_, err := m.Measure(b.Context(), root)
			require.NoError(b, err)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := m.Measure(b.Context(), root); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(c.n), "ns/file")
		})
	}
}
