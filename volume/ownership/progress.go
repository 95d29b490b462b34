package ownership

import (
	"context"
	"path/filepath"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
)

// When the first and each later report of long work is made, as by kubelet 1.36.
const (
	firstReport = 30 * time.Second
	nextReport  = time.Minute
)

// watch reports progress until done is closed or ctx ends.
func (w *work) watch(ctx context.Context, done <-chan struct{}) {
	began := time.Now()
	timer := time.NewTimer(firstReport)
	defer timer.Stop()
	for words := 0; ; words++ {
		select {
		case <-done:
			return
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		timer.Reset(nextReport)
		w.reportProgress(Progress{Dir: w.dir, Elapsed: time.Since(began), Counts: w.counts()}, words == 0)
	}
}

//nolint:revive // The two messages differ in whether it is the first.
func (w *work) reportProgress(p Progress, first bool) {
	if w.options.Progress != nil {
		w.options.Progress(p)
	}
	if w.options.Events == nil || w.options.Pod == nil {
		return
	}
	pod, dir, elapsed := w.options.Pod, w.shortDir(), p.Elapsed.Round(time.Second)
	if first {
		w.options.Events.Eventf(pod, v1.EventTypeWarning, eventReason,
			"giving the volume %s to group %d takes longer than %v, %d files until now; consider fsGroupChangePolicy %s",
			dir, *w.options.Group, elapsed, p.Visited, v1.FSGroupChangeOnRootMismatch)
		return
	}
	w.options.Events.Eventf(pod, v1.EventTypeWarning, eventReason,
		"giving the volume %s to group %d has taken %v, %d files until now", dir, *w.options.Group, elapsed, p.Visited)
}

// shortDir is the root without what a pod's user need not know of the node: from the UID of the pod on, or its last
// element.
func (w *work) shortDir() string {
	elements := strings.Split(filepath.Clean(w.dir), string(filepath.Separator))
	for i, element := range elements {
		if element != "" && element == string(w.options.Pod.UID) {
			return filepath.Join(elements[i:]...)
		}
	}
	return elements[len(elements)-1]
}
