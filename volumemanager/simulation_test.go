package volumemanager

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/internal/simulation"
	"github.com/volumekit/volumekit/volumemanager/internal/simulationtest"
	sim "github.com/volumekit/volumekit/volumemanager/internal/world"
)

// simulatedSeed returns the scenario of a seed, and the source that drives it.
func simulatedSeed(seed uint64, bug simulatedBug) (simulationtest.Scenario, simulation.Source) {
	random := rand.New(rand.NewPCG(seed, 1))
	c := simulationtest.RandomConfig(random)
	c.Eager = true
	c.Faults.Cancels = false                                     // The context of Run is that of the process.
	c.Faults.Stops = rand.New(rand.NewPCG(seed, 2)).IntN(3) == 0 // Of its own, so that the other seeds stay what they are.
	reuses := rand.New(rand.NewPCG(seed, 3)).IntN(2) == 0        // Likewise.
	if bug.world != nil {
		bug.world(&c)
	}
	o := simulatedOrchestrator{late: random.IntN(4)}
	source := simulation.NewRandom(random, 20+random.IntN(100))
	if c.WithController {
		c.Faults.Status, o.ownStatus = random.IntN(2) == 0, random.IntN(3) == 0
	}
	for i, v := range c.Volumes {
		c.Volumes[i].Reusable = v.Reusable || reuses && !v.Block && !v.Attachable && !v.Stageable && !v.Remountable
		c.Volumes[i].Expands = v.Expands || !c.WithController && v.Attachable && !v.Block && random.IntN(2) == 0
	}
	if random := rand.New(rand.NewPCG(seed, 4)); random.IntN(3) == 0 {
		o.order = random.Uint64()
		if bug.world == nil {
			remake(&c, random)
		}
	}
	return simulatedScenario(c, o, bug), source
}

// remake lets most volumes be other storage now and then. A pod has one path for both only where pods share the storage.
func remake(c *sim.Config, random *rand.Rand) {
	for i := range c.Volumes {
		v := &c.Volumes[i]
		if c.WithController || random.IntN(3) == 0 {
			continue
		}
		v.Stageable, v.Block, v.Expands, v.Reusable = v.Stageable || !v.Attachable, false, false, false
		if v.Inline = random.IntN(3) == 0; v.Inline {
			v.Mode = "ReadWriteMany"
		}
		v.Remade = !v.Inline
	}
	if random.IntN(2) == 0 { // What a pod asks for waits while the teardown of what it has had fails.
		c.Sick, c.Broken = "", c.Pods[random.IntN(len(c.Pods))].Name
	}
}

// controllerWorld is c with two nodes and a controller.
func controllerWorld(c sim.Config) sim.Config {
	if c.WithController {
		return c
	}
	c.WithController, c.Nodes = true, []string{"n1", "n2"}
	for i := range c.Volumes {
		c.Volumes[i].Attachable, c.Volumes[i].Block, c.Volumes[i].Remountable = true, false, false
	}
	for i := range c.Pods {
		c.Pods[i].Node = c.Nodes[i%2]
	}
	return c
}

func simulatedScenario(c sim.Config, o simulatedOrchestrator, bug simulatedBug) simulationtest.Scenario {
	return simulationtest.Scenario{Config: c, Wait: comeToRest, Begin: func(t *testing.T) func(*sim.Process) sim.Engine {
		t.Helper()
		return newSimulatedCluster(t, o, bug).start
	}}
}

const simulationCommand = "go test -run TestSimulatedManager -v ./volumemanager"

// TestSimulatedManager drives the manager through random worlds, as package simulation says: the variables of the
// environment are the same, but that there are a tenth of the seeds.
func TestSimulatedManager(t *testing.T) {
	t.Parallel()
	if seed := simulation.Number(t, "SIMULATION_SEED", 0); seed != 0 {
		s, source := simulatedSeed(seed, simulatedBug{})
		s.Keep = true
		r := s.Run(t, source)
		t.Logf("seed %d, %d steps, hash %x:\n%s", seed, len(r.Steps), r.Hash, strings.Join(r.Lines, "\n"))
		if r.Err != nil {
			s.Report(t, seed, simulationCommand, r)
		}
		return
	}
	first, seeds := simulation.Number(t, "SIMULATION_FIRST", 1), simulation.Number(t, "SIMULATION_SEEDS", 1000)/10
	for seed := first; seed < first+seeds; seed++ {
		s, source := simulatedSeed(seed, simulatedBug{})
		if r := s.Run(t, source); r.Err != nil {
			s.Report(t, seed, simulationCommand, r)
			return
		}
	}
	t.Logf("%d seeds from %d on", seeds, first)
}

// Found by seed 200: a record that is written slowly must not make another end of the volume be forgotten.
func TestASlowRecordLosesNoEnd(t *testing.T) {
	pods := []sim.Pod{{Name: "p1", Node: "n1", Volumes: []string{"v1"}}, {Name: "p2", Node: "n1", Volumes: []string{"v1"}}}
	c := sim.Config{Nodes: []string{"n1"}, Volumes: []sim.Volume{{Name: "v1", Stageable: true, Mode: "ReadWriteMany"}}, Pods: pods, Eager: true}
	steps, err := simulation.ParseSteps("add p2\nrelease Record:n1:v1 ok\nrelease MountDevice:n1:v1 ok\nrelease Record:n1:v1 ok\n" +
		"release SetUp:n1:v1:p2 ok\nadd p1\nrelease Record:n1:v1 ok\nrelease SetUp:n1:v1:p1 ok\nremove p1\nremove p2\n" +
		"release TearDown:n1:v1:p2 ok\nrelease TearDown:n1:v1:p1 ok\nsleep 25s")
	require.NoError(t, err)
	r := simulatedScenario(c, simulatedOrchestrator{}, simulatedBug{}).Replay(t, steps)
	require.NoError(t, r.Err)
	assert.Equal(t, steps, r.Steps, "no step may be skipped")
}

// Found by seed 982, which waited an hour by default: a mount whose expansion is infeasible succeeds at the old size.
func TestAMountSucceedsThoughItsExpansionIsInfeasible(t *testing.T) {
	c := sim.Config{
		Nodes: []string{"n1"}, Volumes: []sim.Volume{{Name: "v1", Attachable: true, Expands: true, Mode: "ReadWriteMany"}},
		Pods:  []sim.Pod{{Name: "p1", Node: "n1", Volumes: []string{"v1"}}, {Name: "p2", Node: "n1", Volumes: []string{"v1"}}},
		Eager: true, Faults: sim.Faults{Quiet: true},
	}
	steps, err := simulation.ParseSteps("add p1\nrelease Attach:n1:v1 ok\nremove p1\nrelease SetUp:n1:v1:p1 ok\ngrow v1\nadd p2\n" +
		"release TearDown:n1:v1:p1 ok\nrelease SetUp:n1:v1:p2 ok\nrelease NodeExpand:n1:v1 infeasible")
	require.NoError(t, err)
	r := simulatedScenario(c, simulatedOrchestrator{}, simulatedBug{}).Replay(t, steps)
	require.NoError(t, r.Err)
	assert.Equal(t, steps, r.Steps, "no step may be skipped")
}

func TestTheSameSeedGivesTheSameTrace(t *testing.T) {
	t.Parallel()
	for seed := uint64(1); seed <= 10; seed++ {
		s, source := simulatedSeed(seed, simulatedBug{})
		first := s.Run(t, source)
		s, source = simulatedSeed(seed, simulatedBug{})
		second := s.Run(t, source)
		require.Equal(t, first.Rule(), second.Rule(), "seed %d", seed)
		if raceDetector {
			continue // test.sh compares the traces without it.
		}
		require.Equal(t, first.Hash, second.Hash, "seed %d", seed)
		assert.Equal(t, first.Hash, s.Replay(t, first.Steps).Hash, "seed %d, replayed from its steps", seed)
	}
}
