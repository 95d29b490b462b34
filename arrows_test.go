package volumekit_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/volumekit/volumekit"

// pv is where the packages of the persistent volume controller are.
const pv = "controller/persistentvolume/internal/"

// vm is where the packages of the volume manager are.
const vm = "volumemanager/internal/"

// arrows says which of our packages each package may import, as docs/architecture.md draws it. A name that ends in /...
// means all packages below it. Each package under internal/ is a leaf of its own, and is listed where it may be used.
var arrows = map[string][]string{
	"":                            nil,
	"volume":                      {"volume/usage", "internal/outcome"},
	"volume/atomicwriter":         {"internal/outcome"},
	"volume/ownership":            {"internal/outcome", "internal/treewalk"},
	"volume/usage":                {"internal/outcome", "internal/abandonable", "internal/treewalk"},
	"mount":                       {"internal/outcome", "internal/abandonable", "internal/descriptor"},
	"mount/blockmap":              {"mount", "mount/loop", "internal/descriptor"},
	"mount/format":                {"mount", "internal/outcome", "internal/abandonable", "internal/descriptor"},
	"mount/freeze":                {"mount", "internal/descriptor"},
	"mount/image":                 {"mount", "internal/descriptor"},
	"mount/loop":                  {"mount", "internal/outcome", "internal/abandonable", "internal/descriptor"},
	"mount/mounttest":             {"mount", "internal/leak"},
	"mount/owned":                 {"mount", "mount/safepath"},
	"mount/safepath":              {"mount", "internal/abandonable", "internal/descriptor", "internal/outcome"},
	"fake":                        {"volume", "mount", "mount/safepath", "volume/atomicwriter"},
	"volume/volumetest":           {"volume", "mount", "fake"},
	"plugins/...":                 {"volume", "mount", "mount/format", "mount/freeze", "mount/image", "mount/loop", "mount/owned", "mount/safepath", "volume/usage", "volume/atomicwriter", "volume/ownership"},
	"operationexecutor":           {"volume", "internal/..."},
	"cache":                       {"volume", "operationexecutor", "internal/rows"},
	"internal/cluster":            {"volume", "operationexecutor", "internal/rows"},
	"internal/cachetest":          {"volume"},
	"internal/crashstore":         {"store"},
	"store":                       {"internal/..."},
	"store/storetest":             {"store"},
	"volumemanager":               {"volume", "mount", "mount/blockmap", "mount/loop", "mount/owned", "mount/safepath", "operationexecutor", "cache", "store", "internal/...", vm + "..."},
	"controller/internal/objects": {"store"},
	"controller/internal/call":    {"volume", "operationexecutor", "internal/abandonable", "internal/outcome"},
	"controller/internal/work":    {"store", "internal/backoff", "internal/outcome", "internal/workqueue"},
	"controller/internal/fit":     {"controller/internal/objects", "volume"},
	"controller/scheduling":       {"controller/internal/fit", "controller/internal/objects", "volume", "store"},
	"controller/persistentvolume": {"volume", "operationexecutor", "store", "internal/...", "controller/internal/...", "controller/persistentvolume/internal/..."},
	"controller/capacity":         {"controller/internal/objects", "volume", "store", "internal/..."},
	"controller/leader":           {"store", "volume"},
	"controller/expand":           {"volume", "operationexecutor", "store", "internal/..."},
	"controller/attachdetach":     {"volume", "operationexecutor", "internal/cluster", "store", "internal/..."},
	"internal/...":                {"internal/..."},
	"bridge/inspect":              {"volume", "operationexecutor", "volumemanager", "controller/attachdetach", "controller/persistentvolume"},
	"bridge/docker/dockerserver":  {"volume", "mount", "mount/loop", "volumemanager", "operationexecutor", "store", "bridge/docker/internal/protocol", "internal/abandonable", "internal/outcome", "internal/record", "internal/unixsocket"},
	"bridge/docker/dockerdriver":  {"volume", "mount", "mount/safepath", "volume/ownership", "bridge/docker/internal/protocol"},
	"bridge/docker/internal/...":  nil,
	"examples/...":                {"..."},

	pv + "populate":  {"controller/internal/...", "volume", "operationexecutor", "internal/outcome"},
	pv + "match":     {"controller/internal/...", "volume", "store", "internal/ordered"},
	pv + "bind":      {"controller/internal/...", "volume", "store"},
	pv + "inuse":     {"controller/internal/...", "volume", "store"},
	pv + "storage":   {"controller/internal/...", "volume", "operationexecutor", "store"},
	pv + "ephemeral": {"controller/internal/...", "volume", "operationexecutor", "store"},
	pv + "reclaim":   {"controller/internal/...", pv + "bind", pv + "inuse", pv + "storage", "volume", "operationexecutor", "store"},

	vm + "podvolume":   {"volume"},
	vm + "keylock":     nil,
	vm + "rootlock":    {vm + "keylock", "volume", "internal/abandonable", "internal/outcome", "internal/record"},
	vm + "sentinel":    {"volume", "mount", "mount/loop", "mount/safepath"},
	vm + "changes":     {"volume", "internal/workqueue"},
	vm + "mounter":     {"volume"},
	vm + "health":      {vm + "podvolume", "volume", "operationexecutor"},
	vm + "stats":       {vm + "changes", vm + "health", vm + "mounter", vm + "podvolume", "volume", "mount", "operationexecutor", "cache", "internal/abandonable", "internal/outcome", "internal/workqueue"},
	vm + "expansion":   {"volume", "operationexecutor", "cache", "store"},
	vm + "nodestatus":  {vm + "retry", "volume", "operationexecutor", "cache", "store", "internal/workqueue"},
	vm + "populator":   {vm + "containers", vm + "expansion", vm + "keylock", vm + "podvolume", vm + "retry", "volume", "operationexecutor", "cache", "store", "internal/workqueue"},
	vm + "paths":       nil,
	vm + "retry":       nil,
	vm + "pluginpaths": {"volume"},
	vm + "journal":     {vm + "containers", vm + "keylock", vm + "mountwatch", vm + "paths", vm + "podvolume", vm + "retry", vm + "rootlock", "volume", "mount", "mount/loop", "operationexecutor", "internal/record", "internal/workqueue"},
	vm + "recovery":    {vm + "journal", vm + "mounter", vm + "mountwatch", vm + "orphans", vm + "paths", vm + "pluginpaths", vm + "podvolume", vm + "retry", "volume", "mount", "mount/owned", "operationexecutor", "cache", "internal/record"},
	vm + "mountwatch":  {vm + "health", vm + "paths", vm + "podvolume", vm + "retry", "volume", "mount", "mount/owned", "mount/safepath", "operationexecutor", "internal/workqueue"},
	vm + "orphans":     {vm + "changes", vm + "containers", vm + "paths", vm + "pluginpaths", "volume", "mount", "mount/loop", "mount/owned", "mount/safepath", "operationexecutor"},
	vm + "containers":  {vm + "keylock", vm + "sentinel", "volume", "mount", "mount/blockmap", "mount/safepath", "operationexecutor"},
	vm + "reconciler":  {vm + "changes", vm + "podvolume", vm + "retry", "volume", "operationexecutor", "cache"},

	vm + "world":          {"volume", "operationexecutor", "internal/simulation"},
	vm + "simulationtest": {vm + "world", "volume", "operationexecutor", "internal/cluster", "internal/simulation"},
}

// testArrows says what the tests of a package may import beside what the package itself may.
var testArrows = []string{
	"fake", "mount", "mount/mounttest", "volume", "volume/volumetest", "store/storetest", "internal/...",
}

func TestArrowsBetweenPackagesAreThoseOfTheDesign(t *testing.T) {
	for _, p := range packages(t, `{{join .Imports ","}}`) {
		name, imports := p[0], p[1]
		allowed, ok := allowedImports(name)
		if !ok {
			t.Errorf("package %q is not in the table of arrows: draw it in docs/architecture.md first", name)
			continue
		}
		for _, imported := range ours(imports) {
			if !matches(allowed, imported) {
				t.Errorf("%q must not import %q: no arrow is drawn", name, imported)
			}
		}
	}
}

// The simulation is for tests, and knows what it tests: nothing else may follow its arrows. Nor is the runner that makes
// system calls fail for anything else.
func TestOnlyTestsImportTheSimulation(t *testing.T) {
	forTests := []string{"internal/simulation", vm + "world", vm + "simulationtest", "internal/faultrun/..."}
	for _, p := range packages(t, `{{join .Imports ","}}`) {
		for _, imported := range ours(p[1]) {
			if matches(forTests, imported) && !matches(forTests, p[0]) {
				t.Errorf("%q imports %q outside its tests", p[0], imported)
			}
		}
	}
}

func TestTestsOfPluginsImportNoInternalPackage(t *testing.T) {
	for _, p := range packages(t, `{{join .TestImports ","}},{{join .XTestImports ","}}`) {
		name, imports := p[0], p[1]
		allowed, _ := allowedImports(name)
		for _, imported := range ours(imports) {
			own := imported == name
			plugin := strings.HasPrefix(name, "plugins/")
			// The records of our releases are not copied.
			if plugin && strings.HasPrefix(imported, "internal/") && imported != "internal/releasetest" {
				t.Errorf("tests of %q import %q: people copy plugins and cannot", name, imported)
			}
			leaf := name == "volume" || name == "mount"
			if leaf && !own && !matches(append(slices.Clone(allowed), testArrows...), imported) {
				t.Errorf("tests of %q import %q: a leaf must be testable by itself", name, imported)
			}
		}
	}
}

// The two leaves must not reach each other, and neither must reach what is above them, by any way.
func TestLeavesReachNothingAboveThem(t *testing.T) {
	for leaf, allowed := range map[string][]string{
		"volume": {"volume", "volume/usage", "internal/outcome", "internal/abandonable", "internal/descriptor", "internal/treewalk"},
		"mount":  {"mount", "internal/outcome", "internal/abandonable", "internal/descriptor"},
	} {
		for _, dep := range ours(strings.Join(goList(t, "-deps", "./"+leaf), ",")) {
			if !matches(allowed, dep) {
				t.Errorf("%q reaches %q", leaf, dep)
			}
		}
	}
}

func TestOnlyTestFilesImportTestifyAndFakesNeverTesting(t *testing.T) {
	for _, p := range packages(t, `{{join .Imports ","}}`) {
		name, imports := p[0], strings.Split(p[1], ",")
		for _, imported := range imports {
			if strings.HasPrefix(imported, "github.com/stretchr/testify") {
				t.Errorf("%q imports %s outside its tests", name, imported)
			}
			suite := strings.HasSuffix(name, "test")
			if imported == "testing" && !suite {
				t.Errorf("%q imports testing: a program could not use it", name)
			}
		}
	}
}

func TestRootModuleRequiresFourModulesDirectly(t *testing.T) {
	lines := goList(t, "-m", "-f", "{{if not (or .Indirect .Main)}}{{.Path}}{{end}}", "all")
	require.Equal(t, []string{
		"github.com/stretchr/testify", "golang.org/x/sys", "k8s.io/api", "k8s.io/apimachinery",
	}, slices.Sorted(slices.Values(strings.Fields(strings.Join(lines, " ")))))
}

// packages returns every package of this module by its name in it, with the imports that format asks for.
func packages(t *testing.T, format string) [][2]string {
	t.Helper()
	var rows [][2]string
	for _, line := range goList(t, "-f", "{{.ImportPath}} "+format, "./...") {
		path, imports, _ := strings.Cut(line, " ")
		rows = append(rows, [2]string{inModule(path), imports})
	}
	return rows
}

func goList(t *testing.T, args ...string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", append([]string{"list"}, args...)...).Output()
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	require.NotEmpty(t, lines[0])
	return lines
}

func inModule(path string) string { return strings.TrimPrefix(strings.TrimPrefix(path, module), "/") }

// ours returns the imports that are packages of this module, by their names in it.
func ours(imports string) []string {
	var names []string
	for path := range strings.SplitSeq(imports, ",") {
		if path == module || strings.HasPrefix(path, module+"/") {
			names = append(names, inModule(path))
		}
	}
	return names
}

func allowedImports(name string) ([]string, bool) {
	key, ok := arrowKey(name)
	return arrows[key], ok
}

// arrowKey returns the row of the table that is about name.
func arrowKey(name string) (string, bool) {
	if _, ok := arrows[name]; ok {
		return name, true
	}
	for key := range arrows {
		if strings.HasSuffix(key, "/...") && matches([]string{key}, name) {
			return key, true
		}
	}
	return "", false
}

func matches(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		prefix, wild := strings.CutSuffix(pattern, "...")
		return pattern == name || wild && strings.HasPrefix(name+"/", prefix)
	})
}
