// Package cluster holds what is wanted and what is known of the attachments of volumes to the nodes of a cluster.
//
// # Words
//
// [DesiredStateOfWorld] says which volumes should be attached to which nodes, and for which pods. [ActualStateOfWorld] says
// which are, or may be. It keeps, for each volume and node: the spec, the device path, whether the attachment is uncertain,
// whether the node's report lists it, whether the node says that it uses it, and since when a detach is requested. The
// report is the list of attached volumes that the node's status must have. A node is identified by its UID: the same name
// with another UID is another node.
//
// # Guarantees
//
// An attachment changes its state by a table of legal transitions; a transition that the table refuses returns an error and changes
// nothing.
//
// A volume that only one node may have is given to only one. An attachment that exists, may exist or is about to be made
// counts. BeginAttach checks that, and whether the node has room, in one step. A node's report lists a volume once it is
// attached for certain, and stops listing it before the detach. A report that was not written stays to be written. A volume
// is not detached from a node that uses it, according to the node's last report, unless the caller's policy allows it. A
// new attachment counts as used. When a node is deleted, its attachments stay as uncertain until they are detached. Then
// nothing of the node is left, and a later node of that name inherits nothing.
//
// Each state is a few maps under one lock. Queries return copies, in a fixed order. Loops (All... and the like) yield
// copies that were made when the loop began. A copy shares its pods and specs with the state, so callers must not change
// them. The cost of a query about one volume, pod or node does not depend on the number of others.
//
// No lock is held during a call of a plugin or of a hook of [Options]. A hook is called after each change. Calls for
// several changes may arrive out of order, so a caller takes them only as a hint to read again. All methods may be called
// from several goroutines at once. The package starts nothing and does no I/O.
package cluster
