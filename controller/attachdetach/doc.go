// Package attachdetach decides which node of a cluster has which volume, and attaches and detaches them. It does what the
// attach/detach controller of Kubernetes does, on any [store.Store].
//
// # How it moves
//
// A pod that has a node wants its volumes there: that is the desired state. Operations that have ended and what nodes say of
// themselves are the actual state. Whatever changes either marks the attachment, one volume on one node, as dirty; a planner
// takes dirty attachments from a queue and decides each by a pure function. Nothing polls but the verification that volumes
// still are attached, for which no storage has an event.
//
// # What the controller and the nodes write
//
// The controller and the node's volume manager write one list each into the status of the Node object. The controller writes
// volumesAttached: a volume is on it when it is attached for certain, and is taken off before it is detached. The node writes
// volumesInUse: a volume is on it from before the node begins to use it until its device is free. A volume is detached when the node's
// status, read after it was taken off the first list, does not have it on the second.
//
// # When it starts
//
// What is on record as attached is confirmed: plugins are asked about many attachments at once, and what is there is not attached
// again. What a plugin says is not there, or cannot answer, is attached again, and so is each volume of a plugin that fences calls
// ([volume.FencingVolumePlugin]) when this controller is a leader: its storage must see the new token.
//
// # Guarantees
//
// A volume that one node alone may have is attached to one node at a time; one to which it may be attached counts as one that
// has it, and so does one to which it is being attached. The pods that wait for it elsewhere get one event, which names its holders.
//
// A VolumeAttachment that others made, for whatever attacher, counts: a volume that one node alone may have is attached to no
// other node than the one that it names, and the volume is not detached from that node, while it is there ([ForeignAttachmentError]).
// The object itself is left alone.
//
// A volume that a node uses is taken from it by force only when no pod wants the volume there and the node has said that it is
// not ready, both without a break for [Options].MaxWaitForUnmount, or when the node has the taint v1.TaintNodeOutOfService, by which
// an operator or the orchestrator says that the node is fenced off: that no process on it can write any more. A node that is
// ready, or that does not say how it is, loses nothing, however long that takes. Every forced detach is counted by its reason,
// logged, and an event of the node.
//
// A Node object that is deleted proves nothing: the machine may go on, and so may its pods. Their volumes stay wanted while the
// pods' objects are there. Without a Node object nothing is attached to the node and nothing detached from it; what no pod wants
// there any more is [ErrNodeMissing] in the status and an event of the volume. An operator who knows that nothing on the machine
// can write makes a Node object of that name with the taint. A Node object that was made again, with another UID, has an empty list
// of volumes in use by itself: what was attached before counts as in use until the node has listed any volume under the new UID, or
// has signed the empty list (store.AnnVolumesInUseOf), as the volume manager does. A list that somebody else has emptied, as whoever
// writes a whole status of his own, is known by that annotation: what the node said before counts until it has said it again.
//
// Intent before effect. Before a volume is attached there is a VolumeAttachment object that says so; it goes when the volume is
// known to be detached. A controller that starts knows from these and from the status of the nodes what may be attached where,
// and holds each for uncertain until its plugin has confirmed it.
//
// An attachment costs two writes of the store, that of the intent and that of its end, and no read: where the store has transactions
// ([store.Transactor]), the first is made only while the PersistentVolume is as it was last seen; otherwise the PersistentVolume is read.
//
// An object is its UID: a pod that is made again under an old name inherits nothing, and a node no belief of what it uses.
//
// The VolumeAttachment of an exclusive volume has a name that the volume alone determines: the store itself refuses a second node,
// also when two controllers run on one store. They would still disturb each other: elect one.
package attachdetach
