package reconciler

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
	"github.com/volumekit/volumekit/volumemanager/internal/retry"
)

// Failure is why an operation has to wait.
type Failure struct {
	// Err is the cause, Attempts how often it failed in a row; zero when that was not counted.
	Err      error
	Attempts int
	// Until is when it is tried again; zero when it waits for something else.
	Until time.Time
}

// IsOver reports whether the operation need not wait any more. One that waits for something else never does.
func (f Failure) IsOver() bool { return !f.Until.IsZero() && !time.Now().Before(f.Until) }

// failures says why operations did not begin.
type failures struct {
	// of are those by volume and pod; no pod: of the volume as a whole.
	of map[v1.UniqueVolumeName]map[volume.UniquePodName]Failure
	// forgetting are those of volumes of which nothing is left, and that the actual state did not forget.
	forgetting map[v1.UniqueVolumeName]Failure
}

func newFailures() failures {
	return failures{
		of:         make(map[v1.UniqueVolumeName]map[volume.UniquePodName]Failure),
		forgetting: make(map[v1.UniqueVolumeName]Failure),
	}
}

func (s *failures) set(h podvolume.Key, f Failure) {
	of := s.of[h.Volume]
	if of == nil {
		of = make(map[volume.UniquePodName]Failure, 1)
		s.of[h.Volume] = of
	}
	of[h.Pod] = f
}

// note keeps why an operation failed until the next plan says when it is tried again.
func (s *failures) note(h podvolume.Key, err error) {
	if _, known := s.of[h.Volume][h.Pod]; !known && err != nil {
		s.set(h, Failure{Err: err})
	}
}

// keep drops the failures of a volume but for those that are needed.
func (s *failures) keep(name v1.UniqueVolumeName, isNeeded func(pod volume.UniquePodName) bool) {
	of := s.of[name]
	for pod := range of {
		if !isNeeded(pod) {
			delete(of, pod)
		}
	}
	if len(of) == 0 {
		delete(s.of, name)
	}
}

// fail keeps why an operation for a pod, or on the volume as a whole, has to wait.
func (r *Reconciler) fail(h podvolume.Key, f Failure) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures.set(h, f)
}

// noteWaits keeps why pods have to wait that want a volume in another way, and drops the failures of those that need nothing now. What
// is tried again shows why it failed before, also while it is tried.
func (r *Reconciler) noteWaits(v *view) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for pod, err := range v.waits {
		r.failures.set(podvolume.Key{Volume: v.name, Pod: pod}, Failure{Err: err})
	}
	if len(r.failures.of[v.name]) == 0 {
		return
	}
	needed := make(map[volume.UniquePodName]bool, len(v.actions))
	for _, a := range v.actions {
		needed[a.pod] = true
	}
	r.failures.keep(v.name, func(pod volume.UniquePodName) bool {
		return v.pod != "" && v.pod != pod || needed[pod] || v.isBusyWith(pod)
	})
}

// isBusyWith reports whether an operation for a pod runs, or on the volume as a whole, or whether the pod waits for others.
func (v *view) isBusyWith(pod volume.UniquePodName) bool {
	i := v.index(pod)
	return v.inputs.pending || i >= 0 && v.inputs.pods[i].pending || v.waits[pod] != nil
}

// Forgot notes whether the actual state forgot a volume of which nothing is left. When it did not, the two disagree about
// what is left, and what was done must not be done again at once.
func (r *Reconciler) Forgot(name v1.UniqueVolumeName, err error) {
	if err == nil {
		r.Records.Forget(name)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		delete(r.failures.forgetting, name)
		return
	}
	attempts := r.failures.forgetting[name].Attempts + 1
	err = fmt.Errorf("nothing is left of volume %q, but it cannot be forgotten: %w", name, err)
	r.failures.forgetting[name] = Failure{Err: err, Attempts: attempts, Until: retry.At(attempts)}
}

// mustWait returns why the last step of a volume has to wait. Any other step ends that.
func (r *Reconciler) mustWait(name v1.UniqueVolumeName, next verb) (Failure, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, ok := r.failures.forgetting[name]
	switch {
	case !ok:
		return f, false
	case next != verbDetach && next != verbForget:
		delete(r.failures.forgetting, name)
		return f, false
	}
	return f, !f.IsOver()
}
