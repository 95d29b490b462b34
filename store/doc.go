// Package store is the port to where claims, volumes, classes, attachments, nodes and pods live.
//
// # Words
//
// An object is one of the k8s.io/api types that [Kinds] lists; its [Key] is its kind, namespace and name. A version is
// what a [Store] gives to every write. Versions are text that only the store can read: pass them back, never make them.
// A watch is the list of all writes after a version, in order.
//
// # How it is used
//
// Read with [Get] and [ListOf], write with [Create], [Update] and [Delete]; all are typed and work on every Store:
//
//	volume, err := store.Get[*v1.PersistentVolume](ctx, s, "", "disk-1")
//	...
//	volume.Status.Phase = v1.VolumeReleased
//	volume, err = store.Update(ctx, s, volume) // errors.Is(err, store.ErrConflict): read it again
//
// Whoever follows a kind lists it, watches from the version of the list, and lists again when the watch is closed and
// cannot be resumed ([ErrCompacted]).
//
// # Guarantees
//
// What Store promises holds for every implementation and is proven by the suite in storetest. Beyond that: objects that
// come out carry their kind and apiVersion; the UID, the creation time and the deletion time of an object cannot be
// changed by an update; names are those that Kubernetes allows, and strings are UTF-8. Nothing is defaulted: a field that Kubernetes would
// fill in stays empty, and its readers treat empty as the default of Kubernetes.
//
// Two abilities are optional. A [Transactor] writes several objects at once or none. A [Lessor] gives out leases, with tokens that
// tell a late holder from a later one; [LessorOf] finds or makes the one of any store, and [HoldLease] works under one.
//
// [Memory] keeps everything in memory, for one process and for tests; [Disk] keeps it in one directory, for one process and
// through its end. [Decode] and [Load] fill a store from manifests; [Apply] does it again when they change. [Getter] gives config
// maps and secrets to plugins, and [WaitForNone] waits until objects are gone.
package store
