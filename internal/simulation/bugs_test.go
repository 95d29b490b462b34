package simulation_test

import (
	"context"
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/internal/simulation/world"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// bug is a mistake that is planted into the program under test, by what stands between it and the executor. The zero
// value is none.
type bug struct {
	// Each of these replaces a port of the executor.
	journal                                func(operationexecutor.Journal) operationexecutor.Journal
	mounting, unmounting, unmountingDevice func(*cache.ActualStateOfWorld) operationexecutor.ActualStateOfWorldMounterUpdater
	attaching                              func(*cache.ActualStateOfWorld) operationexecutor.ActualStateOfWorldAttacherUpdater

	startsEmpty           bool // nothing is recovered at the start
	tearsDownWhatIsWanted bool // what was found after a restart is torn down first
	sharesBackoff         bool // a volume that fails for one pod makes the others wait
	forgetsBackoff        bool // nothing waits after a failure
	unstagesBeside        bool // to unstage does not exclude what pods do
	freesLostKeys         bool // a call past its deadline does not hold its key
}

// planted is what bugs remember.
type planted struct {
	until time.Time
	other *operationexecutor.Executor
}

func (b *planted) waits(a *agent, row operationexecutor.VolumeToMount) bool {
	return a.bug.sharesBackoff && time.Now().Before(b.until)
}

func (b *planted) began(a *agent, _ operationexecutor.VolumeToMount, err error) {
	var backoff *volume.BackoffError
	if errors.As(err, &backoff) {
		b.until = time.Now().Add(time.Hour)
	}
}

func (b *planted) started(a *agent, op *operationexecutor.Operation) {
	if !a.bug.freesLostKeys {
		return
	}
	go func() {
		select {
		case <-op.Done():
		case <-a.p.Context().Done():
			return
		}
		var lost *operationexecutor.LostError
		if errors.As(op.Err(), &lost) {
			a.executor = a.newExecutor()
		}
	}()
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
	if a.bug.mounting != nil {
		return a.bug.mounting(a.actual)
	}
	return a.actual
}

func (a *agent) unmounting() operationexecutor.ActualStateOfWorldMounterUpdater {
	if a.bug.unmounting != nil {
		return a.bug.unmounting(a.actual)
	}
	return a.actual
}

func (a *agent) unmountingDevice() operationexecutor.ActualStateOfWorldMounterUpdater {
	if a.bug.unmountingDevice != nil {
		return a.bug.unmountingDevice(a.actual)
	}
	return a.actual
}

func (a *agent) attaching() operationexecutor.ActualStateOfWorldAttacherUpdater {
	if a.bug.attaching != nil {
		return a.bug.attaching(a.actual)
	}
	return a.actual
}

var _ = []any{context.Background, v1.UniqueVolumeName(""), world.OK}
