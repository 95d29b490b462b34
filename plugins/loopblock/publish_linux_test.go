package loopblock

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/mount/image"
	"github.com/volumekit/volumekit/volume"
)

// A rename can fail and have had its effect: then the images belong to a snapshot that exists.
func TestARenameThatFailsDeletesNoImageOfASnapshot(t *testing.T) {
	for name, hadEffect := range map[string]bool{"with effect": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			path := t.TempDir()
			dir, err := image.OpenDir(path)
			require.NoError(t, err)
			defer dir.Close()
			lock, err := dir.Begin("s" + lockSuffix)
			require.NoError(t, err)
			defer lock.Close()
			made := filepath.Join(path, snapshotImageName("s", 0, "ID"))
			require.NoError(t, os.WriteFile(made, nil, 0o600))
			if hadEffect {
				require.NoError(t, dir.Publish("s"+lockSuffix, "s"+recordSuffix))
			}
			failed := errors.New("input/output error")
			err = (&snapshotCreation{name: "s"}).afterFailedPublish(dir, lock, failed)
			require.ErrorIs(t, err, failed)
			assert.Equal(t, hadEffect, errors.Is(err, volume.ErrUncertain))
			if hadEffect {
				assert.FileExists(t, made)
			} else {
				assert.NoFileExists(t, made)
			}
		})
	}
}
