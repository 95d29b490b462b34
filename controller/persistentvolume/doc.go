// Package persistentvolume binds claims to volumes, provisions volumes for claims without one, and reclaims volumes whose
// claims are gone. It does what the persistent volume controller of Kubernetes does, on any [store.Store].
//
// # The life of a claim
//
// The controller looks at a claim whenever the claim, its volume, its class or a suitable volume changes; nothing polls. It
// binds the claim to a volume that fits: first to a volume that names the claim, otherwise to the smallest of its class that is
// large enough. If none fits and a plugin provisions for the class, the claim gets a new volume, named after the claim's UID.
// Otherwise the claim stays Pending, with an event that says why; [Controller.Why] returns the reason to programs. If the node
// of the claim's pod is known, a volume whose node affinity excludes it does not fit. A change of only the node's labels wakes
// no claim.
//
// A claim may name a data source. The plugin copies another claim's volume or restores a snapshot; a [Populator] fills a new volume for
// any other kind. Such a volume is bound only when the record of the volume says that it is full.
//
// # The life of a volume
//
// A volume is Available, Bound, then Released when its claim is gone. With the reclaim policy Retain it stays so. With Delete
// its plugin deletes the storage, and then the controller deletes the object. With Recycle its plugin deletes the content, and
// the volume is Available again. A volume that a pod uses, or that is attached to a node, stays whole until that ends. If the
// plugin reports it as in use, the controller tries again. A volume of a provisioner or a driver that is not here is left
// alone.
//
// # Protection of volumes in use
//
// Claims and volumes have the protection finalizers of Kubernetes. A deleted claim stays while pods use it, and a volume's
// object stays while it is bound. The controller makes the claims of generic ephemeral volumes for the pods in the store, and
// deletes them when their pods are gone from it.
//
// # Guarantees
//
// A bind is one transaction if the store has transactions ([store.Transactor]), with the object of a volume that was
// provisioned for the claim. Otherwise it is four writes (the volume's reference, its phase, the claim's reference, its phase);
// after a crash between any two the next controller finishes them. The UID identifies a claim: a claim that was deleted and
// made again under the same name never gets what belonged to the first. Before storage is destroyed, or a claim is called lost,
// everything that was read from memory is read again from the store. A claim whose provisioning has begun keeps a finalizer
// until its volume is in the store or its plugin reports that nothing exists. So no storage is lost if the claim is deleted or
// the process dies meanwhile.
//
// Several controllers on one store do no harm, because every write is conditional, but they do the work twice.
package persistentvolume
