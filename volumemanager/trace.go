package volumemanager

// trace is what has been on record at any time from the start of the manager until orphans were looked for. What was on record
// is no orphan, also when it was torn down meanwhile.
type trace struct {
	paths   map[string]struct{}
	devices recordedDevices
}

func newTrace() *trace {
	return &trace{paths: make(map[string]struct{}), devices: newRecordedDevices()}
}

// add enters a record. A nil trace takes nothing in.
func (t *trace) add(r volumeRecord) {
	if t == nil {
		return
	}
	for path := range r.paths() {
		t.paths[path] = struct{}{}
	}
	t.devices.add(r)
}

// endTrace returns what has been on record since the start, and ends that.
func (j *journal) endTrace() trace {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.trace == nil {
		return *newTrace()
	}
	ended := *j.trace
	j.trace = nil
	return ended
}
