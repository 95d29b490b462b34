package simulationtest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/volumekit/volumekit/internal/simulation"
	"github.com/volumekit/volumekit/volumemanager/internal/world"
)

// Scenario is a world and its programs.
type Scenario struct {
	// Config describes the world.
	Config world.Config
	// Begin is called for each run, in its bubble. It returns a function that starts a program in a process.
	Begin func(t *testing.T) func(p *world.Process) world.Engine
	// Wait returns when all goroutines of the bubble are blocked; nil means synctest.Wait.
	Wait func()
	// Keep keeps the lines of the trace.
	Keep bool
}

// Result is the result of a run.
type Result struct {
	// Steps are the steps of the run.
	Steps []simulation.Step
	// Hash is the hash of the trace; Lines are the trace, if it was kept.
	Hash  uint64
	Lines []string
	// Err is a *world.RuleError, or nil.
	Err error
}

// Rule returns the broken rule, or "".
func (r Result) Rule() string {
	var broken *world.RuleError
	if errors.As(r.Err, &broken) {
		return broken.Rule
	}
	return ""
}

// Run drives a new world with source, and lets it converge.
func (s Scenario) Run(t *testing.T, source simulation.Source) (r Result) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		t.Helper()
		wait := s.Wait
		if wait == nil {
			wait = synctest.Wait
		}
		trace := &simulation.Trace{Keep: s.Keep}
		w, err := world.New(s.Config, world.Options{
			Context: t.Context(), Wait: wait, Sleep: time.Sleep, Trace: trace, Start: s.Begin(t), //nolint:forbidigo // The time is virtual.
		})
		if err != nil {
			t.Fatal(err)
		}
		r.Steps, r.Err = simulation.Drive(w, source)
		if r.Err == nil {
			r.Err = w.Converge()
		}
		r.Hash, r.Lines = trace.Hash(), trace.Lines()
		w.Close()
	})
	return r
}

// Replay runs the steps of a list.
func (s Scenario) Replay(t *testing.T, steps []simulation.Step) Result {
	t.Helper()
	return s.Run(t, simulation.NewScript(steps))
}

// Shrink returns a run with the shortest list of steps that breaks the same rule, with its trace.
func (s Scenario) Shrink(t *testing.T, r Result) Result {
	t.Helper()
	s.Keep = false
	steps := simulation.Shrink(r.Steps, 3000, plainer, func(steps []simulation.Step) bool {
		return s.Replay(t, steps).Rule() == r.Rule()
	})
	s.Keep = true
	return s.Replay(t, steps)
}

func plainer(step simulation.Step) simulation.Step {
	if step.Verb == "release" {
		step.Detail = world.OK
	}
	return step
}

// Report fails the test with everything that is needed to reproduce the failure. command is the command that runs the
// seed.
func (s Scenario) Report(t *testing.T, seed uint64, command string, r Result) {
	t.Helper()
	short := s.Shrink(t, r)
	var steps strings.Builder
	for _, step := range short.Steps {
		fmt.Fprintln(&steps, step)
	}
	t.Errorf("seed %d: %v\nreplay it: SIMULATION_SEED=%d %s\nthe world: %+v\nthe shortest steps that break %s:\n%s\ntheir trace:\n%s",
		seed, r.Err, seed, command, s.Config, r.Rule(), steps.String(), strings.Join(short.Lines, "\n"))
}
