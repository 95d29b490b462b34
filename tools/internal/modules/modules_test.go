package modules_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/tools/internal/modules"
)

func TestTheLastListIsFoundWhateverTheNameOfTheDirectory(t *testing.T) {
	for _, name := range []string{"plain", "a[b]c", "star*"} {
		root := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.MkdirAll(filepath.Join(root, "api"), 0o700))
		for _, version := range []string{"v0.9.0", "v0.10.0"} {
			require.NoError(t, os.WriteFile(filepath.Join(root, "api", version+".txt"), nil, 0o600))
		}
		list, err := modules.LastList(root)
		require.NoError(t, err, name)
		require.Equal(t, filepath.Join(root, "api", "v0.10.0.txt"), list)
	}
}
