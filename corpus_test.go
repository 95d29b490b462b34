package volumekit_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEveryFuzzTargetHasACorpus holds that each target begins with what is known to be nasty, in files that are committed.
func TestEveryFuzzTargetHasACorpus(t *testing.T) {
	target := regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)
	found := 0
	for _, dir := range packageDirs(t) {
		files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		require.NoError(t, err)
		for _, name := range files {
			source, err := os.ReadFile(name)
			require.NoError(t, err)
			for _, match := range target.FindAllStringSubmatch(string(source), -1) {
				found++
				corpus, err := filepath.Glob(filepath.Join(dir, "testdata", "fuzz", match[1], "*"))
				require.NoError(t, err)
				if len(corpus) == 0 {
					t.Errorf("%s: no files in testdata/fuzz/%s", name, match[1])
				}
			}
		}
	}
	require.Greater(t, found, 10)
}
