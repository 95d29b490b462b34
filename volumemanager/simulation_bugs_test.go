package volumemanager

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/record"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/journal"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
	sim "github.com/volumekit/volumekit/volumemanager/internal/world"
)

// simulatedBug is a mistake that is planted into the manager. The zero value is none.
type simulatedBug struct {
	change         func(m *Manager)                  // before Run
	dir            func(dir journal.Dir) journal.Dir // a directory of records
	completesEarly bool                              // PodsComplete before a pod was added
	readyTooSoon   bool                              // a pod is ready while a volume is taken from it
	trusts         bool                              // plugins are believed
	blind          bool                              // no news of the node's status
	deaf           bool                              // no news of PersistentVolumes
	locksNothing   bool                              // a manager begins beside calls that another one has abandoned
	succeeds       func(m *Manager)                  // a manager that has begun in the process of another one
	stale          bool                              // the mount table shows mounts that are gone
	world          func(*sim.Config)                 // in which the mistake is likelier to show; nil: any
}

// The directories below lose what is written.
type (
	emptyDir     struct{ journal.Dir }
	forgetfulDir struct{ journal.Dir }
	stickyDir    struct{ journal.Dir }
	deafDir      struct{ journal.Dir }
	lockedDir    struct{ journal.Dir }
)

func (emptyDir) Load() ([]record.Record, []record.Damaged, error) { return nil, nil, nil }

func (forgetfulDir) Put(string, []byte) error { return nil }

func (stickyDir) Remove(string) error { return nil }

// Remove drops the error, so that the record is not removed later.
func (d deafDir) Remove(key string) error {
	_ = d.Dir.Remove(key)
	return nil
}

func (lockedDir) Close() error { return nil }

// forgetsUnsure is a journal whose record goes although it is not certain that nothing is left.
type forgetsUnsure struct{ operationexecutor.Journal }

func (j forgetsUnsure) Conclude(ctx context.Context, i operationexecutor.Intent, end operationexecutor.IntentEnd) error {
	if end == operationexecutor.IntentUncertain {
		end = operationexecutor.IntentForgotten
	}
	return j.Journal.Conclude(ctx, i, end)
}

// diskFails lets many records fail that are written, and no agent die.
func diskFails(c *sim.Config) {
	c.Faults.Journal, c.Faults.Quiet, c.Faults.Often = true, false, 3
	c.Faults.Crashes, c.Faults.Reboots = false, false
}

// adoptsNothing makes the manager tear down volumes without a known pod before all pods have been added.
func adoptsNothing(m *Manager) {
	go func() {
		select {
		case <-m.recovery.RecordsRead():
		case <-m.run.stopped: // They are in use by another manager.
			return
		}
		m.recovery.PodsComplete()
		m.reconciler.AddAll(m.view.allVolumes())
	}()
}

// reassemble gives the manager another executor.
func reassemble(m *Manager, change func(*operationexecutor.GeneratorOptions, *operationexecutor.ExecutorOptions)) {
	generator, executor := m.generatorOptions(), m.executorOptions()
	change(&generator, &executor)
	m.executor = operationexecutor.NewOperationExecutor(operationexecutor.NewOperationGenerator(generator), executor)
	m.view = newView(m)
}

// withJournal gives the manager another journal.
func withJournal(made func(m *Manager) operationexecutor.Journal) func(*Manager) {
	return func(m *Manager) {
		reassemble(m, func(g *operationexecutor.GeneratorOptions, _ *operationexecutor.ExecutorOptions) {
			g.Journal = made(m)
		})
	}
}

// whenKeysAreFree has the manager do something else when one is.
func whenKeysAreFree(do func(m *Manager, o operationexecutor.OperationInfo)) func(*Manager) {
	return func(m *Manager) {
		reassemble(m, func(_ *operationexecutor.GeneratorOptions, e *operationexecutor.ExecutorOptions) {
			e.KeyFreed = func(o operationexecutor.OperationInfo) { do(m, o) }
		})
	}
}

func hearsNothing(*Manager, operationexecutor.OperationInfo) {}

func takesOutNothing(m *Manager, o operationexecutor.OperationInfo) {
	m.reconciler.Add(podvolume.Key{Volume: o.VolumeName, Pod: o.PodName})
	m.reconciler.Add(podvolume.Key{Volume: o.VolumeName})
}

// pathsUnseen does not see what is set up at the path of a volume.
type pathsUnseen struct{ *actualState }

func (pathsUnseen) VolumesOfPodNamed(volume.UniquePodName, string, string) []v1.UniqueVolumeName {
	return nil
}

func seesNoPaths(m *Manager) { m.reconciler.Actual = pathsUnseen{m.actual} }

// ofOnePath is a world in which pods ask for other storage while they run.
func ofOnePath(c *sim.Config) {
	c.WithController, c.Nodes, c.Sick, c.Broken = false, []string{"n1"}, "", ""
	c.Volumes = []sim.Volume{{Name: "v1", Stageable: true, Inline: true, Mode: "ReadWriteMany"}}
	c.Pods = []sim.Pod{{Name: "p1", Node: "n1", Volumes: []string{"v1"}}}
}

// withReporter gives the manager another one of what is in use.
func withReporter(of func(m *Manager, r VolumesInUseReporter) VolumesInUseReporter) func(*Manager) {
	return func(m *Manager) { m.nodeStatus.Reporter = of(m, m.nodeStatus.Reporter) }
}

// The reporters below do not have the node's status say what they are told.
type (
	reportsNothing  struct{ VolumesInUseReporter }
	reportsTheWants struct {
		VolumesInUseReporter
		m *Manager
	}
	reportsOnce struct{ VolumesInUseReporter }
)

func (reportsNothing) ReportVolumesInUse(context.Context, []v1.UniqueVolumeName) error { return nil }

func (r reportsTheWants) ReportVolumesInUse(ctx context.Context, volumes []v1.UniqueVolumeName) error {
	wanted := slices.DeleteFunc(volumes, func(name v1.UniqueVolumeName) bool { return !r.m.desired.VolumeExists(name) })
	return r.VolumesInUseReporter.ReportVolumesInUse(ctx, wanted)
}

func (r reportsOnce) ReportVolumesInUse(ctx context.Context, volumes []v1.UniqueVolumeName) error {
	if err := r.VolumesInUseReporter.ReportVolumesInUse(ctx, volumes); err != nil {
		return fmt.Errorf("%w: %w", ErrReportedLater, err)
	}
	return nil
}

// lastSeen takes what was seen last for what is.
type lastSeen struct{ operationexecutor.NodeReader }

func (l lastSeen) VolumesAttached(ctx context.Context, node types.NodeName) (map[v1.UniqueVolumeName]string, error) {
	if attached, seen := l.NodeReader.(operationexecutor.NodeStatusCache).LastVolumesAttached(node); seen {
		return attached, nil
	}
	return l.NodeReader.VolumesAttached(ctx, node)
}

func believesWhatItSaw(m *Manager) {
	reassemble(m, func(g *operationexecutor.GeneratorOptions, _ *operationexecutor.ExecutorOptions) {
		g.NodeReader = lastSeen{g.NodeReader}
	})
}

// seesLate is a world in which a node sees its status late.
func seesLate(c *sim.Config) {
	ofController(c)
	c.Volumes = []sim.Volume{{Name: "v1", Attachable: true, Mode: "ReadWriteOnce"}}
	c.Pods = []sim.Pod{{Name: "p1", Node: "n1", Volumes: []string{"v1"}}}
	c.Faults, c.Often, c.Sick, c.Broken = sim.Faults{Quiet: true, Slow: "SeeStatus"}, map[string]int{"remove": 3}, "", ""
}

// oldClaims are claims that say what the control plane has made ready as what the volume has.
type oldClaims struct{ operationexecutor.ClaimStatus }

func (c oldClaims) Claim(ctx context.Context, spec *volume.Spec) (*v1.PersistentVolumeClaim, error) {
	claim, err := c.ClaimStatus.Claim(ctx, spec)
	if err == nil && claim.Status.AllocatedResources != nil {
		claim.Status.Capacity, claim.Status.AllocatedResourceStatuses = claim.Status.AllocatedResources, nil
	}
	return claim, err
}

func takesTheStorageForTheVolume(m *Manager) {
	reassemble(m, func(g *operationexecutor.GeneratorOptions, _ *operationexecutor.ExecutorOptions) {
		g.Claims = oldClaims{g.Claims}
	})
}

// ofGrowth is a world in which one volume grows.
func ofGrowth(c *sim.Config) {
	c.WithController, c.Nodes, c.Sick, c.Broken = false, []string{"n1"}, "", ""
	c.Volumes = []sim.Volume{{Name: "v1", Attachable: true, Stageable: true, Expands: true, Mode: "ReadWriteOnce"}}
	c.Pods = []sim.Pod{{Name: "p1", Node: "n1", Volumes: []string{"v1"}}}
}

// believesItsPredecessor takes what is on record of set-ups for certain, as if the one that has written it had seen them end.
func believesItsPredecessor(m *Manager) {
	for row := range m.actual.AllMountedVolumes() {
		// The state refuses one whose volume may not be staged.
		_ = m.actual.MarkVolumeAsMounted(operationexecutor.MountedVolume{
			VolumeName: row.VolumeName, PodName: row.PodName, PodUID: row.PodUID, Pod: row.Pod, VolumeSpec: row.VolumeSpec,
			OuterVolumeSpecNames: row.OuterVolumeSpecNames, MountPath: row.MountPath,
		})
	}
}

// stops is a world in which managers end while their processes live on.
func stops(c *sim.Config) { c.Faults.Stops, c.Often["stop"] = true, 3 }

// ofReuse is a world in which a restart finds volumes that may be used as they are.
func ofReuse(c *sim.Config) {
	c.WithController, c.Nodes, c.Sick, c.Broken, c.Volumes = false, []string{"n1"}, "", "", []sim.Volume{{Name: "v1", Reusable: true, Mode: "ReadWriteOnce"}}
	c.Pods = []sim.Pod{{Name: "p1", Node: "n1", Volumes: []string{"v1"}}}
	c.Faults.Crashes = true
}

// ofController is a world in which a controller attaches, and volumes come and go.
func ofController(c *sim.Config) { *c = controllerWorld(*c) }

var simulatedBugs = map[string]struct {
	bug   simulatedBug
	rules []string
}{
	"nothing is recovered":                           {simulatedBug{dir: func(d journal.Dir) journal.Dir { return emptyDir{d} }}, []string{"S2", "S4"}},
	"records are not written":                        {simulatedBug{dir: func(d journal.Dir) journal.Dir { return forgetfulDir{d} }}, []string{"S4"}},
	"records are not removed":                        {simulatedBug{dir: func(d journal.Dir) journal.Dir { return stickyDir{d} }}, []string{"L2"}},
	"the record goes with an uncertain end":          {simulatedBug{change: withJournal(func(m *Manager) operationexecutor.Journal { return forgetsUnsure{m.journal} })}, []string{"S4"}},
	"not all pods had been added":                    {simulatedBug{completesEarly: true}, []string{"S5"}},
	"a pod is ready while its volume is torn down":   {simulatedBug{readyTooSoon: true}, []string{"S5", "S12", "S13"}},
	"plugins are believed":                           {simulatedBug{trusts: true}, []string{"S2", "S4", "S12"}},
	"no worker learns that a key is free":            {simulatedBug{change: whenKeysAreFree(hearsNothing)}, []string{"L1", "L2", "L3"}},
	"what could not be written is not written later": {simulatedBug{dir: func(d journal.Dir) journal.Dir { return deafDir{d} }, world: diskFails}, []string{"L2"}},
	"what was found is not adopted":                  {simulatedBug{change: adoptsNothing}, []string{"S5"}},
	"what is in use is not reported":                 {simulatedBug{change: withReporter(func(_ *Manager, r VolumesInUseReporter) VolumesInUseReporter { return reportsNothing{r} }), world: ofController}, []string{"S3"}},
	"only what is wanted is reported":                {simulatedBug{change: withReporter(func(m *Manager, r VolumesInUseReporter) VolumesInUseReporter { return reportsTheWants{r, m} }), world: ofController}, []string{"S3"}},
	"a report that failed is not made again":         {simulatedBug{change: withReporter(func(_ *Manager, r VolumesInUseReporter) VolumesInUseReporter { return reportsOnce{r} }), world: ofController}, []string{"L1", "L2", "L3"}},
	"what was attached when it was seen is attached": {simulatedBug{change: believesWhatItSaw, world: seesLate}, []string{"S2", "S3"}},
	"the node's status is not watched":               {simulatedBug{blind: true, world: ofController}, []string{"L1", "L3"}},
	"a volume that has grown is not noticed":         {simulatedBug{deaf: true, world: ofGrowth}, []string{"L1", "S12"}},
	"what the storage has the volume has":            {simulatedBug{change: takesTheStorageForTheVolume, world: ofGrowth}, []string{"L1", "S12"}},
	"the lock is released while a call is lost":      {simulatedBug{locksNothing: true, world: stops}, []string{"S1", "S2", "S3", "S4"}},
	"the lock stays when the calls have returned":    {simulatedBug{dir: func(d journal.Dir) journal.Dir { return lockedDir{d} }, world: stops}, []string{"L4"}},
	"what was under way is taken for done":           {simulatedBug{succeeds: believesItsPredecessor, world: stops}, []string{"S2", "S12"}},
	"a mount that is gone is used after a restart":   {simulatedBug{stale: true, world: ofReuse}, []string{"S2", "S12"}},
	"other storage is set up at a path in use":       {simulatedBug{change: seesNoPaths, world: ofOnePath}, []string{"S14"}},
	"an operation that has ended is not taken out":   {simulatedBug{change: whenKeysAreFree(takesOutNothing)}, []string{"L1", "L3"}},
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
