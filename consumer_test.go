package volumekit_test

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestStrangerGetsTheModuleAndEmbedsTheManager does what an orchestrator's author does first: an empty folder, go get
// through a module proxy (a file tree made from this commit), and the program that the README shows.
func TestStrangerGetsTheModuleAndEmbedsTheManager(t *testing.T) {
	const version = "v0.0.1-commit"
	proxy := fileTreeProxy(t, version)
	dir := t.TempDir()
	program := readmeProgram(t)
	require.LessOrEqual(t, strings.Count(program, "\n"), 50, "the README's program must stay short")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o600))

	run := strangersGo(t, dir, proxy)
	run("mod", "init", "example.com/stranger")
	run("get", module+"@"+version)
	run("get", "example.com/stranger")
	run("build", "-o", "agent", ".")

	agent := exec.CommandContext(t.Context(), filepath.Join(dir, "agent"), t.TempDir())
	out, err := agent.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "scratch is at ")
}

// fileTreeProxy makes a module proxy, as `go help goproxy` describes its files, that holds the files of this checkout
// that git knows.
func fileTreeProxy(t *testing.T, version string) string {
	t.Helper()
	root := t.TempDir()
	dir := filepath.Join(root, module, "@v")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	gomod, err := os.ReadFile("go.mod")
	require.NoError(t, err)
	info, err := json.Marshal(map[string]string{"Version": version, "Time": "2026-01-01T00:00:00Z"})
	require.NoError(t, err)
	for name, data := range map[string][]byte{
		"list":            []byte(version + "\n"),
		version + ".info": info,
		version + ".mod":  gomod,
		version + ".zip":  moduleZip(t, version),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	return root
}

func moduleZip(t *testing.T, version string) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := zip.NewWriter(&buf)
	for _, name := range moduleFiles(t) {
		data, err := os.ReadFile(name)
		require.NoError(t, err)
		f, err := w.Create(fmt.Sprintf("%s@%s/%s", module, version, name))
		require.NoError(t, err)
		_, err = f.Write(data)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return buf.Bytes()
}

// moduleFiles returns the files of the root module: those of nested modules belong to others.
func moduleFiles(t *testing.T) []string {
	t.Helper()
	git := exec.CommandContext(t.Context(), "git", "ls-files", "-z")
	var said bytes.Buffer
	git.Stderr = &said
	out, err := git.Output()
	if err != nil {
		skipOrFail(t, fmt.Sprintf("a git checkout, which says what files belong to the module: %v: %s", err, &said))
	}
	tracked := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	var nested []string
	for _, name := range tracked {
		if dir, ok := strings.CutSuffix(name, "/go.mod"); ok {
			nested = append(nested, dir+"/")
		}
	}
	var files []string
	for _, name := range tracked {
		if !inAny(nested, name) {
			files = append(files, name)
		}
	}
	return files
}

func inAny(dirs []string, name string) bool {
	for _, dir := range dirs {
		if strings.HasPrefix(name, dir) {
			return true
		}
	}
	return false
}

// strangersGo runs the go command in dir, as in a checkout of its own.
func strangersGo(t *testing.T, dir, proxy string) func(args ...string) {
	t.Helper()
	environment := strangersEnv(t, proxy)
	return func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Dir, cmd.Env = dir, environment
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "go %s: %s", strings.Join(args, " "), out)
	}
}

// strangersEnv is the environment of the go command of a user who gets our module from the file tree, and every other one
// from this machine's module cache. That lacks what only the tests of other modules need, until go mod tidy was run
// here: it comes from this user's proxy. What is compiled bears no path, so that the next run finds it in the build cache.
func strangersEnv(t *testing.T, proxy string) []string {
	t.Helper()
	cache := goOutput(t, "env", "GOMODCACHE")[0]
	others := goOutput(t, "env", "GOPROXY")[0]
	own := t.TempDir()
	t.Cleanup(func() {
		clean := exec.Command("go", "clean", "-modcache") // its files are read-only
		clean.Env = append(os.Environ(), "GOMODCACHE="+own)
		require.NoError(t, clean.Run())
	})
	return append(os.Environ(),
		"GOPROXY=file://"+proxy+",file://"+filepath.Join(cache, "cache", "download")+","+others,
		"GOMODCACHE="+own, "GONOSUMDB=*", "GOFLAGS="+goOutput(t, "env", "GOFLAGS")[0]+" -mod=mod -trimpath", "GOWORK=off")
}

func goOutput(t *testing.T, args ...string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", args...).Output()
	require.NoError(t, err)
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// readmeProgram returns the first Go program of the README.
func readmeProgram(t *testing.T) string {
	t.Helper()
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(readme), "```go\n")
	require.True(t, ok, "the README shows no Go program")
	program, _, ok := strings.Cut(rest, "```")
	require.True(t, ok)
	return program
}

// skipOrFail skips for want of something that only CI must have.
func skipOrFail(t *testing.T, missing string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal("missing: " + missing)
	}
	t.Skip("missing: " + missing)
}
