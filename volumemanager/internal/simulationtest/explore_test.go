package simulationtest_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/internal/simulation"
	"github.com/volumekit/volumekit/volumemanager/internal/world"
)

// scope is a small world of which every schedule is tried.
type scope struct {
	volume world.Volume
	pods   int
	// prefix is done first, so that few steps lead far.
	prefix string
	// nodes is how many nodes a controller attaches for; zero means one node that attaches itself. The second pod is on the
	// second node. So much can happen there that schedules are one step shorter.
	nodes int
}

const (
	mounted  = "add p1\nrelease SetUp:n1:v1:p1 ok"
	staged   = "add p1\nrelease MountDevice:n1:v1 ok\nrelease SetUp:n1:v1:p1 ok"
	unused   = "remove p1\nrelease TearDown:n1:v1:p1 ok"
	both     = staged + "\nadd p2\nrelease SetUp:n1:v1:p2 ok"
	moving   = "add p1\nadd p2\nrelease Attach:n1:v1 ok\nreport n1\nkick n1\nrelease SetUp:n1:v1:p1 ok\nremove p1\nrelease TearDown:n1:v1:p1 ok\nkick n1\nreport n1"
	mapped   = "add p1\nrelease SetUpDevice:n1:v1 ok\nrelease MapPodDevice:n1:v1:p1 ok\nrelease MapDevice:n1:v1:p1 ok"
	unmapped = "add p1\nrelease Attach:n1:v1 ok\nrelease MapDevice:n1:v1:p1 ok\nremove p1\nrelease UnmapDevice:n1:v1:p1 ok"
	undone   = "add p1\nrelease Attach:n1:v1 ok\nrelease MountDevice:n1:v1 ok\nrelease SetUp:n1:v1:p1 ok\n" + unused + "\nrelease UnmountDevice:n1:v1 ok"
)

// scopes begin where something is to be done, where something is there, and where it is to be undone.
var scopes = map[string]scope{
	"plain":                       {world.Volume{}, 1, "", 0},
	"plain, mounted":              {world.Volume{}, 1, mounted, 0},
	"remounted":                   {world.Volume{Remountable: true}, 1, mounted + "\nupdate p1", 0},
	"staged":                      {world.Volume{Stageable: true}, 1, "", 0},
	"staged, mounted":             {world.Volume{Stageable: true}, 1, staged, 0},
	"staged, unused":              {world.Volume{Stageable: true}, 1, staged + "\n" + unused, 0},
	"attached":                    {world.Volume{Attachable: true}, 1, "add p1", 0},
	"attached, staged, unused":    {world.Volume{Attachable: true, Stageable: true}, 1, undone, 0},
	"staged, two pods":            {world.Volume{Stageable: true}, 2, staged, 0},
	"staged, two pods, both":      {world.Volume{Stageable: true}, 2, both, 0},
	"staged, one pod of two":      {world.Volume{Stageable: true, Mode: "ReadWriteOncePod"}, 2, staged, 0},
	"staged, refreshed, two pods": {world.Volume{Stageable: true, Remountable: true}, 2, both + "\nupdate p2", 0},
	"mapped":                      {world.Volume{Stageable: true, Block: true}, 1, "add p1\nrelease SetUpDevice:n1:v1 ok", 0},
	"mapped, undone":              {world.Volume{Stageable: true, Block: true}, 1, mapped + "\nremove p1", 0},
	"mapped, unused":              {world.Volume{Attachable: true, Block: true}, 1, unmapped, 0},
	"two nodes":                   {world.Volume{Attachable: true}, 2, "add p1\nadd p2", 2},
	"from node to node":           {world.Volume{Attachable: true}, 2, moving, 2},
}

func (s scope) config() world.Config {
	v := s.volume
	v.Name = "v1"
	if v.Mode == "" {
		v.Mode = "ReadWriteOnce"
	}
	c := world.Config{
		Nodes: []string{"n1"}, Volumes: []world.Volume{v}, Eager: true,
		Pods: []world.Pod{{Name: "p1", Node: "n1", Volumes: []string{"v1"}}, {Name: "p2", Node: "n1", Volumes: []string{"v1"}}}[:s.pods],
		Faults: world.Faults{
			Verdicts: []string{world.Final, world.UnsureAfter, world.LoseAnswer, world.Half}, Quiet: true, Crashes: true,
			Sleeps: []time.Duration{25 * time.Second},
		},
	}
	if s.nodes > 0 {
		c.WithController, c.Nodes = true, []string{"n1", "n2"}
		c.Pods[1].Node = "n2"
		c.Faults.Verdicts, c.Faults.Sleeps = []string{world.UnsureAfter}, nil
	}
	return c
}

// explore runs every schedule of a scope, and returns how many there are and the first that fails.
func (s scope) explore(t *testing.T, depth int, b bug) (schedules int, failed result) {
	prefix, err := simulation.ParseSteps(s.prefix)
	require.NoError(t, err)
	if s.nodes > 0 {
		depth--
	}
	run := scenario{config: s.config(), bug: b}
	schedules = simulation.Explore(depth, func(source simulation.Source) bool {
		failed = run.run(t, &simulation.Chain{simulation.NewScript(prefix), source})
		return failed.Err == nil
	})
	return schedules, failed
}

// TestEverySchedule tries every schedule of a few small scopes. The package comment says how to choose the depth.
func TestEverySchedule(t *testing.T) {
	depth := int(simulation.Number(t, "SIMULATION_DEPTH", 2))
	for name, s := range scopes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			schedules, failed := s.explore(t, depth, bug{})
			t.Logf("%d schedules", schedules)
			if failed.Err != nil {
				run := scenario{config: s.config()}
				short := run.of().Shrink(t, failed)
				t.Errorf("%v\nthe shortest steps:\n%s", failed.Err, strings.Join(short.Lines, "\n"))
			}
		})
	}
}

// TestThePrefixesOfScopesLeadWhereTheySay so that a step that is misspelt, and so skipped, is not overlooked.
func TestThePrefixesOfScopesLeadWhereTheySay(t *testing.T) {
	for name, s := range scopes {
		prefix, err := simulation.ParseSteps(s.prefix)
		require.NoError(t, err)
		r := scenario{config: s.config()}.of().Replay(t, prefix)
		require.NoError(t, r.Err, name)
		assert.Equal(t, prefix, r.Steps, name)
	}
}
