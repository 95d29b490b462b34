package keyed

import "time"

// failures are those of one volume, by the pod and the node of their subject and then by kind.
type failures map[place]map[string]Failure

func (s Subject) place() place { return place{s.Key.Pod, s.Key.Node} }

// of returns the failure of a subject; false when there is none.
func (f failures) of(s Subject) (Failure, bool) {
	failure, ok := f[s.place()][s.Kind]
	return failure, ok
}

// set keeps the failure of a subject.
func (f failures) set(s Subject, failure Failure) {
	if f[s.place()] == nil {
		f[s.place()] = map[string]Failure{}
	}
	f[s.place()][s.Kind] = failure
}

// forget drops the failures of all subjects that at stands for: an empty pod or node of at stands for all.
func (f failures) forget(at place) {
	for subject := range f {
		if (at.pod == "" || at.pod == subject.pod) && (at.node == "" || at.node == subject.node) {
			delete(f, subject)
		}
	}
}

// dropOld drops the failures that might have been tried again before a time.
func (f failures) dropOld(before time.Time) {
	for subject, kinds := range f {
		for kind, failure := range kinds {
			if failure.Until.Before(before) {
				delete(kinds, kind)
			}
		}
		if len(kinds) == 0 {
			delete(f, subject)
		}
	}
}
