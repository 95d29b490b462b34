package cache

import (
	"slices"

	"github.com/volumekit/volumekit/volume"
)

// maxPodErrors bounds the errors that are kept per pod.
const maxPodErrors = 10

// AddErrorToPod keeps an error that belongs to a pod and to no operation, such as a claim that could not be read. The
// latest ten with different texts are kept.
func (d *DesiredStateOfWorld) AddErrorToPod(podName volume.UniquePodName, err error) {
	if err == nil {
		return
	}
	added := podError{err: err, text: err.Error()}
	d.mu.Lock()
	defer d.mu.Unlock()
	pod := d.pod(podName)
	pod.errors = slices.DeleteFunc(pod.errors, func(e podError) bool { return e.text == added.text })
	pod.errors = append(pod.errors, added)
	if extra := len(pod.errors) - maxPodErrors; extra > 0 {
		pod.errors = slices.Delete(pod.errors, 0, extra)
	}
	d.pods[podName] = pod
}

// PodErrors returns the errors of a pod, oldest first; a copy.
func (d *DesiredStateOfWorld) PodErrors(podName volume.UniquePodName) []error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if pod := d.pods[podName]; pod != nil {
		return causes(pod.errors)
	}
	return nil
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
	pod := d.pods[podName]
	if pod == nil {
		return nil
	}
	errs := causes(pod.errors)
	pod.errors = nil
	if pod.empty() {
		delete(d.pods, podName)
	}
	return errs
}

// GetPodsWithErrors returns the pods that have errors, sorted.
func (d *DesiredStateOfWorld) GetPodsWithErrors() []volume.UniquePodName {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.sortedPods(func(pod *wantingPod) bool { return len(pod.errors) > 0 })
}
