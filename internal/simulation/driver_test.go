package simulation_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/internal/simulation"
)

// letters is a world that always offers the same letters as steps. It does a step unless the step is refused.
type letters struct {
	offered string
	refused string
	done    string
}

func (l *letters) Choices() []simulation.Choice {
	var choices []simulation.Choice
	for letter := range strings.SplitSeq(l.offered, "") {
		choices = append(choices, simulation.Choice{Step: simulation.Step{Verb: letter}, Weight: 1})
	}
	return append(choices, simulation.Choice{Step: simulation.Step{Verb: "never"}})
}

func (l *letters) Do(step simulation.Step) bool {
	if strings.Contains(l.refused, step.Verb) {
		return false
	}
	l.done += step.Verb
	return true
}

func (l *letters) Check() error { return nil }

func steps(text string) []simulation.Step {
	var steps []simulation.Step
	for letter := range strings.SplitSeq(text, "") {
		steps = append(steps, simulation.Step{Verb: letter})
	}
	return steps
}

func text(steps []simulation.Step) string {
	var b strings.Builder
	for _, step := range steps {
		b.WriteString(step.Verb)
	}
	return b.String()
}

func TestExploreTakesEachScheduleOnce(t *testing.T) {
	var all []string
	n := simulation.Explore(3, func(source simulation.Source) bool {
		world := &letters{offered: "abc"}
		_, err := simulation.Drive(world, source)
		require.NoError(t, err)
		all = append(all, world.done)
		return true
	})
	assert.Equal(t, 27, n)
	assert.Len(t, slices.Compact(slices.Sorted(slices.Values(all))), 27)
	assert.Equal(t, []string{"aaa", "ccc"}, []string{all[0], all[26]})

	n = simulation.Explore(3, func(simulation.Source) bool { return false })
	assert.Equal(t, 1, n, "it ends when it is told to")
}

func TestASourceThatIsSeededChoosesTheSameAgain(t *testing.T) {
	run := func(seed uint64) string {
		world := &letters{offered: "abc"}
		_, err := simulation.Drive(world, simulation.NewRandom(rand.New(rand.NewPCG(seed, 0)), 40))
		require.NoError(t, err)
		return world.done
	}
	first := run(1)
	assert.Len(t, first, 40)
	assert.Equal(t, first, run(1))
	assert.NotEqual(t, first, run(2))
}

func TestAStepThatIsNotPossibleIsSkipped(t *testing.T) {
	world := &letters{refused: "b"}
	done, err := simulation.Drive(world, &simulation.Chain{simulation.NewScript(steps("ab")), simulation.NewScript(steps("bc"))})
	require.NoError(t, err)
	assert.Equal(t, "ac", text(done))
}

func TestShrinkKeepsWhatIsNeeded(t *testing.T) {
	calls := 0
	fails := func(steps []simulation.Step) bool {
		calls++
		found := text(steps)
		return strings.Contains(found, "x") && strings.LastIndex(found, "y") > strings.Index(found, "x")
	}
	plain := func(step simulation.Step) simulation.Step {
		step.Detail = ""
		return step
	}
	long := steps(strings.Repeat("abcd", 20) + "x" + strings.Repeat("ef", 30) + "y" + strings.Repeat("xy", 10))
	for i := range long {
		long[i].Detail = "odd"
	}
	short := simulation.Shrink(long, 1000, plain, fails)
	assert.Equal(t, steps("xy"), short)

	calls = 0
	simulation.Shrink(long, 7, plain, fails)
	assert.Equal(t, 7, calls, "no more tries than it was given")
}

func TestStepsAreReadAsTheyAreWritten(t *testing.T) {
	for _, step := range []simulation.Step{{Verb: "a"}, {Verb: "a", Subject: "b"}, {Verb: "a", Subject: "b", Detail: "c"}} {
		read, err := simulation.ParseSteps("# why\n\n" + step.String() + "\n")
		require.NoError(t, err)
		assert.Equal(t, []simulation.Step{step}, read)
	}
	_, err := simulation.ParseSteps("a b c d")
	assert.ErrorContains(t, err, "4 words")
}

func TestCallsWaitUntilTheyAreReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls simulation.Calls
		verdicts := make(chan string, 4)
		park := func(label string, owner any) {
			go func() { verdicts <- label + " " + calls.Park(simulation.Call{Name: label, Label: label, Owner: owner}) }()
			synctest.Wait()
		}
		park("b", 1)
		park("a", 1)
		park("b", 2)
		labels := func() (labels []string) {
			for _, call := range calls.Waiting() {
				labels = append(labels, call.Label)
			}
			return labels
		}
		assert.Equal(t, []string{"a", "b", "b~2"}, labels())
		assert.False(t, calls.Release("c", "ok"))
		assert.False(t, calls.Release("b~3", "ok"))
		assert.True(t, calls.Release("b~2", "second"))
		assert.Equal(t, "b second", <-verdicts)
		calls.Drop(1, "killed")
		assert.ElementsMatch(t, []string{"a killed", "b killed"}, []string{<-verdicts, <-verdicts})
		assert.Empty(t, labels())
	})
}

func TestTheOrderOfNotesWithinAStepDoesNotCount(t *testing.T) {
	trace := func(notes ...string) *simulation.Trace {
		trace := &simulation.Trace{Keep: true}
		trace.Step("first")
		for _, note := range notes {
			trace.Note(note)
		}
		trace.Step("second")
		return trace
	}
	assert.Equal(t, trace("a", "b").Hash(), trace("b", "a").Hash())
	assert.NotEqual(t, trace("a", "b").Hash(), trace("a").Hash())
	assert.Equal(t, []string{"first", "    a", "    b", "second"}, trace("b", "a").Lines())
}
