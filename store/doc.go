// Package store is the interface to the place where claims, volumes, classes, attachments, nodes and pods are kept.
//
// # Words
//
// An object is one of the k8s.io/api types that [Kinds] lists. Its [Key] is its kind, namespace and name. A [Store] gives a
// version to every write. Versions are text that only the store can interpret: pass them back, never make them. A watch is the
// list of all writes after a version, in order.
//
// # How it is used
//
// Read with [Get] and [ListOf], write with [Create], [Update] and [Delete]. All are typed and work on every Store:
//
//	volume, err := store.Get[*v1.PersistentVolume](ctx, s, "", "disk-1")
//	...
//	volume.Status.Phase = v1.VolumeReleased
//	volume, err = store.Update(ctx, s, volume) // errors.Is(err, store.ErrConflict): read it again
//
// To follow a kind, list it, watch from the version of the list, and list again when the watch is closed and cannot be resumed
// ([ErrCompacted]).
//
// # Guarantees
//
// The promises of Store hold for every implementation, and the suite in storetest checks them. In addition, objects that are
// read have their kind and apiVersion. An update cannot change the UID, the creation time and the deletion time of an object.
// Names are those that Kubernetes allows, and strings are UTF-8. The store sets no defaults: a field that Kubernetes would fill
// in stays empty, and its readers treat empty as Kubernetes' default.
//
// Two abilities are optional. A [Transactor] writes several objects at once or none. A [Lessor] grants leases, with tokens that
// distinguish an earlier holder from a later one. [LessorOf] finds or makes the Lessor of any store, and [HoldLease] works
// under a lease.
//
// [Memory] keeps everything in memory, for one process and for tests. [Disk] keeps it in one directory, for one process and
// across restarts. [Decode] and [Load] fill a store from manifests; [Apply] does it again when they change. [Getter] gives
// config maps and secrets to plugins, and [WaitForNone] waits until objects are gone.
package store
