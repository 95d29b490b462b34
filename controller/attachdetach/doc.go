// Package attachdetach decides which node of a cluster has which volume, and attaches and detaches them. It does what the
// attach/detach controller of Kubernetes does, on any [store.Store].
//
// # How it works
//
// The desired state is that a pod with a node has its volumes there. The actual state comes from operations that have ended and
// from the reports of nodes. A change of either marks the attachment, one volume on one node, as dirty. A planner takes dirty
// attachments from a queue and decides each by a pure function. Nothing polls except the verification of attachments, because
// no storage has an event for that.
//
// # What the controller and the nodes write
//
// The controller and the node's volume manager write one list each into the status of the Node object. The controller writes
// volumesAttached. A volume is on that list when it is certainly attached, and is removed before it is detached. The node
// writes volumesInUse. A volume is on that list from before the node begins to use it until its device is free. The controller
// detaches a volume only if the node's status, read after the volume left the first list, does not have it on the second.
//
// # At the start
//
// The controller confirms the attachments on record: it queries plugins for many attachments at once, and does not attach again
// what they confirm. It attaches again what a plugin denies or cannot answer. If this controller is a leader, it also attaches
// again each volume of a plugin that fences calls ([volume.FencingVolumePlugin]), because its storage must see the new token.
//
// # Guarantees
//
// A volume for only one node is attached to one node at a time. A node to which it may be attached, or to which it is being
// attached, counts as one that has it. The pods that wait for it elsewhere get one event, which names its holders.
//
// A VolumeAttachment of another controller, for any attacher, counts. While it exists, an exclusive volume is attached to no
// other node than the one that it names, and the volume is not detached from that node ([ForeignAttachmentError]). The
// controller leaves the object alone.
//
// The controller takes a volume in use from a node by force only in two cases. Either no pod needs the volume there and the
// node reports "not ready", both without a break for [Options].MaxWaitForUnmount. Or the node has the taint
// v1.TaintNodeOutOfService, by which an operator or the orchestrator says that the node is fenced: that no process on it can
// write any more. A node that is ready, or that does not report its condition, loses nothing, however long that lasts. Every
// forced detach is counted by its reason, logged, and an event of the node.
//
// A deleted Node object proves nothing: the machine may still run, and so may its pods. Their volumes stay desired while the
// pods' objects exist. Without a Node object nothing is attached to the node and nothing detached from it. A volume there that
// no pod needs any more is [ErrNodeMissing] in the status and gets an event. An operator who knows that nothing on the machine
// can write makes a Node object of that name with the taint.
//
// A Node object that was made again, with another UID, begins with an empty list of volumes in use. Earlier attachments count
// as in use until the node has listed any volume under the new UID, or has signed the empty list (store.AnnVolumesInUseOf), as
// the volume manager does. That annotation also detects a list that another program has emptied, for example by writing a whole
// status of its own: the node's earlier report counts until the node reports again.
//
// Intent before effect. Before a volume is attached, a VolumeAttachment object records that. It is removed when the volume is
// known to be detached. From these objects and from the status of the nodes, a controller that starts knows what may be
// attached where. It treats each attachment as uncertain until its plugin has confirmed it.
//
// An attachment costs two writes of the store, that of the intent and that of its end, and no read. If the store has
// transactions ([store.Transactor]), the first write succeeds only while the PersistentVolume is as it was last seen; otherwise
// the PersistentVolume is read.
//
// The UID identifies an object: a pod that is made again under an old name inherits nothing, and the record of what a node uses
// does not pass to another node of its name.
//
// The name of an exclusive volume's VolumeAttachment depends only on the volume, so the store itself refuses a second node,
// also if two controllers run on one store. They would still disturb each other: elect a leader.
package attachdetach
