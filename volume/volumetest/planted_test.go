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
		{provisioned, "each SetUp opens the root for everybody", false},

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

// plantedConfig tests a plugin of a kind with one bug; without any where bug is "".
func plantedConfig(t testing.TB, kind, bug string) Config {
	world := fake.NewMounter(fake.MounterOptions{})
	storage := newPlantedStorage(t, world)
	config := Config{
		NewPlugin: func(testing.TB) volume.VolumePlugin {
			return &plantedPlugin{
				kind: kind, bug: bug, storage: storage, mounter: Unsteady(world),
				formatted: map[string]bool{}, seen: map[string]bool{},
			}
		},
		World:    &plantedWorld{world, storage},
		RootDir:  "/node",
		patience: shortPatience,
	}
	switch kind {
	case inline:
		config.NewSpec = InlineSpec(plantedDriver)
	case block:
		mode := v1.PersistentVolumeBlock
		config.NewVolumeOptions = func(t testing.TB) volume.VolumeOptions {
			options := defaultOptions()
			options.PVC.Spec.VolumeMode = &mode
			return options
		}
	default:
		config.Shared = true
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

// tryPlanted runs every case against a bug and returns the rules that it breaks, none where the run does not survive.
func tryPlanted(t *testing.T, kind, bug string) (rules []string) {
	t.Helper()
	if bug == "SetUp notes something at the pod" {
		return nil // The panic, in a goroutine, ends the whole run.
	}
	for _, c := range plantedCases(kind) {
		r := try(t, c, plantedConfig(t, kind, bug))
		if len(r.failures) > 0 {
			rules = append(rules, c.Rule)
		}
	}
	return rules
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

// TestPlantedBugsAreCaught compares what is caught, and by which rules, with docs/suite.md.
func TestPlantedBugsAreCaught(t *testing.T) {
	page, err := os.ReadFile("../../docs/suite.md")
	require.NoError(t, err)
	for i, bug := range plantedBugs() {
		data := ""
		if bug.losesData {
			data = "yes"
		}
		row := fmt.Sprintf("| %d | %s | %s | %s |", i+1, bug.kind, bug.name, data)
		_, rest, found := strings.Cut(string(page), row+" ")
		written, _, _ := strings.Cut(rest, " |\n")
		rules := strings.Join(tryPlanted(t, bug.kind, bug.name), ", ")
		if !assert.True(t, found, "%s %s |", row, rules) {
			continue
		}
		if rules == "" {
			assert.Contains(t, written, "escapes: ", bug.name)
			continue
		}
		assert.Equal(t, written, rules, bug.name)
	}
}
