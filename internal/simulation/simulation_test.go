package simulation_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/internal/simulation"
	"github.com/volumekit/volumekit/internal/simulation/world"
)

// result is how a run ended.
type result struct {
	steps []simulation.Step
	hash  uint64
	lines []string
	err   error
}

// rule returns the rule that was broken, or "".
func (r result) rule() string {
	var broken *world.RuleError
	if errors.As(r.err, &broken) {
		return broken.Rule
	}
	return ""
}

// scenario is a world and the program that runs in it.
type scenario struct {
	config world.Config
	bug    bug
	keep   bool // keep the lines of the trace
}

// run drives a new world by source, and lets it converge.
func (s scenario) run(t *testing.T, source simulation.Source) (r result) {
	synctest.Test(t, func(t *testing.T) {
		trace := &simulation.Trace{Keep: s.keep}
		w, err := world.New(s.config, world.Options{
			Context: t.Context(), Wait: synctest.Wait, Sleep: time.Sleep, Trace: trace,
			Start: func(p *world.Process) world.Engine { return start(p, s.bug) },
		})
		require.NoError(t, err)
		r.steps, r.err = simulation.Drive(w, source)
		if r.err == nil {
			r.err = w.Converge()
		}
		r.hash, r.lines = trace.Hash(), trace.Lines()
		w.Close()
	})
	return r
}

func start(p *world.Process, b bug) world.Engine {
	if p.Node() == world.Controller {
		return startController(p, b)
	}
	return startAgent(p, b)
}

// replay runs the steps of a list.
func (s scenario) replay(t *testing.T, steps []simulation.Step) result {
	return s.run(t, simulation.NewScript(steps))
}

// shrink returns the shortest list of steps that breaks the same rule.
func (s scenario) shrink(t *testing.T, r result) result {
	s.keep = false
	steps := simulation.Shrink(r.steps, 3000, plainer, func(steps []simulation.Step) bool {
		return s.replay(t, steps).rule() == r.rule()
	})
	s.keep = true
	return s.replay(t, steps)
}

func plainer(step simulation.Step) simulation.Step {
	if step.Verb == "release" {
		step.Detail = world.OK
	}
	return step
}

// seeded returns the scenario of a seed, and the source that drives it.
func seeded(seed uint64, b bug) (scenario, simulation.Source) {
	random := rand.New(rand.NewPCG(seed, 0))
	return scenario{config: randomConfig(random), bug: b}, simulation.NewRandom(random, 20+random.IntN(130))
}

var allVerdicts = []string{
	world.Transient, world.Final, world.FinalAfter, world.Unsure, world.UnsureAfter, world.Panic, world.PanicAfter, world.Goexit,
	world.GoexitAfter, world.Cancelled, world.CancelledAfter, world.LoseAnswer, world.NilError, world.Lie, world.TransientAfter,
}

// kinds are the kinds of volume.
var kinds = []world.Volume{
	{},
	{Stageable: true},
	{Attachable: true},
	{Attachable: true, Stageable: true},
	{Remountable: true},
	{Stageable: true, Remountable: true},
}

var modes = []string{"ReadWriteOnce", "ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"}

func randomConfig(random *rand.Rand) world.Config {
	c := world.Config{Nodes: []string{"n1"}, Often: map[string]int{}, Faults: world.Faults{
		Verdicts: someOf(random, allVerdicts), Often: 3 + random.IntN(16), Journal: random.IntN(3) == 0, Foreign: random.IntN(3) == 0, Quiet: random.IntN(2) == 0, Verifies: random.IntN(2) == 0, Lies: random.IntN(3) == 0,
		Crashes: random.IntN(3) > 0, Reboots: random.IntN(3) == 0, Cancels: random.IntN(3) == 0,
		Sleeps: []time.Duration{time.Second, 25 * time.Second, 5 * time.Minute},
	}}
	kinds := kinds
	if random.IntN(3) == 0 {
		c.WithController, c.Nodes, kinds = true, []string{"n1", "n2"}, kinds[1:4]
	}
	c.Eager = random.IntN(3) == 0
	for i := range 1 + random.IntN(3)*random.IntN(2) {
		v := kinds[random.IntN(len(kinds))]
		v.Name, v.Mode = "v"+strconv.Itoa(i+1), modes[random.IntN(len(modes))]
		c.Volumes = append(c.Volumes, v)
	}
	for i := range 1 + random.IntN(3) {
		p := world.Pod{Name: "p" + strconv.Itoa(i+1), Node: c.Nodes[random.IntN(len(c.Nodes))]}
		for _, v := range c.Volumes {
			if random.IntN(4) > 0 {
				p.Volumes = append(p.Volumes, v.Name)
			}
		}
		c.Pods = append(c.Pods, p)
	}
	for _, verb := range []string{"add", "remove", "update", "crash", "sleep"} {
		if random.IntN(3) == 0 {
			c.Often[verb] = 3
		}
	}
	if random.IntN(2) == 0 {
		slow := []string{"Attach", "Detach", "MountDevice", "UnmountDevice", "SetUp", "TearDown"}
		if c.WithController {
			slow = []string{"Detach", "Detach", "WriteStatus", "Attach"}
		}
		c.Faults.Slow = slow[random.IntN(len(slow))]
	}
	switch random.IntN(3) {
	case 0:
		c.Sick = c.Volumes[random.IntN(len(c.Volumes))].Name
	case 1:
		c.Broken = c.Pods[random.IntN(len(c.Pods))].Name
	}
	return c
}

// someOf returns a few verdicts: a world in which few things go wrong, but those often, gets deeper.
func someOf(random *rand.Rand, verdicts []string) []string {
	return slices.DeleteFunc(slices.Clone(verdicts), func(string) bool { return random.IntN(3) > 0 })
}

// number returns what a variable of the environment says, or the default.
func number(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	require.NoError(t, err, name)
	return n
}

// report fails the test with all that is needed to see the failure again.
func report(t *testing.T, seed uint64, s scenario, r result) {
	t.Helper()
	short := s.shrink(t, r)
	var steps strings.Builder
	for _, step := range short.steps {
		fmt.Fprintln(&steps, step)
	}
	t.Errorf("seed %d: %v\nreplay it: SIMULATION_SEED=%d go test -run TestSeeds -v ./internal/simulation\n"+
		"the world: %+v\nthe shortest steps that break %s:\n%s\ntheir trace:\n%s",
		seed, r.err, seed, s.config, r.rule(), steps.String(), strings.Join(short.lines, "\n"))
}

// TestSeeds drives random worlds. The package comment says how to choose the seeds.
func TestSeeds(t *testing.T) {
	if os.Getenv("SIMULATION_SEED") != "" {
		oneSeed(t, number(t, "SIMULATION_SEED", 0))
		return
	}
	first, seeds := number(t, "SIMULATION_FIRST", 1), number(t, "SIMULATION_SEEDS", 500)
	until := time.Now().Add(time.Duration(number(t, "SIMULATION_SECONDS", 1<<30)) * time.Second)
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
					r.addTo(reached[shard])
					if r.err != nil {
						report(t, seed, s, r)
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
func (r result) addTo(reached map[string]bool) {
	for _, step := range r.steps {
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
		for _, verdict := range allVerdicts {
			if verdict != world.Lie || call != "Attach" && call != "Detach" {
				want = append(want, call+" "+verdict)
			}
		}
	}
	for _, event := range want {
		assert.True(t, reached[event], "%s has not happened in any seed", event)
	}
}

func oneSeed(t *testing.T, seed uint64) {
	s, source := seeded(seed, bug{})
	s.keep = true
	r := s.run(t, source)
	t.Logf("seed %d, %d steps, hash %x:\n%s", seed, len(r.steps), r.hash, strings.Join(r.lines, "\n"))
	if r.err != nil {
		report(t, seed, s, r)
	}
}

func TestAFailingSeedIsShrunk(t *testing.T) {
	for seed := uint64(1); seed <= 500; seed++ {
		s, source := seeded(seed, bugs["a failed teardown is forgotten"].bug)
		r := s.run(t, source)
		if r.rule() != "S2" {
			continue
		}
		short := s.shrink(t, r)
		assert.Equal(t, "S2", short.rule())
		assert.Less(t, len(short.steps), 12, "a pod comes, is set up and goes, and its teardown fails: %v", short.steps)
		assert.Equal(t, short.hash, s.replay(t, short.steps).hash)
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
		require.Equal(t, first.hash, second.hash, "seed %d", seed)
		assert.Equal(t, first.hash, s.replay(t, first.steps).hash, "seed %d, replayed from its steps", seed)
	}
}
