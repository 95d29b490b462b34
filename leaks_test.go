package volumekit_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEveryPackageIsCheckedForLeaks holds that the tests of each package fail when they leave goroutines or descriptors.
func TestEveryPackageIsCheckedForLeaks(t *testing.T) {
	check := regexp.MustCompile(`(?s)\nfunc TestMain\(.*?\b(Run|Main)\(m\).*?\}\n`)
	for _, dir := range packageDirs(t) {
		files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		require.NoError(t, err)
		checked := len(files) == 0
		for _, name := range files {
			source, err := os.ReadFile(name)
			require.NoError(t, err)
			checked = checked || check.Match(source)
		}
		if !checked {
			t.Errorf("%s has tests and no TestMain with leak.Run or mounttest.Main", dir)
		}
	}
}
