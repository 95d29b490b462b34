package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/tools/internal/modules"
)

// repository has two modules that are released, of which one requires the other, and one that is not.
type repository struct {
	*testing.T
	dir string
}

func newRepository(t *testing.T) repository {
	t.Helper()
	r := repository{T: t, dir: t.TempDir()}
	t.Setenv("TMPDIR", t.TempDir())
	r.write("go.mod", "module example.com/kit\n\ngo 1.25.0\n")
	r.write("kit.go", "// Package kit is a library.\npackage kit\n\n// Name names.\nfunc Name() string { return \"kit\" }\n\n// Old is old.\nfunc Old() {}\n")
	r.write("README.md", "# Kit\n\n```go\npackage main\n\nimport \"example.com/kit\"\n\nfunc main() { println(kit.Name()) }\n```\n")
	r.write("LICENSE", "Anybody may do anything.\n")
	r.write("CHANGELOG.md", "# Changelog\n\n## [Unreleased]\n\nNothing is released yet.\n\n### Added\n\n- Everything.\n")
	r.write("bridge/go.mod", "module example.com/kit/bridge\n\ngo 1.25.0\n\nrequire example.com/kit v0.0.0\n\nreplace example.com/kit => ../\n")
	r.write("bridge/bridge.go", "// Package bridge uses kit.\npackage bridge\n\nimport \"example.com/kit\"\n\n// Name names.\nvar Name = kit.Name()\n")
	r.write("bridge/serve/main.go", "package main\n\nimport \"example.com/kit/bridge\"\n\nfunc main() { println(bridge.Name) }\n")
	r.write("records_test.go", `package kit

import (
	"os"
	"testing"
)

func TestWhatReleasesHaveWritten(t *testing.T) {
	if wd, err := os.Getwd(); err != nil || wd != os.Getenv("VOLUMEKIT_MOUNTTEST_WRITABLE") {
		t.Fatal(wd, "may not be written by tests that mount", err)
	}
	dir := "testdata/released/" + os.Getenv("VOLUMEKIT_RELEASE")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/record", []byte("written"), 0o600); err != nil {
		t.Fatal(err)
	}
}
`)
	r.write("tools/go.mod", "module example.com/kit/tools // not released: a tool\n\ngo 1.25.0\n")
	r.git("init", "--quiet", "--initial-branch=main")
	r.git("config", "user.name", "Somebody")
	r.git("config", "user.email", "somebody@example.com")
	r.commit("everything")
	return r
}

func (r repository) write(name, text string) {
	r.Helper()
	path := filepath.Join(r.dir, filepath.FromSlash(name))
	require.NoError(r, os.MkdirAll(filepath.Dir(path), 0o750))
	require.NoError(r, os.WriteFile(path, []byte(text), 0o600))
}

func (r repository) replace(name, old, text string) {
	r.Helper()
	data, err := os.ReadFile(filepath.Join(r.dir, name))
	require.NoError(r, err)
	require.Contains(r, string(data), old)
	r.write(name, strings.Replace(string(data), old, text, 1))
}

func (r repository) git(args ...string) string {
	r.Helper()
	out, err := output(r.Context(), r.dir, nil, "git", args...)
	require.NoError(r, err)
	return strings.TrimSpace(out)
}

func (r repository) commit(message string) {
	r.Helper()
	r.git("add", "--all")
	r.git("commit", "--quiet", "-m", message)
}

func (r repository) release(ctx context.Context, version string) (string, error) {
	made, err := begin(ctx, r.dir, version)
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	made.out = &out
	err = made.end(ctx, made.do(ctx))
	return out.String(), err
}

// requireNothingLeft looks for what a release makes on its way.
func (r repository) requireNothingLeft() {
	r.Helper()
	left, err := filepath.Glob(filepath.Join(os.TempDir(), "release-*"))
	require.NoError(r, err)
	require.Empty(r, left)
}

func TestAReleaseIsMadeBesideTheRepository(t *testing.T) {
	r := newRepository(t)
	head := r.git("rev-parse", "HEAD")
	told, err := r.release(t.Context(), "v0.1.0")
	require.NoError(t, err)
	r.requireNothingLeft()
	assert.Equal(t, head, r.git("rev-parse", "HEAD"))
	assert.Empty(t, r.git("status", "--porcelain"))
	assert.Empty(t, r.git("tag"))

	assert.Equal(t, head, r.git("rev-parse", "release-v0.1.0~2"), "two commits")
	assert.Equal(t, r.git("rev-parse", "main:bridge/go.mod"), r.git("rev-parse", "release-v0.1.0~1:bridge/go.mod"), "the first changes no module")
	notes := r.git("show", "release-v0.1.0~1:CHANGELOG.md")
	assert.Contains(t, notes, "## [Unreleased]\n\n## [0.1.0] - ")
	assert.Contains(t, notes, "\n### Added\n\n- Everything.")
	assert.NotContains(t, notes, "Nothing is released")
	list := r.git("show", "release-v0.1.0~1:api/v0.1.0.txt")
	assert.Contains(t, list, ".: func Name() string\n")
	assert.Contains(t, list, "bridge: var Name string")

	assert.Equal(t, "written", r.git("show", "release-v0.1.0~1:testdata/released/v0.1.0/record"))

	gomod := r.git("show", "release-v0.1.0:bridge/go.mod")
	assert.Contains(t, gomod, "require example.com/kit v0.1.0")
	assert.NotContains(t, gomod, "replace")
	assert.Contains(t, r.git("show", "release-v0.1.0:bridge/go.sum"), "example.com/kit v0.1.0 h1:")
	assert.Less(t, strings.Index(told, "git push origin v0.1.0\n"), strings.Index(told, "git push origin bridge/v0.1.0\n"), "first what is required")
	assert.NotContains(t, told, "tools")
}

func TestTheSecondReleaseIsHeldAgainstTheFirst(t *testing.T) {
	r := newRepository(t)
	_, err := r.release(t.Context(), "v0.1.0")
	require.NoError(t, err)
	r.git("merge", "--quiet", "--ff-only", "release-v0.1.0~1")
	r.git("tag", "v0.1.0", "release-v0.1.0")
	_, err = r.release(t.Context(), "v0.1.0")
	require.ErrorIs(t, err, errVersion)

	r.replace("kit.go", "\n// Old is old.\nfunc Old() {}\n", "")
	r.replace("CHANGELOG.md", "## [Unreleased]\n", "## [Unreleased]\n\n### Removed\n\n- Old.\n")
	r.commit("old goes")
	_, err = r.release(t.Context(), "v0.2.0")
	require.ErrorContains(t, err, ".: func Old()")
	r.requireNothingLeft()

	r.write("api/except.txt", "# said in the changelog\n.: func Old()\n")
	r.commit("old may go")
	_, err = r.release(t.Context(), "v0.2.0")
	require.NoError(t, err)
	notes := r.git("show", "release-v0.2.0:CHANGELOG.md")
	assert.Less(t, strings.Index(notes, "## [0.2.0]"), strings.Index(notes, "- Old."))
	assert.Less(t, strings.Index(notes, "- Old."), strings.Index(notes, "## [0.1.0]"))
}

func TestWhatCannotBeReleasedSaysWhy(t *testing.T) {
	for name, test := range map[string]struct {
		change func(r repository)
		says   string
	}{
		"a change that is not committed": {func(r repository) { r.write("more.go", "package kit\n") }, "more.go"},
		"no changes are told":            {func(r repository) { r.write("CHANGELOG.md", "# Changelog\n\n## [Unreleased]\n"); r.commit("x") }, "say what changed for users"},
		"a replacement that users miss": {func(r repository) {
			r.write("fork/go.mod", "module example.com/other // not released: a fork\n\ngo 1.25.0\n")
			r.write("fork/other.go", "package other\n")
			r.replace("bridge/bridge.go", "import \"example.com/kit\"", "import (\n\t_ \"example.com/other\"\n\n\t\"example.com/kit\"\n)")
			r.replace("bridge/go.mod", "require example.com/kit v0.0.0", "require (\n\texample.com/kit v0.0.0\n\texample.com/other v0.0.0\n)\n\nreplace example.com/other => ../fork")
			r.commit("x")
		}, "its users miss the replacement of example.com/other"},
		"a file that is not committed": {func(r repository) {
			r.write(".gitignore", "made.go\n")
			r.write("made.go", "package kit\n\n// Made is made.\nconst Made = 1\n")
			r.replace("kit.go", "func Old() {}", "func Old() { _ = Made }")
			r.commit("x")
		}, "Made"},
		"a README that does not compile": {func(r repository) { r.replace("README.md", "kit.Name", "kit.Nomen"); r.commit("x") }, "kit.Nomen"},
		"a README that fails":            {func(r repository) { r.replace("README.md", "println(kit.Name())", "panic(kit.Name())"); r.commit("x") }, "panic: kit"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRepository(t)
			test.change(r)
			_, err := r.release(t.Context(), "v0.1.0")
			require.ErrorContains(t, err, test.says)
			r.requireNothingLeft()
			assert.Empty(t, r.git("branch", "--list", "release-*"))
		})
	}
	for _, version := range []string{"0.1.0", "v0.1", "v0.1.0+meta", "v2.0.0", "", "--help"} {
		_, err := newRepository(t).release(t.Context(), version)
		require.ErrorIs(t, err, errVersion, version)
	}
}

func TestModulesThatRequireEachOtherAreNotOrdered(t *testing.T) {
	r := newRepository(t)
	r.write("go.mod", "module example.com/kit\n\ngo 1.25.0\n\nrequire example.com/kit/bridge v0.0.0\n\nreplace example.com/kit/bridge => ./bridge\n")
	_, err := modules.Released(r.dir)
	require.ErrorContains(t, err, "in a circle")
}
