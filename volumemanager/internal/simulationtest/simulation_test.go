package simulationtest_test

import (
	"maps"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/internal/simulation"
	"github.com/volumekit/volumekit/volumemanager/internal/simulationtest"
	"github.com/volumekit/volumekit/volumemanager/internal/world"
)

// result is how a run ended.
type result = simulationtest.Result

// scenario is a world and the program that runs in it.
type scenario struct {
	config world.Config
	bug    bug
	keep   bool // keep the lines of the trace
}

func (s scenario) of() simulationtest.Scenario {
	start := func(p *world.Process) world.Engine { return start(p, s.bug) }
	return simulationtest.Scenario{
		Config: s.config, Keep: s.keep, Begin: func(*testing.T) func(*world.Process) world.Engine { return start },
	}
}

// run drives a new world by source, and lets it converge.
func (s scenario) run(t *testing.T, source simulation.Source) result {
	t.Helper()
	return s.of().Run(t, source)
}

func start(p *world.Process, b bug) world.Engine {
	if p.Node() == world.Controller {
		return simulationtest.StartController(p, b.controller)
	}
	return startAgent(p, b)
}

// seeded returns the scenario of a seed, and the source that drives it.
func seeded(seed uint64, b bug) (scenario, simulation.Source) {
	random := rand.New(rand.NewPCG(seed, 0))
	return scenario{config: simulationtest.RandomConfig(random), bug: b}, simulation.NewRandom(random, 20+random.IntN(130))
}

// command runs one seed.
const command = "go test -run TestSeeds -v ./volumemanager/internal/simulationtest"

// TestSeeds drives random worlds. The package comment says how to choose the seeds.
func TestSeeds(t *testing.T) {
	if os.Getenv("SIMULATION_SEED") != "" {
		oneSeed(t, simulation.Number(t, "SIMULATION_SEED", 0))
		return
	}
	first, seeds := simulation.Number(t, "SIMULATION_FIRST", 1), simulation.Number(t, "SIMULATION_SEEDS", 500)
	until := time.Now().Add(time.Duration(simulation.Number(t, "SIMULATION_SECONDS", 1<<30)) * time.Second)
	const shards = 2
	var reached [shards]map[string]bool
	t.Run("shard", func(t *testing.T) {
		for shard := range uint64(shards) {
			reached[shard] = map[string]bool{}
			t.Run(strconv.FormatUint(shard, 10), func(t *testing.T) {
				t.Parallel()
				seed, runs := first+shard, 0
				for ; seed < first+seeds && !t.Failed() && time.Now().Before(until); seed += shards {
					runs++
					s, source := seeded(seed, bug{})
					r := s.run(t, source)
					addTo(reached[shard], r)
					if r.Err != nil {
						s.of().Report(t, seed, command, r)
					}
				}
				t.Logf("%d seeds before %d", runs, seed)
			})
		}
	})
	maps.Copy(reached[0], reached[1])
	if seeds >= 5000 && !t.Failed() && time.Now().Before(until) {
		checkReached(t, reached[0])
	}
}

// addTo notes which verbs were done, and how which calls ended.
func addTo(reached map[string]bool, r result) {
	for _, step := range r.Steps {
		call, _, _ := strings.Cut(strings.TrimPrefix(step.Subject, "Answer:"), ":")
		if step.Verb == "release" {
			reached[call+" "+step.Detail] = true
		}
		reached[step.Verb] = true
	}
}

// checkReached holds that the seeds are not idle: everything that can happen has happened.
func checkReached(t *testing.T, reached map[string]bool) {
	t.Helper()
	want := []string{"add", "remove", "update", "kick", "report", "verify", "VolumesAreAttached ok", "VolumesAreAttached final", "crash", "reboot", "cancel", "unmount", "sleep", "WriteStatus ok"}
	for _, call := range []string{"Intend", "Conclude"} {
		want = append(want, call+" final", call+" fail-written")
	}
	for _, call := range []string{"Attach", "Detach", "MountDevice", "UnmountDevice", "SetUp", "TearDown"} {
		for _, verdict := range simulationtest.Verdicts {
			if verdict != world.Half && (verdict != world.Lie || call != "Attach" && call != "Detach") {
				want = append(want, call+" "+verdict)
			}
		}
	}
	for _, call := range []string{"SetUpDevice", "TearDownDevice", "MapPodDevice", "UnmapPodDevice", "MapDevice", "UnmapDevice", "RemoveMapPath"} {
		want = append(want, call+" ok", call+" "+world.Final, call+" "+world.UnsureAfter, call+" "+world.LoseAnswer, call+" "+world.PanicAfter)
	}
	want = append(want, "MapDevice "+world.Half, "UnmapDevice "+world.Half)
	for _, event := range want {
		assert.True(t, reached[event], "%s has not happened in any seed", event)
	}
}

func oneSeed(t *testing.T, seed uint64) {
	s, source := seeded(seed, bug{})
	s.keep = true
	r := s.run(t, source)
	t.Logf("seed %d, %d steps, hash %x:\n%s", seed, len(r.Steps), r.Hash, strings.Join(r.Lines, "\n"))
	if r.Err != nil {
		s.of().Report(t, seed, command, r)
	}
}

func TestAFailingSeedIsShrunk(t *testing.T) {
	for seed := uint64(1); seed <= 500; seed++ {
		s, source := seeded(seed, bugs["a failed teardown is forgotten"].bug)
		r := s.run(t, source)
		if r.Rule() != "S2" {
			continue
		}
		short := s.of().Shrink(t, r)
		assert.Equal(t, "S2", short.Rule())
		assert.Less(t, len(short.Steps), 12, "a pod comes, is set up and goes, and its teardown fails: %v", short.Steps)
		assert.Equal(t, short.Hash, s.of().Replay(t, short.Steps).Hash)
		return
	}
	t.Error("no seed fails")
}

func TestTheSameSeedGivesTheSameTrace(t *testing.T) {
	for seed := uint64(1); seed <= 100; seed++ {
		s, source := seeded(seed, bug{})
		first := s.run(t, source)
		s, source = seeded(seed, bug{})
		second := s.run(t, source)
		require.Equal(t, first.Hash, second.Hash, "seed %d", seed)
		assert.Equal(t, first.Hash, s.of().Replay(t, first.Steps).Hash, "seed %d, replayed from its steps", seed)
	}
}
