package volumekit_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEverySkipNamesWhatIsMissing holds the words by which test.sh knows, in CI, that a test could not run.
func TestEverySkipNamesWhatIsMissing(t *testing.T) {
	call := regexp.MustCompile(`\.(Skip|Skipf)\((.*)`)
	for _, dir := range packageDirs(t) {
		files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		require.NoError(t, err)
		for _, name := range files {
			source, err := os.ReadFile(name)
			require.NoError(t, err)
			for _, match := range call.FindAllStringSubmatch(string(source), -1) {
				if text := match[2]; strings.HasPrefix(text, `"`) && !strings.HasPrefix(text, `"missing: `) {
					t.Errorf("%s skips without naming what is missing: %s", name, text)
				}
			}
			if strings.Contains(string(source), ".Skip"+"Now()") {
				t.Errorf("%s skips without a word", name)
			}
		}
	}
}
