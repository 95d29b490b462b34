package volumetest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/volume"
)

// plantedBug is a bug that an author might make, in a plugin of one kind.
type plantedBug struct {
	kind, name string
	// losesData says that what a pod has written is lost, mixed up with other data, or shown to others.
	losesData bool
}

// plantedBugs were written before rules were added for what the suite let through, and without a look at them; they are changed
// no more. docs/suite.md has the same list, with what catches each.
func plantedBugs() []plantedBug {
	return []plantedBug{
		{inline, "two volumes of a pod are at one path", true},
		{inline, "names are cut at twelve bytes", true},
		{inline, "a refresh mounts anew", true},
		{inline, "TearDown takes every path that begins with its own", true},
		{inline, "TearDown takes the volume of that name from every pod", true},
		{inline, "TearDown is lazy", true},
		{inline, "nosuid is forgotten", false},
		{inline, "nodev is forgotten", false},
		{inline, "only root may enter a new volume", false},
		{inline, "a failed SetUp leaves its directory", false},
		{inline, "GetMetrics keeps a descriptor", false},
		{inline, "SetUp notes something at the pod", false},

		{provisioned, "Delete takes every disk whose name begins like this", true},
		{provisioned, "Delete empties the whole storage", true},
		{provisioned, "Delete does not look whether the disk is mounted", true},
		{provisioned, "Provision again empties the disk", true},
		{provisioned, "the disk is named by its claim alone", true},
		{provisioned, "the reclaim policy is always Delete", true},
		{provisioned, "the class's mount options are dropped", false},
		{provisioned, "every disk may be used by many nodes", true},
		{provisioned, "the filesystem is smaller than what is promised", false},
		{provisioned, "an expansion to less shrinks the disk and says it did not", true},
		{provisioned, "a clone has names without content", true},
		{provisioned, "each SetUp opens the root for all users", false},

		{staging, "MountDevice formats each time", true},
		{staging, "a new process formats what it does not know", true},
		{staging, "UnmountDevice is lazy", true},
		{staging, "UnmountDevice takes the pods' mounts too", true},
		{staging, "UnmountDevice takes every path that begins like this", true},
		{staging, "all disks are staged at one path", true},
		{staging, "SetUp binds an empty directory where nothing is staged", true},
		{staging, "the last TearDown unstages too", false},
		{staging, "NodeExpand makes the filesystem anew", true},
		{staging, "what NodeExpand has grown is small again after a remount", false},
		{staging, "a failed MountDevice leaves its directory", false},
		{staging, "two set-ups of a volume mount twice", false},

		{attached, "Detach detaches from every node", true},
		{attached, "Attach takes an exclusive disk from another node", true},
		{attached, "a new process attaches an empty disk", true},
		{attached, "a new process attaches an exclusive disk elsewhere too", true},
		{attached, "Delete detaches first", true},
		{attached, "Delete knows only what this process has attached", true},
		{attached, "devices are numbered by order and move up", true},
		{attached, "Detach loses what was written", true},
		{attached, "an expansion makes a new disk where none is attached", true},
		{attached, "a disk counts as attached wherever it is", false},
		{attached, "a staged volume may have devices and setuid programs", false},
		{attached, "MountDevice keeps a descriptor of the device", false},

		{block, "TearDownDevice discards what was written", true},
		{block, "UnmapPodDevice takes the device from every pod", true},
		{block, "TearDownDevice takes every device whose name begins like this", true},
		{block, "all devices are mapped at one path", true},
		{block, "all devices of a pod have one link", true},
		{block, "devices are named by twelve bytes", true},
		{block, "Delete does not look whether the device is mapped", true},
		{block, "Provision again empties the device", true},
		{block, "an expansion makes the device anew", true},
		{block, "a device that is found is taken for a filesystem", true},
		{block, "a claim of a device gets a filesystem", false},
		{block, "MapPodDevice keeps a descriptor", false},
	}
}

// plantedFor are the bugs that show that the case of a rule catches something.
func plantedFor() map[string]plantedBug {
	return map[string]plantedBug{
		"M13": {kind: inline, name: "TearDown takes every path that begins with its own"},
		"M14": {kind: inline, name: "a refresh mounts anew"},
		"M15": {kind: attached, name: "a staged volume may have devices and setuid programs"},
		"M16": {kind: provisioned, name: "each SetUp opens the root for all users"},
		"S6":  {kind: staging, name: "MountDevice formats each time"},
		"S7":  {kind: staging, name: "SetUp binds an empty directory where nothing is staged"},
		"S8":  {kind: staging, name: "UnmountDevice is lazy"},
		"S9":  {kind: staging, name: "UnmountDevice takes the pods' mounts too"},
		"S10": {kind: staging, name: "UnmountDevice takes every path that begins like this"},
		"A9":  {kind: attached, name: "Detach detaches from every node"},
		"B7":  {kind: block, name: "UnmapPodDevice takes the device from every pod"},
		"B8":  {kind: block, name: "TearDownDevice takes every device whose name begins like this"},
		"P7":  {kind: provisioned, name: "Provision again empties the disk"},
		"P8":  {kind: provisioned, name: "the reclaim policy is always Delete"},
		"P9":  {kind: provisioned, name: "the disk is named by its claim alone"},
		"P10": {kind: provisioned, name: "the filesystem is smaller than what is promised"},
		"E5":  {kind: block, name: "an expansion makes the device anew"},
		"D4":  {kind: provisioned, name: "Delete takes every disk whose name begins like this"},
		"L2":  {kind: inline, name: "GetMetrics keeps a descriptor"},
		"L3":  {kind: inline, name: "a failed SetUp leaves its directory"},
		"D5":  {kind: provisioned, name: "Delete does not look whether the disk is mounted"},
	}
}

// plantedConfig tests a plugin of a kind with one bug; without any where bug is "".
func plantedConfig(t testing.TB, kind, bug string) Config {
	world := fake.NewMounter(fake.MounterOptions{})
	storage := newPlantedStorage(t, world)
	config := Config{
		NewPlugin: func(testing.TB) volume.VolumePlugin {
			return &plantedPlugin{
				kind: kind, bug: bug, storage: storage, mounter: Yielding(world),
				formatted: map[string]bool{}, seen: map[string]bool{},
			}
		},
		World:       &plantedWorld{world, storage},
		RootDir:     "/node",
		leakTimeout: shortTimeout,
	}
	if bug == "" {
		config.leakTimeout = 0
	}
	switch kind {
	case inline:
		config.NewSpec = InlineSpec(plantedDriver)
	case block:
		config.Lifetime = LifetimeOfStorage
		mode := v1.PersistentVolumeBlock
		config.NewVolumeOptions = func(t testing.TB) volume.VolumeOptions {
			options := defaultOptions()
			options.PVC.Spec.VolumeMode = &mode
			return options
		}
	default:
		config.Shared, config.Lifetime = true, LifetimeOfStorage
	}
	return config
}

// plantedCases are the cases that concern a kind: what is a device has no filesystem to look at.
func plantedCases(kind string) []Case {
	var cases []Case
	for _, c := range Cases() {
		if kind != block || strings.Contains(" identity block provision delete expand ", " "+c.Group+" ") {
			cases = append(cases, c)
		}
	}
	return cases
}

// brokenRule is what a failure says.
var brokenRule = regexp.MustCompile(`rule (\w+) is broken: `)

// tryPlanted runs the cases against a bug, until one fails, and returns the rule that it says is broken.
func tryPlanted(t *testing.T, kind, bug string) (rule string) {
	t.Helper()
	for _, c := range plantedCases(kind) {
		r := try(t, c, plantedConfig(t, kind, bug))
		if len(r.failures) > 0 {
			require.Regexp(t, brokenRule, r.failures[0])
			return brokenRule.FindStringSubmatch(r.failures[0])[1]
		}
	}
	return ""
}

func TestThePlantedPluginsAreSoundWithoutABug(t *testing.T) {
	for _, kind := range []string{inline, provisioned, staging, attached, block} {
		t.Run(kind, func(t *testing.T) { assert.Empty(t, tryPlanted(t, kind, "")) })
	}
}

func TestEveryPlantedBugIsAskedFor(t *testing.T) {
	files, err := filepath.Glob("planted_*_test.go")
	require.NoError(t, err)
	var asked, listed []string
	for _, file := range files {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, match := range regexp.MustCompile(`\.has\("([^"]*)"\)`).FindAllStringSubmatch(string(source), -1) {
			asked = append(asked, match[1])
		}
	}
	for _, bug := range plantedBugs() {
		listed = append(listed, bug.name)
	}
	slices.Sort(asked)
	assert.ElementsMatch(t, listed, slices.Compact(asked))
	assert.Len(t, listed, 60)
}

// TestPlantedBugsAreCaught, each by the case of the rule that docs/suite.md says, or by none where the page says why.
func TestPlantedBugsAreCaught(t *testing.T) {
	page, err := os.ReadFile("../../docs/suite.md")
	require.NoError(t, err)
	escaped := 0
	for i, bug := range plantedBugs() {
		data := ""
		if bug.losesData {
			data = "yes"
		}
		row := fmt.Sprintf("| %d | %s | %s | %s |", i+1, bug.kind, bug.name, data)
		_, rest, found := strings.Cut(string(page), row+" ")
		require.True(t, found, row)
		written, _, _ := strings.Cut(rest, " |\n")
		if strings.HasPrefix(written, "escapes: ") {
			assert.False(t, bug.losesData, bug.name)
			assert.Empty(t, tryPlanted(t, bug.kind, bug.name), "%s escapes no more", bug.name)
			escaped++
			continue
		}
		broken := try(t, ruleOf(t, written), plantedConfig(t, bug.kind, bug.name))
		if assert.NotEmpty(t, broken.failures, "%s was not seen (%s)", row, broken.skipped) {
			assert.Contains(t, broken.failures[0], "rule "+written+" is broken: ", bug.name)
		}
	}
	assert.LessOrEqual(t, escaped, 5)
}
