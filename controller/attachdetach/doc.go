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
// # What the nodes are told, and what they say
//
// Two lists in the status of the Node object are the exchange with the node's volume manager. volumesAttached is written here: a
// volume is on it when it is attached for certain, and is taken off before it is detached. volumesInUse is written by the
// node: a volume is on it from before the node begins to use it until its device is free. A volume is detached when the node's
// status, read after it was taken off the first list, does not have it on the second.
//
// # Guarantees
//
// A volume that one node alone may have is attached to one node at a time; one to which it may be attached counts as one that
// has it, and so does one to which it is being attached. The pods that wait for it elsewhere are told once, by whom it is held.
//
// A volume that a node uses is taken from it by force only when the node is not ready and [Options].MaxWaitForUnmount has
// passed since nobody wants the volume there, or when the node has the taint [TaintOutOfService], by which an operator or the
// orchestrator says that the node is fenced off: that no process on it can write any more. A node that is ready loses
// nothing, however long that takes. Every forced detach is counted by its reason, told by an event and logged.
//
// Intent before effect. Before a volume is attached there is a VolumeAttachment object that says so; it goes when the volume is
// known to be detached. A controller that starts knows from these and from the status of the nodes what may be attached where,
// and holds each for uncertain until its plugin has confirmed it.
//
// An object is its UID: a node or a pod that is made again under an old name inherits nothing.
//
// Two controllers on one store may attach one exclusive volume to two nodes: elect one.
package attachdetach
