package keyed

import "time"

// failures are the failures of one volume, by the pod and node of the operation, and then by kind.
type failures map[podAndNode]map[string]Failure

func (s Operation) podAndNode() podAndNode { return podAndNode{s.Key.Pod, s.Key.Node} }

// of returns the failure of an operation, and false if there is none.
func (f failures) of(s Operation) (Failure, bool) {
	failure, ok := f[s.podAndNode()][s.Kind]
	return failure, ok
}

// set stores the failure of an operation.
func (f failures) set(s Operation, failure Failure) {
	if f[s.podAndNode()] == nil {
		f[s.podAndNode()] = map[string]Failure{}
	}
	f[s.podAndNode()][s.Kind] = failure
}

// forget drops the failures of all operations that at includes. An empty pod or node in at includes all of them.
func (f failures) forget(at podAndNode) {
	for operation := range f {
		if (at.pod == "" || at.pod == operation.pod) && (at.node == "" || at.node == operation.node) {
			delete(f, operation)
		}
	}
}

// dropOld drops the failures whose wait ended before a time.
func (f failures) dropOld(before time.Time) {
	for operation, kinds := range f {
		for kind, failure := range kinds {
			if failure.Until.Before(before) {
				delete(kinds, kind)
			}
		}
		if len(kinds) == 0 {
			delete(f, operation)
		}
	}
}
