package volumemanager

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/volumekit/volumekit/internal/record"
	sim "github.com/volumekit/volumekit/internal/simulation/world"
	"github.com/volumekit/volumekit/operationexecutor"
)

// simulatedBug is a mistake that is planted into the manager. The zero value is none.
type simulatedBug struct {
	change         func(m *Manager)              // before Run
	dir            func(dir recordDir) recordDir // a directory of records
	completesEarly bool                          // PodsComplete before a pod was added
	readyTooSoon   bool                          // a pod is ready while a volume is taken from it
	trusts         bool                          // plugins are believed
	world          func(*sim.Config)             // in which the mistake is likelier to show; nil: any
}

// The directories below lose what is written.
type (
	emptyDir     struct{ recordDir }
	forgetfulDir struct{ recordDir }
	stickyDir    struct{ recordDir }
)

func (emptyDir) Load() ([]record.Record, []record.Damaged, error) { return nil, nil, nil }

func (forgetfulDir) Put(string, []byte) error { return nil }

func (stickyDir) Remove(string) error { return nil }

// forgetsUnsure is a journal whose record goes although it is not certain that nothing is left.
type forgetsUnsure struct{ operationexecutor.Journal }

func (j forgetsUnsure) Conclude(ctx context.Context, i operationexecutor.Intent, end operationexecutor.IntentEnd) error {
	if end == operationexecutor.IntentUncertain {
		end = operationexecutor.IntentForgotten
	}
	return j.Journal.Conclude(ctx, i, end)
}

// forgetsItsFailures makes the manager forget that a record could not be written when an operation ended.
type forgetsItsFailures struct {
	operationexecutor.Journal
	journal *journal
}

func (j forgetsItsFailures) Conclude(ctx context.Context, i operationexecutor.Intent, end operationexecutor.IntentEnd) error {
	err := j.Journal.Conclude(ctx, i, end)
	if e := j.journal.entry(i.VolumeName); err != nil && e.stale {
		e.stale = false
		j.journal.enter(e)
	}
	return err
}

// diskFails lets many records fail that are written, and no agent die.
func diskFails(c *sim.Config) {
	c.Faults.Journal, c.Faults.Quiet, c.Faults.Often = true, false, 3
	c.Faults.Crashes, c.Faults.Reboots = false, false
}

func failsToWriteAgain(m *Manager) {
	reassemble(m, forgetsItsFailures{m.journal, m.journal}, m.keyFreed)
}

// adoptsNothing makes the manager undo what nobody is known to use before all pods have been added.
func adoptsNothing(m *Manager) {
	go func() {
		<-m.recordsRead
		m.mu.Lock()
		clear(m.adopted)
		m.mu.Unlock()
		m.dirty.AddAll(m.allVolumes())
	}()
}

// reassemble gives the manager another executor.
func reassemble(m *Manager, journal operationexecutor.Journal, keyFreed func(operationexecutor.OperationInfo)) {
	generator := operationexecutor.GeneratorOptions{Plugins: m.plugins, Mounts: m.options.Mounter, BlockMapper: m.options.BlockMapper, Journal: journal}
	m.executor = operationexecutor.NewOperationExecutor(operationexecutor.NewOperationGenerator(generator), operationexecutor.ExecutorOptions{
		Observer: m.options.Observer, Backoff: m.options.Backoff, Timeouts: m.options.Timeouts, KeyFreed: keyFreed,
	})
}

func forgetsWhatIsUnsure(m *Manager) { reassemble(m, forgetsUnsure{m.journal}, m.keyFreed) }

func marksNothingWhenAKeyIsFree(m *Manager) {
	reassemble(m, m.journal, func(o operationexecutor.OperationInfo) {
		m.land(flight{volume: o.VolumeName, pod: o.PodName, kind: o.Kind})
	})
}

func landsNothing(m *Manager) {
	reassemble(m, m.journal, func(o operationexecutor.OperationInfo) { m.dirty.Add(o.VolumeName) })
}

var simulatedBugs = map[string]struct {
	bug   simulatedBug
	rules []string
}{
	"nothing is recovered":                           {simulatedBug{dir: func(d recordDir) recordDir { return emptyDir{d} }}, []string{"S2", "S4"}},
	"records are not written":                        {simulatedBug{dir: func(d recordDir) recordDir { return forgetfulDir{d} }}, []string{"S4"}},
	"records are not removed":                        {simulatedBug{dir: func(d recordDir) recordDir { return stickyDir{d} }}, []string{"L2"}},
	"the record goes with an uncertain end":          {simulatedBug{change: forgetsWhatIsUnsure}, []string{"S4"}},
	"not all pods had been added":                    {simulatedBug{completesEarly: true}, []string{"S5"}},
	"a pod is ready while its volume is torn down":   {simulatedBug{readyTooSoon: true}, []string{"S5", "S12"}},
	"plugins are believed":                           {simulatedBug{trusts: true}, []string{"S2", "S4", "S12"}},
	"a key that is free marks nothing":               {simulatedBug{change: marksNothingWhenAKeyIsFree}, []string{"L1", "L2", "L3"}},
	"what could not be written is not written later": {simulatedBug{change: failsToWriteAgain, world: diskFails}, []string{"L2"}},
	"what was found is not adopted":                  {simulatedBug{change: adoptsNothing}, []string{"S5"}},
	"a flight never lands":                           {simulatedBug{change: landsNothing}, []string{"L1", "L3"}},
}

// TestTheSimulationFindsMistakesOfTheManager tests the simulation itself.
func TestTheSimulationFindsMistakesOfTheManager(t *testing.T) {
	for name, test := range simulatedBugs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := uint64(1); seed <= 1000; seed++ {
				s, source := simulatedSeed(seed, test.bug)
				r := s.Run(t, source)
				if r.Err == nil {
					continue
				}
				t.Logf("seed %d after %d steps: %v", seed, len(r.Steps), r.Err)
				assert.Contains(t, test.rules, r.Rule(), "seed %d", seed)
				return
			}
			t.Error("not found in 1000 seeds")
		})
	}
}
