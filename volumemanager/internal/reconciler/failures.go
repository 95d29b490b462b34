package reconciler

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/podvolume"
	"github.com/volumekit/volumekit/volumemanager/internal/retry"
)

// Failure is the reason why an operation has to wait.
type Failure struct {
	// Err is the cause. Attempts is how often the operation has failed in a row; zero if that was not counted.
	Err      error
	Attempts int
	// Until is when the operation is tried again; zero if it waits for something other than time.
	Until time.Time
}

// IsOver reports whether the time of the wait has passed. It is always false if the operation waits for something else.
func (f Failure) IsOver() bool { return !f.Until.IsZero() && !time.Now().Before(f.Until) }

// failures holds the reasons why operations have not begun.
type failures struct {
	// of holds the failures by volume and pod. The empty pod stands for the volume as a whole.
	of map[v1.UniqueVolumeName]map[volume.UniquePodName]Failure
	// forgetting holds the volumes of which nothing is left, but which the actual state could not forget.
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

// note keeps the error of a failed operation. The next plan replaces it, and sets when the operation is tried again.
func (s *failures) note(h podvolume.Key, err error) {
	if _, known := s.of[h.Volume][h.Pod]; !known && err != nil {
		s.set(h, Failure{Err: err})
	}
}

// keep drops a volume's failures for all pods but those that isNeeded names.
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

// fail stores the reason why an operation has to wait, for a pod or for the volume as a whole, and notifies the
// subscribers: they may have read the state since the plan was announced.
func (r *Reconciler) fail(h podvolume.Key, f Failure) {
	r.mu.Lock()
	r.failures.set(h, f)
	r.mu.Unlock()
	r.Changes.Publish(topicOf(h))
}

// noteWaits stores the reasons of pods that wait because they need the volume in another form than it has now. It drops
// the failures of pods that need no action. While an operation is retried, its earlier failure stays visible.
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

// isBusyWith reports whether an operation runs for a pod or on the volume as a whole, or whether the pod waits for other
// pods.
func (v *view) isBusyWith(pod volume.UniquePodName) bool {
	i := v.index(pod)
	return v.inputs.pending || i >= 0 && v.inputs.pods[i].pending || v.waits[pod] != nil
}

// Forgot notes whether the actual state could forget a volume of which nothing is left. If it could not, the actual state
// and the plan disagree; the last step is then repeated only after a backoff.
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

// mustWait returns the reason why the last step of a volume, detach or forget, has to wait. Any other step ends that wait.
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
