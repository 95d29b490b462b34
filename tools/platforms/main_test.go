package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A fault that only one platform compiles is found for that platform alone, in packages and in tests.
func TestAFaultOfOnePlatformIsFoundThere(t *testing.T) {
	for name, test := range map[string]struct{ file, source, finds string }{
		"a type":           {"a_windows.go", "func f() int { return \"\" }", "1 errors"},
		"a mistake":        {"a_windows.go", "func f() { fmt.Printf(\"%d\", \"\") }", "1 findings"},
		"a type in a test": {"a_windows_test.go", "func f() int { return \"\" }", "1 errors"},
		"a tag":            {"a_windows.go", "func f() int { return tagged }", "1 errors"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			source := "package a\n\nimport \"fmt\"\n\nvar _ = fmt.Sprint()\n\n" + test.source + "\n"
			for file, text := range map[string]string{
				"go.mod": "module example.com/a\n\ngo 1.25.0\n", "a.go": "package a\n", test.file: source,
				"b.go": "//go:build tag\n\npackage a\n\nconst tagged = \"\"\n",
			} {
				require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
			}
			var out strings.Builder
			require.ErrorContains(t, module{dir, "tag"}.check(&out, "windows/amd64"), test.finds)
			require.NoError(t, module{dir, "tag"}.check(&out, "linux/arm64"), out.String())
		})
	}
}
