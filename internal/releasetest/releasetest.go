// Package releasetest keeps the files that released versions have written, and checks that this version reads them. It is for tests
// only.
//
// A package whose files outlive a version has a test with the name TestWhatReleasesHaveWritten, which calls [Check]. At a release,
// VOLUMEKIT_RELEASE is set to the version. The test then stores the files that this version writes in testdata/released/VERSION of
// its package. From then on it reads those files, too.
package releasetest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// environment is the variable with the version of a release.
const environment = "VOLUMEKIT_RELEASE"

// Check calls write to fill a directory with the files of this version. Then it calls read for that directory, and for a copy of the
// files of each release. read must fail the test if it does not read everything that write writes. read may change its directory.
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

// copyFiles copies the files that are not empty, readable by this user only. Locks are empty files: a program makes them again.
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
