package volumekit_test

import (
	"go/build/constraint"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEveryBuildTagIsVetted holds that test.sh and the linters vet the tests that ordinary runs do not compile, in nested modules too.
func TestEveryBuildTagIsVetted(t *testing.T) {
	ours := make(map[string]bool)
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, tag := range tagsOf(t, string(source)) {
			ours[tag] = true
		}
		return nil
	}))
	require.NotEmpty(t, ours)
	wanted := slices.Sorted(maps.Keys(ours))
	for file, list := range map[string]string{"test.sh": `(?m)^tags=(.*)$`, ".golangci.yml": `(?m)^  build-tags: \[(.*?)\]`} {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		found := regexp.MustCompile(list).FindSubmatch(source)
		require.NotNil(t, found, "%s has no list of build tags", file)
		require.Equal(t, wanted, strings.FieldsFunc(string(found[1]), func(r rune) bool { return r == ',' || r == ' ' }), file)
	}
}

// tagsOf returns the tags of a file that no platform and no flag of the go command sets.
func tagsOf(t *testing.T, source string) []string {
	t.Helper()
	known := []string{"linux", "darwin", "windows", "unix", "race", "amd64", "arm64", runtime.Compiler, "cgo"}
	var tags []string
	for line := range strings.Lines(source) {
		if strings.HasPrefix(line, "package ") {
			break
		}
		if !constraint.IsGoBuild(line) {
			continue
		}
		expression, err := constraint.Parse(strings.TrimSpace(line))
		require.NoError(t, err)
		expression.Eval(func(tag string) bool {
			if !slices.Contains(known, tag) {
				tags = append(tags, tag)
			}
			return true
		})
	}
	return tags
}
