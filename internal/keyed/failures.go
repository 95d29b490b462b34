package keyed

import "time"

// failures are those of one volume, by the key of their subject and then by kind.
type failures struct {
	bySubject map[place]map[string]Failure
	// both is the number of subjects that have a pod and a node. Only they are looked through when all nodes of a pod are
	// forgotten, or all pods of a node; operations on volumes have the one or the other.
	both int
}

func (s Subject) place() place { return place{s.Key.Pod, s.Key.Node} }

// of returns the failure of a subject; false when there is none. It may be called on nil.
func (f *failures) of(s Subject) (Failure, bool) {
	if f == nil {
		return Failure{}, false
	}
	failure, ok := f.bySubject[s.place()][s.Kind]
	return failure, ok
}

// set keeps a failure and returns by how many there are more.
func (f *failures) set(s Subject, failure Failure) int {
	at := s.place()
	kinds := f.bySubject[at]
	if kinds == nil {
		kinds = make(map[string]Failure, 1)
		f.bySubject[at] = kinds
		f.both += at.both()
	}
	before := len(kinds)
	kinds[s.Kind] = failure
	return len(kinds) - before
}

// drop forgets the failures of one subject, of each kind, and returns how many there were.
func (f *failures) drop(at place) int {
	kinds, ok := f.bySubject[at]
	if ok {
		delete(f.bySubject, at)
		f.both -= at.both()
	}
	return len(kinds)
}

// forget forgets the failures of all subjects that at stands for, and returns how many there were.
func (f *failures) forget(at place) int {
	n := 0
	if at == (place{}) {
		for subject := range f.bySubject {
			n += f.drop(subject)
		}
		return n
	}
	n += f.drop(at)
	if at.both() == 1 || f.both == 0 {
		return n
	}
	for subject := range f.bySubject {
		if (at.pod == "" || at.pod == subject.pod) && (at.node == "" || at.node == subject.node) {
			n += f.drop(subject)
		}
	}
	return n
}

// dropOld forgets the failures that might have been tried again before a time, and returns how many there were.
func (f *failures) dropOld(before time.Time) int {
	n := 0
	for subject, kinds := range f.bySubject {
		for kind, failure := range kinds {
			if failure.Until.Before(before) {
				delete(kinds, kind)
				n++
			}
		}
		if len(kinds) == 0 {
			f.drop(subject)
		}
	}
	return n
}

func (p place) both() int {
	if p.pod != "" && p.node != "" {
		return 1
	}
	return 0
}
