// Package releasetest keeps what released versions have written on disk, and has tests read it. It is for tests alone.
//
// A package whose files outlive a version has one test with the name TestWhatReleasesHaveWritten, which calls [Check]. When a
// release is made, with VOLUMEKIT_RELEASE in the environment, that test leaves what its version writes in
// testdata/released/VERSION of its package. From then on it reads that too.
package releasetest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// environment names the version that is being released.
const environment = "VOLUMEKIT_RELEASE"

// Check has write fill a directory, and read look whether all of it is understood: of the directory of this version, and of a copy
// of each that a release has left. read may change its directory.
func Check(t *testing.T, write, read func(t *testing.T, dir string)) {
	t.Helper()
	now := t.TempDir()
	write(t, now)
	if version := os.Getenv(environment); version != "" {
		copyFiles(t, now, filepath.Join("testdata", "released", version))
	}
	earlier, err := filepath.Glob("testdata/released/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range earlier {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			copied := t.TempDir()
			copyFiles(t, dir, copied)
			read(t, copied)
		})
	}
	t.Run("now", func(t *testing.T) { read(t, now) })
}

// copyFiles copies the files that are not empty, with modes that other users cannot read: a lock is made again.
func copyFiles(t *testing.T, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		below, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(filepath.Clean(name))
		if err != nil || len(data) == 0 {
			return err
		}
		copied := filepath.Join(to, below)
		return errors.Join(os.MkdirAll(filepath.Dir(copied), 0o700), os.WriteFile(copied, data, 0o600))
	})
	if err != nil {
		t.Fatal(err)
	}
}
