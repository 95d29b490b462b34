// Package persistentvolume binds claims to volumes, makes volumes for claims that find none, and gets rid of volumes
// whose claims are gone. It does what the persistent volume controller of Kubernetes does, on any [store.Store].
//
// # The life of a claim
//
// A claim is looked at whenever it, its volume, its class or a volume that it could have changes; nothing polls. One that
// fits a volume is bound to it: first a volume that names the claim, else the smallest of its class that is large enough.
// One that fits none and has a class with a provisioner among the plugins gets a new volume, named after the claim's
// UID. One that can have neither stays Pending, with an event that says why; [Controller.Why] says it to programs. Where
// the node of the claim's pod is known, a volume whose node affinity excludes it does not fit; a change of the node's
// labels alone wakes no claim.
//
// # The life of a volume
//
// Available, Bound, then Released when its claim is gone: reclaim policy Retain leaves it there, Delete lets its plugin
// delete the storage and then deletes the object, Recycle lets it delete what is in the storage and makes the volume
// Available again. A volume that a pod uses, or that is attached to a node, is left whole until it is not, and one that its
// plugin calls in use is tried again. One that belongs to a provisioner or a driver that is not here is left alone.
//
// # What is in use stays
//
// Claims and volumes have the protection finalizers of Kubernetes: a claim that is deleted stays while pods use it, the object
// of a volume while it is bound. The claims of generic ephemeral volumes are made here for the pods in the store, and deleted
// when their pods are gone from it.
//
// # Guarantees
//
// A bind is one transaction where the store has them ([store.Transactor]), the object of a volume that was made for the claim
// included. Without, it is four writes (the volume's reference, its phase, the claim's reference, its phase); after a crash
// between any two the next controller finishes them. A claim is its UID: a claim that was deleted and made again under the same name
// never gets what belonged to the first. Everything that is read from memory before storage is destroyed, or a claim is
// called lost, is read again from the store. A claim whose provisioning has begun keeps a finalizer until its volume is
// in the store or its plugin says that nothing is there, so that no storage is forgotten when the claim is deleted or the
// process dies in the meantime.
//
// Several controllers on one store do no harm, since every write is conditional, but do the work twice.
package persistentvolume
