// Package expand makes the storage behind claims larger that ask for more than they have. It does what Kubernetes 1.36's
// controller and resizer do for recoverable expansion, on any [store.Store].
//
// # The life of an expansion
//
// A bound claim that asks for more than its status says it has is expanded by the plugin of its volume, when its storage class
// allows that. What is about to be done stands in the claim's status before the plugin is called (allocatedResources,
// allocatedResourceStatuses), so that the next controller goes on from there. When the storage has its size, so has the
// PersistentVolume; where a filesystem has to grow, too, the status says NodeResizePending, and the volume manager of the node that
// has the volume, or has it next, does the rest. Otherwise the claim has its size.
//
// # What cannot be
//
// A size that can never be had is called infeasible in the status, with the reason as a condition and an event. It is tried
// again when the claim asks for another size, at once, and otherwise after the wait that [Options].Backoff names, since somebody
// may have made room. A claim may ask for less than what cannot be had, but not for less than it has: it then gets that. What fails in
// another way is tried again with the executor's back-off. A claim of a class that does not allow expansion, or of a driver that
// is none of the plugins here, waits until that changes, with one event.
//
// Nothing polls: claims, volumes and classes that change wake what they concern.
package expand
