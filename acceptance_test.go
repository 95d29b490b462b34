package volumekit_test

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// named is a test that a page names, with its package.
var named = regexp.MustCompile("`([a-z/]+)\\.(Test\\w+)`")

// TestEveryTestThatTheAcceptancePageNamesIsThere, and every line of its lists is there with a test.
func TestEveryTestThatTheAcceptancePageNamesIsThere(t *testing.T) {
	page := pageWithTests(t, "acceptance.md")
	rows := map[string]int{}
	for _, row := range regexp.MustCompile(`(?m)^\| ([AMNKCXUSTVDPIOZR])\d+ \|.*$`).FindAllStringSubmatch(page, -1) {
		rows[row[1]]++
		assert.Regexp(t, named, row[0], "a line without a test")
	}
	assert.Equal(t, map[string]int{"A": 18, "M": 15, "N": 29, "K": 37, "C": 41, "U": 11, "S": 8, "T": 4, "V": 16, "X": 46, "D": 31, "P": 17, "I": 8, "O": 12, "Z": 10, "R": 6}, rows)
}

// TestEveryPromiseToPluginsIsHeldByATest; what plugins promise is held by package volumetest.
func TestEveryPromiseToPluginsIsHeldByATest(t *testing.T) {
	page := pageWithTests(t, "contract.md")
	rows := regexp.MustCompile(`(?m)^\| G\d+ \|.*$`).FindAllString(page, -1)
	assert.Len(t, rows, 13)
	for _, row := range rows {
		assert.Regexp(t, named, row, "a line without a test")
	}
}

// TestEveryCaseThatThePageOfClaimsNumbersIsThere, in the test that the letter stands for.
func TestEveryCaseThatThePageOfClaimsNumbersIsThere(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("docs", "persistent-volumes.md"))
	require.NoError(t, err)
	sources := sourceOfTests(t, "controller/persistentvolume")
	maps.Copy(sources, sourceOfTests(t, "controller/persistentvolume/internal/*"))
	maps.Copy(sources, sourceOfTests(t, "controller/internal/*"))
	numbers := regexp.MustCompile(`\b([UBV])(\d+)\b`).FindAllStringSubmatch(string(page), -1)
	assert.Greater(t, len(numbers), 50)
	for _, n := range numbers {
		name := map[string]string{"U": "TestUnboundClaim", "B": "TestBoundClaim", "V": "TestVolume"}[n[1]]
		assert.Regexp(t, `"`+n[2]+` `, sources[name], "%s has no case %s", name, n[2])
	}
	for _, test := range regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(string(page), -1) {
		assert.Contains(t, sources, test[1])
	}
}

// TestEveryRowThatThePageOfSchedulingNumbersIsThere, in one of the tests that it names.
func TestEveryRowThatThePageOfSchedulingNumbersIsThere(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("docs", "scheduling.md"))
	require.NoError(t, err)
	sources := sourceOfTests(t, "controller/scheduling")
	whole := strings.Join(slices.Collect(maps.Values(sources)), "")
	rows := regexp.MustCompile(`(?m)^\| (\d+a?) \|`).FindAllStringSubmatch(string(page), -1)
	assert.Len(t, rows, 72, "73 rows and two of attributes, less three that do not apply")
	for _, row := range rows {
		if row[1] != "42" { // a test of its own
			assert.Regexp(t, `"`+row[1]+` `, whole)
		}
	}
	for _, test := range regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(string(page), -1) {
		assert.Contains(t, sources, test[1])
	}
}

// TestEveryRowThatThePageOfSnapshotsNumbersIsThere, in one of the tests that it names, and the reverse.
func TestEveryRowThatThePageOfSnapshotsNumbersIsThere(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("docs", "snapshots.md"))
	require.NoError(t, err)
	sources := sourceOfTests(t, "controller/snapshot")
	whole := strings.Join(slices.Collect(maps.Values(sources)), "")
	rows := regexp.MustCompile(`(?m)^\| (\d+) \| ([^|]*) \|`).FindAllStringSubmatch(string(page), -1)
	for _, row := range rows {
		assert.Contains(t, whole, `"`+row[1]+" "+row[2]+`"`)
	}
	assert.Len(t, regexp.MustCompile(`\{"\d+ `).FindAllString(whole, -1), len(rows))
	maps.Copy(sources, sourceOfTests(t, "bridge/kube/snapshottest"))
	for _, test := range regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(string(page), -1) {
		assert.Contains(t, sources, test[1])
	}
}

// sourceOfTests returns the source of the tests in a directory, by name.
func sourceOfTests(t *testing.T, dir string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	require.NoError(t, err)
	sources := map[string]string{}
	for _, file := range files {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, test := range regexp.MustCompile(`(?ms)^func (Test\w+)\(.*?^}$`).FindAllStringSubmatch(string(source), -1) {
			sources[test[1]] = test[0]
		}
	}
	return sources
}

// pageWithTests returns a page, all tests of which are there.
func pageWithTests(t *testing.T, name string) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("docs", name))
	require.NoError(t, err)
	tests := map[string]map[string]bool{} // by directory
	for _, match := range named.FindAllStringSubmatch(string(page), -1) {
		dir, name := match[1], match[2]
		if tests[dir] == nil {
			tests[dir] = testsIn(t, dir)
		}
		assert.True(t, tests[dir][name], "%s has no %s", dir, name)
	}
	assert.Empty(t, regexp.MustCompile("`Test\\w*").FindAllString(string(page), -1), "a test is named with its package")
	return string(page)
}

// TestEveryPluginRunsTheSuite, on this machine and not only in the guest.
func TestEveryPluginRunsTheSuite(t *testing.T) {
	plugins, err := filepath.Glob("plugins/*")
	require.NoError(t, err)
	require.NotEmpty(t, plugins)
	for _, plugin := range plugins {
		files, err := filepath.Glob(filepath.Join(plugin, "*_test.go"))
		require.NoError(t, err)
		runs := slices.ContainsFunc(files, func(file string) bool {
			source := content(t, file)
			return strings.Contains(source, "volumetest.Run(") && !strings.HasPrefix(source, "//go:build ")
		})
		assert.True(t, runs, "%s has no conformance test", plugin)
	}
}

// testsIn returns the names of the tests in a directory, or in this one, which is volumekit, on whatever platform they run.
func testsIn(t *testing.T, dir string) map[string]bool {
	t.Helper()
	if dir == "volumekit" {
		dir = "."
	}
	files, err := filepath.Glob(filepath.Join(filepath.FromSlash(dir), "*_test.go"))
	require.NoError(t, err)
	require.NotEmpty(t, files, "%s has no tests", dir)
	names := map[string]bool{}
	for _, file := range files {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, match := range regexp.MustCompile(`(?m)^func (Test\w+)\(\w+ \*testing\.T\)`).FindAllStringSubmatch(string(source), -1) {
			names[match[1]] = true
		}
	}
	return names
}

// TestEveryTestThatThePageOfSituationsNamesIsThere, with the case that stands behind a slash, and every situation has a test.
func TestEveryTestThatThePageOfSituationsNamesIsThere(t *testing.T) {
	page := content(t, filepath.Join("docs", "kubernetes.md"))
	tables := regexp.MustCompile(`(?m)^\| situation \|`).FindAllString(page, -1)
	assert.Len(t, tables, 7)
	withCase := regexp.MustCompile("`([a-z/]+)\\.(Test\\w+)(?:/([^`]+))?`")
	sources := map[string]map[string]string{} // by directory and test
	situations := 0
	for _, row := range regexp.MustCompile(`(?m)^\| .*$`).FindAllString(page, -1) {
		if strings.HasPrefix(row, "| situation |") || strings.HasPrefix(row, "| --- |") {
			continue
		}
		situations++
		held := withCase.FindAllStringSubmatch(row, -1)
		assert.NotEmpty(t, held, "a situation without a test: %s", row)
		assert.Len(t, held, strings.Count(row, ".Test"), row)
		for _, test := range held {
			dir, name, subtest := test[1], test[2], test[3]
			if sources[dir] == nil {
				sources[dir] = sourceOfTests(t, dir)
			}
			source, there := sources[dir][name]
			assert.True(t, there, "%s has no %s", dir, name)
			if subtest != "" {
				assert.Contains(t, source, `"`+subtest+`"`, "%s has no such case", name)
			}
		}
	}
	assert.Greater(t, situations, 80)
}
