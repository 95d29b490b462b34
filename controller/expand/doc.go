// Package expand expands the storage of claims that request more than they have, and gives it the attributes of the
// VolumeAttributesClass that they name. It does what Kubernetes 1.36's controller and resizer do for recoverable expansion, and
// what the resizer of 1.34 does for modification, on any [store.Store].
//
// # The life of an expansion
//
// A bound claim may request more than its status says it has. Then the plugin of its volume expands the storage, if its storage
// class allows that. Before the plugin is called, the claim's status records the step (allocatedResources,
// allocatedResourceStatuses), so the next controller continues there. When the storage has its size, so has the
// PersistentVolume. If a filesystem must be expanded too, the status says NodeResizePending, and the volume manager of the node
// that has the volume, or has it next, does the rest. Otherwise the claim has its size.
//
// # The life of a modification
//
// A bound claim may name another VolumeAttributesClass than its status says it has (currentVolumeAttributesClassName). Then the
// plugin of its volume gets the parameters of the class, also while pods use the volume ([volume.ModifiableVolumePlugin]).
// Before the plugin is called, the claim's status records the class and the step (modifyVolumeStatus). When the storage has
// the attributes, the PersistentVolume gets the name of the class, and then the claim's status. A class that does not exist is
// Pending until it does. A class of another driver is infeasible.
//
// A claim that names another class meanwhile gets that one, or its former class, once it is certain what the storage has: if a
// call may have taken effect, it is repeated until it succeeds or has certainly changed nothing. So the attributes of two
// classes are never mixed up.
//
// # Two changes of one volume
//
// Never run at the same time: an operation has the key of the whole volume. Nor does one begin while the other may still have an
// effect, because its call was cut off or the process died: that one is finished first. A change that has certainly failed
// does not keep the other from its turn.
//
// # What is infeasible
//
// A size or a class that is impossible is infeasible in the status, with the reason as a condition and an event. If the claim
// requests another size, or names another class, that is tried at once. Otherwise it is tried again after the wait of
// [Options].Backoff, because it may be possible by then. A claim may request less than an infeasible size, but not less than it
// has; it then gets that. Any other failure is tried again with the executor's back-off. A claim whose storage class does not
// allow expansion, or whose driver is no plugin here, or none that can modify, waits until that changes, with one event.
//
// Nothing polls: a change of a claim, volume or class wakes the claims that it concerns.
package expand
