package cache

import (
	"maps"
	"slices"

	"github.com/volumekit/volumekit/volume"
)

// maxPodErrors bounds the errors that are kept per pod.
const maxPodErrors = 10

// podError is an error of a pod and its text, which is asked once, outside of all locks.
type podError struct {
	err  error
	text string
}

// AddErrorToPod keeps an error that belongs to a pod and to no operation, such as a claim that could not be read. The
// latest ten with different texts are kept.
func (d *DesiredStateOfWorld) AddErrorToPod(podName volume.UniquePodName, err error) {
	if err == nil {
		return
	}
	added := podError{err: err, text: err.Error()}
	d.mu.Lock()
	defer d.mu.Unlock()
	errs := slices.DeleteFunc(d.errors[podName], func(e podError) bool { return e.text == added.text })
	errs = append(errs, added)
	if extra := len(errs) - maxPodErrors; extra > 0 {
		errs = slices.Delete(errs, 0, extra)
	}
	d.errors[podName] = errs
}

// PodErrors returns the errors of a pod, oldest first; a copy.
func (d *DesiredStateOfWorld) PodErrors(podName volume.UniquePodName) []error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return causes(d.errors[podName])
}

func causes(errs []podError) []error {
	var all []error
	for _, e := range errs {
		all = append(all, e.err)
	}
	return all
}

// PopPodErrors returns the errors of a pod, oldest first, and forgets them.
func (d *DesiredStateOfWorld) PopPodErrors(podName volume.UniquePodName) []error {
	d.mu.Lock()
	defer d.mu.Unlock()
	errs := causes(d.errors[podName])
	delete(d.errors, podName)
	return errs
}

// GetPodsWithErrors returns the pods that have errors, sorted.
func (d *DesiredStateOfWorld) GetPodsWithErrors() []volume.UniquePodName {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return slices.Sorted(maps.Keys(d.errors))
}
