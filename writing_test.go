package volumekit_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fence is a block of code of a page: what it is, perhaps a file's name, and the code.
var fence = regexp.MustCompile("(?ms)^```(go|sh|text)(?: (\\S+))?\n(.*?)^```$")

// TestEachStepOfTheGuidesWorks follows pages of docs from an empty folder, with this commit from a module proxy: it writes
// the files, runs the commands, and compares what they print.
func TestEachStepOfTheGuidesWorks(t *testing.T) {
	environment := strangersEnv(t, fileTreeProxy(t, "v0.0.1-commit"))
	t.Run("writing a plugin", func(t *testing.T) {
		dir := t.TempDir()
		follow(t, "docs/writing-a-plugin.md", dir, environment)
		for _, name := range []string{"plugin.go", "plugin_test.go"} {
			require.Equal(t, content(t, filepath.Join("examples/plugin", name)), content(t, filepath.Join(dir, name)),
				"examples/plugin is what the page builds")
		}
	})
	t.Run("embedding", func(t *testing.T) { follow(t, "docs/embedding.md", t.TempDir(), environment) })
}

// TestEveryDecisionIsListed: the index of decisions names each by its title.
func TestEveryDecisionIsListed(t *testing.T) {
	files, err := filepath.Glob("docs/decisions/0*.md")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	listed := strings.Split(content(t, "docs/decisions/README.md"), "\n")
	for _, file := range files {
		number, title, ok := strings.Cut(strings.SplitN(content(t, file), "\n", 2)[0], ": ")
		require.True(t, ok && number == "# "+filepath.Base(file)[:4], "%s begins with its number, a colon and its title", file)
		line := "- [" + filepath.Base(file)[:4] + "](" + filepath.Base(file) + "): " + title
		assert.True(t, slices.Contains(listed, line), "docs/decisions/README.md lacks the line %q", line)
	}
}

// TestEveryFeatureOfTheKernelIsOnThePage: docs/operating.md says what happens without each.
func TestEveryFeatureOfTheKernelIsOnThePage(t *testing.T) {
	page := content(t, "docs/operating.md")
	features := regexp.MustCompile(`(?m)^\t(Feature\w+)`).FindAllStringSubmatch(content(t, "mount/options.go"), -1)
	require.Greater(t, len(features), 5)
	for _, feature := range features {
		assert.Contains(t, page, "`"+feature[1]+"`")
	}
}

// TestAPluginAndItsTestAreShort: what a newcomer writes, and what the plugins that they copy from are.
func TestAPluginAndItsTestAreShort(t *testing.T) {
	lines := func(name string) int { return strings.Count(content(t, name), "\n") }
	assert.Less(t, lines("examples/plugin/plugin.go"), 100)
	assert.Less(t, lines("examples/plugin/plugin_test.go"), 20)
	files, err := filepath.Glob("plugins/*/*.go")
	require.NoError(t, err)
	whole := map[string]int{}
	for _, file := range files {
		if !strings.HasSuffix(file, "_test.go") {
			assert.LessOrEqual(t, lines(file), 300, file)
			whole[filepath.Dir(file)] += lines(file)
		}
	}
	require.Len(t, whole, 6)
	for plugin, n := range whole {
		if plugin != "plugins/loopblock" { // the one that does everything
			assert.LessOrEqual(t, n, 1200, plugin)
		}
	}
}

// follow does in dir what a page says.
func follow(t *testing.T, page, dir string, environment []string) {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	printed := ""
	for _, block := range fence.FindAllStringSubmatch(string(text), -1) {
		kind, name, text := block[1], block[2], block[3]
		switch {
		case kind == "sh":
			printed = shell(t, dir, environment, text)
		case kind == "text":
			requirePrinted(t, text, printed)
		case name != "":
			appendTo(t, filepath.Join(dir, name), text)
		}
	}
}

func shell(t *testing.T, dir string, environment []string, script string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "-euc", script)
	cmd.Dir, cmd.Env = dir, environment
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s: %s", script, out)
	return string(out)
}

// requirePrinted fails unless each line was printed, where three dots stand for anything and blanks are all alike.
func requirePrinted(t *testing.T, lines, printed string) {
	t.Helper()
	for line := range strings.Lines(lines) {
		words := strings.Fields(strings.ReplaceAll(line, "...", " ... "))
		for i, word := range words {
			words[i] = regexp.QuoteMeta(word)
			if word == "..." {
				words[i] = ".*"
			}
		}
		require.Regexp(t, `(?m)^\s*`+strings.Join(words, `\s*`)+`\s*$`, printed)
	}
}

// appendTo puts a part of a file behind the one before it, with an empty line between them.
func appendTo(t *testing.T, name, text string) {
	t.Helper()
	before, err := os.ReadFile(name)
	if err == nil {
		text = string(before) + "\n" + text
	}
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
}

func content(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(data)
}
