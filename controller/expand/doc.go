// Package expand expands the storage of claims that request more than they have. It does what Kubernetes 1.36's controller and
// resizer do for recoverable expansion, on any [store.Store].
//
// # The life of an expansion
//
// A bound claim may request more than its status says it has. Then the plugin of its volume expands the storage, if its storage
// class allows that. Before the plugin is called, the claim's status records the step (allocatedResources,
// allocatedResourceStatuses), so the next controller continues there. When the storage has its size, so has the
// PersistentVolume. If a filesystem must be expanded too, the status says NodeResizePending, and the volume manager of the node
// that has the volume, or has it next, does the rest. Otherwise the claim has its size.
//
// # Infeasible sizes
//
// A size that is impossible is infeasible in the status, with the reason as a condition and an event. If the claim requests
// another size, that is tried at once. Otherwise the size is tried again after the wait of [Options].Backoff, because there may
// be room by then. A claim may request less than an infeasible size, but not less than it has; it then gets that. Any other
// failure is tried again with the executor's back-off. A claim whose class does not allow expansion, or whose driver is no
// plugin here, waits until that changes, with one event.
//
// Nothing polls: a change of a claim, volume or class wakes the claims that it concerns.
package expand
