package simulationtest_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/internal/outcome"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/simulationtest"
)

// bug is a mistake that is planted into the program under test, in what stands between it and the executor. The zero
// value is none.
type bug struct {
	// Each of these replaces a port of the executor.
	journal                                func(operationexecutor.Journal) operationexecutor.Journal
	mounting, unmounting, unmountingDevice func(*cache.ActualStateOfWorld) operationexecutor.ActualStateOfWorldMounterUpdater
	attaching                              func(*cache.ActualStateOfWorld) operationexecutor.ActualStateOfWorldAttacherUpdater

	blocks func(operationexecutor.BlockMapper) operationexecutor.BlockMapper

	startsEmpty           bool // nothing is recovered at the start
	takesWhatIsThere      bool // a pod that comes again gets what was set up for the one before
	tearsDownWhatIsWanted bool // what was found after a restart is torn down first
	sharesBackoff         bool // a volume that fails for one pod makes the others wait
	forgetsBackoff        bool // nothing waits after a failure
	unstagesBeside        bool // to unstage does not exclude what pods do
	freesLostKeys         bool // a call past its deadline does not hold its key
	forgetsBesideMounts   bool // a volume is forgotten while it is being mounted
	readyTooSoon          bool // a pod is ready while its volume is torn down
	neverDetaches         bool // what no pod uses is forgotten in place of being detached
	ignoresUpdates        bool // an update during a set-up is not noticed
	trusts                bool // the plugin is believed
	mountsUnreported      bool // a node uses a volume before its status says so
	controller            simulationtest.ControllerBug
}

// ofController reports whether only a world with a controller can show the bug.
func (b bug) ofController() bool {
	return b.mountsUnreported || b.controller != simulationtest.ControllerBug{}
}

// planted is what bugs remember.
type planted struct {
	until   time.Time
	other   *operationexecutor.Executor
	running []*operationexecutor.Operation
}

// waits reports whether a volume waits because another one has to.
func (b *planted) waits(a *agent) bool { return a.bug.sharesBackoff && time.Now().Before(b.until) }

func (b *planted) refused(backoff *volume.BackoffError, a *agent) {
	b.until = time.Now().Add(time.Minute)
	if a.bug.forgetsBackoff {
		a.executor.Forget(backoff.Volume)
	}
}

// kicked replaces the executor, and so all its keys, when a call was abandoned.
func (b *planted) kicked(a *agent) {
	b.running = slices.DeleteFunc(b.running, func(op *operationexecutor.Operation) bool {
		var lost *outcome.AbandonedError
		if errors.As(op.Err(), &lost) {
			a.executor = a.newExecutor()
		}
		return op.Result() != operationexecutor.Result{}
	})
}

func (b *planted) started(a *agent, op *operationexecutor.Operation) {
	if a.bug.freesLostKeys {
		b.running = append(b.running, op)
	}
}

func (a *agent) deviceExecutor() *operationexecutor.Executor {
	if !a.bug.unstagesBeside {
		return a.executor
	}
	if a.bugs.other == nil {
		a.bugs.other = a.newExecutor()
	}
	return a.bugs.other
}

func (a *agent) mounting() operationexecutor.ActualStateOfWorldMounterUpdater {
	if a.bug.ignoresUpdates {
		// It does not watch set-ups.
		return struct {
			mounterUpdater
			operationexecutor.VolumeUsers
		}{a.actual, a.actual}
	}
	return a.updater(a.bug.mounting)
}

func (a *agent) unmounting() operationexecutor.ActualStateOfWorldMounterUpdater {
	return a.updater(a.bug.unmounting)
}

func (a *agent) unmountingDevice() operationexecutor.ActualStateOfWorldMounterUpdater {
	return a.updater(a.bug.unmountingDevice)
}

func (a *agent) updater(wrap func(*cache.ActualStateOfWorld) operationexecutor.ActualStateOfWorldMounterUpdater) operationexecutor.ActualStateOfWorldMounterUpdater {
	if wrap == nil {
		return a.actual
	}
	return wrap(a.actual)
}

func (a *agent) attaching() operationexecutor.ActualStateOfWorldAttacherUpdater {
	if a.bug.attaching == nil {
		return a.actual
	}
	return a.bug.attaching(a.actual)
}

// The states below are told lies, or tell them.
type (
	state                = cache.ActualStateOfWorld
	forgetsSetUp         struct{ *state }
	forgetsStaging       struct{ *state }
	forgetsAttachment    struct{ *state }
	certainOfSetUp       struct{ *state }
	certainOfStaging     struct{ *state }
	certainOfAttachment  struct{ *state }
	takesMountsForUnsure struct{ *state }
	takesFoundForNew     struct{ *state }
	countsCertainPods    struct{ *state }
)

func (s forgetsSetUp) MarkVolumeMountAsUncertain(o operationexecutor.MountedVolume) error {
	return s.MarkVolumeAsUnmounted(o.PodName, o.VolumeName)
}

func (s forgetsStaging) MarkDeviceAsUncertain(name v1.UniqueVolumeName, _, _, _ string) error {
	return s.MarkDeviceAsUnmounted(name)
}

func (s forgetsAttachment) MarkVolumeAsUncertain(name v1.UniqueVolumeName, _ *volume.Spec, node types.NodeName) error {
	s.MarkVolumeAsDetached(name, node)
	return nil
}

func (certainOfSetUp) MarkVolumeMountAsUncertain(operationexecutor.MountedVolume) error { return nil }

func (certainOfStaging) MarkDeviceAsUncertain(v1.UniqueVolumeName, string, string, string) error {
	return nil
}

func (certainOfAttachment) MarkVolumeAsUncertain(v1.UniqueVolumeName, *volume.Spec, types.NodeName) error {
	return nil
}

func (s takesMountsForUnsure) GetVolumeMountState(name v1.UniqueVolumeName, pod volume.UniquePodName) operationexecutor.VolumeMountState {
	return min(s.state.GetVolumeMountState(name, pod), operationexecutor.VolumeMountUncertain)
}

func (takesFoundForNew) IsVolumeReconstructed(v1.UniqueVolumeName, volume.UniquePodName) bool {
	return false
}

func (s countsCertainPods) PodsOfVolume(name v1.UniqueVolumeName) []volume.UniquePodName {
	return slices.DeleteFunc(s.state.PodsOfVolume(name), func(pod volume.UniquePodName) bool {
		return s.GetVolumeMountState(name, pod) != operationexecutor.VolumeMounted
	})
}

// The journals below are wrong about time, or about what is left.
type (
	recordsAfterEffect struct{ operationexecutor.Journal }
	forgetsUnsure      struct{ operationexecutor.Journal }
	forgetsBefore      struct{ operationexecutor.Journal }
)

func (recordsAfterEffect) Intend(context.Context, operationexecutor.Intent) error { return nil }

func (j forgetsUnsure) Conclude(ctx context.Context, i operationexecutor.Intent, end operationexecutor.IntentEnd) error {
	if end == operationexecutor.IntentUncertain {
		end = operationexecutor.IntentForgotten
	}
	return j.Journal.Conclude(ctx, i, end)
}

func (j forgetsBefore) Intend(ctx context.Context, i operationexecutor.Intent) error {
	if i.Kind == operationexecutor.OpUnmount {
		return j.Conclude(ctx, i, operationexecutor.IntentForgotten)
	}
	return j.Journal.Intend(ctx, i)
}

// The block mappers below do not do what they say.
type (
	bindsNothing   struct{ operationexecutor.BlockMapper }
	unbindsNothing struct{ operationexecutor.BlockMapper }
)

func (bindsNothing) MapDevice(context.Context, operationexecutor.DeviceMapping) error { return nil }

func (unbindsNothing) UnmapDevice(context.Context, operationexecutor.DeviceMapping) error { return nil }

type (
	mounterUpdater  = operationexecutor.ActualStateOfWorldMounterUpdater
	attacherUpdater = operationexecutor.ActualStateOfWorldAttacherUpdater
	blockMapper     = operationexecutor.BlockMapper
)

// bugs are the mistakes that the simulation must find, each with the rules that it may break.
var bugs = map[string]struct {
	bug   bug
	rules []string
}{
	"a failed teardown is forgotten":               {bug{unmounting: func(s *state) mounterUpdater { return forgetsSetUp{s} }}, []string{"S2", "S4", "L2"}},
	"a failed unstaging is forgotten":              {bug{unmountingDevice: func(s *state) mounterUpdater { return forgetsStaging{s} }}, []string{"S2", "S4"}},
	"a failed attach or detach is forgotten":       {bug{attaching: func(s *state) attacherUpdater { return forgetsAttachment{s} }}, []string{"S2", "S4"}},
	"a failed set-up leaves no doubt":              {bug{mounting: func(s *state) mounterUpdater { return certainOfSetUp{s} }}, []string{"S2", "S4"}},
	"a failed staging leaves no doubt":             {bug{mounting: func(s *state) mounterUpdater { return certainOfStaging{s} }}, []string{"S2", "S4"}},
	"a failed attach or detach leaves no doubt":    {bug{attaching: func(s *state) attacherUpdater { return certainOfAttachment{s} }}, []string{"S2", "S4"}},
	"a failed remount downgrades a live mount":     {bug{mounting: func(s *state) mounterUpdater { return takesMountsForUnsure{s} }}, []string{"S2", "S4", "S5", "S12"}},
	"a final error clears what was found":          {bug{mounting: func(s *state) mounterUpdater { return takesFoundForNew{s} }}, []string{"S2", "S4", "S5"}},
	"an uncertain pod does not count":              {bug{mounting: func(s *state) mounterUpdater { return countsCertainPods{s} }}, []string{"S8"}},
	"the record comes after the effect":            {bug{journal: func(j operationexecutor.Journal) operationexecutor.Journal { return recordsAfterEffect{j} }}, []string{"S4"}},
	"the record goes with an uncertain end":        {bug{journal: func(j operationexecutor.Journal) operationexecutor.Journal { return forgetsUnsure{j} }}, []string{"S4"}},
	"the record goes before the teardown":          {bug{journal: func(j operationexecutor.Journal) operationexecutor.Journal { return forgetsBefore{j} }}, []string{"S4"}},
	"nothing is recovered":                         {bug{startsEmpty: true}, []string{"S2"}},
	"what was found is torn down":                  {bug{tearsDownWhatIsWanted: true}, []string{"S5"}},
	"a pod that comes again gets what is there":    {bug{takesWhatIsThere: true}, []string{"S13"}},
	"back-off is shared":                           {bug{sharesBackoff: true}, []string{"L3"}},
	"nothing waits after a failure":                {bug{forgetsBackoff: true}, []string{"L5"}},
	"unstaging does not exclude what pods do":      {bug{unstagesBeside: true}, []string{"S1", "S2", "S3"}},
	"the key is free when the deadline passes":     {bug{freesLostKeys: true}, []string{"S1", "S2", "S3", "L4"}},
	"a volume is forgotten while it is mounted":    {bug{forgetsBesideMounts: true}, []string{"S2", "S4"}},
	"a pod is ready while its volume is torn down": {bug{readyTooSoon: true}, []string{"S12", "S13"}},
	"what is attached is forgotten":                {bug{neverDetaches: true}, []string{"S2"}},
	"the plugin is believed":                       {bug{trusts: true}, []string{"S2", "S4", "S12"}},
	"a device is not bound":                        {bug{blocks: func(m blockMapper) blockMapper { return bindsNothing{m} }}, []string{"S2", "S12"}},
	"a bind, a link and a lock are left":           {bug{blocks: func(m blockMapper) blockMapper { return unbindsNothing{m} }}, []string{"S2", "S3", "S4"}},
	"a node uses what it has not reported":         {bug{mountsUnreported: true}, []string{"S3"}},
	"a volume is detached unasked":                 {bug{controller: simulationtest.ControllerBug{DetachesUnasked: true}}, []string{"S3"}},
	"a node is not told of a detach":               {bug{controller: simulationtest.ControllerBug{WithdrawsNothing: true}}, []string{"S3"}},
	"an uncertain node does not count":             {bug{controller: simulationtest.ControllerBug{CountsCertainNodes: true}}, []string{"S8"}},
	"an update during a set-up is lost":            {bug{ignoresUpdates: true}, []string{"L1"}},
}

// TestPlantedBugsAreFound tests the simulation itself: each mistake must be found by a tenth of the seeds of CI.
func TestPlantedBugsAreFound(t *testing.T) {
	for name, test := range bugs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := uint64(1); seed <= 2000; seed++ {
				s, source := seeded(seed, test.bug)
				if test.bug.ofController() && !s.config.WithController {
					continue
				}
				r := s.run(t, source)
				if r.Err == nil {
					continue
				}
				t.Logf("seed %d after %d steps: %v", seed, len(r.Steps), r.Err)
				assert.Contains(t, test.rules, r.Rule(), strconv.FormatUint(seed, 10))
				return
			}
			t.Error("not found in 2000 seeds")
		})
	}
}
