// Package cluster holds what is wanted and what is known of the attachments of volumes to the nodes of a cluster.
//
// # Words
//
// [DesiredStateOfWorld] says which volumes should be attached to which nodes, and for which pods. [ActualStateOfWorld] says which
// are, or may be. All is kept per volume and node: the spec, the device path, the doubt, whether the node is told of it, whether
// the node says that it uses it, and since when it is to be detached. What the node is told is the report: what its status is to
// list as attached. A life of a node is that of one UID; another UID under the same name is another node.
//
// # Guarantees
//
// An attachment moves from state to state by a table of legal moves; a move that the table refuses returns an error and changes
// nothing.
//
// A volume that one node alone may have is given to one: who is, may be or is about to be attached counts, and BeginAttach decides
// that, and whether the node has room, in one step. A node is told of a volume when it is attached for certain, and no longer before
// it is detached; a report that was not written is still to be written. A volume is not taken from a node that uses it, by its last
// word, unless the caller's policy allows it; what a node has just got counts as used. When a node goes, what was attached to it
// stays as uncertain until it is detached, and then nothing of the node is left; one that takes its name inherits nothing.
//
// Each state is a few maps under one lock. Queries return copies, in a fixed order, and loops (All... and the like) yield copies that
// were made when the loop began; what a copy points to (pods, specs) is shared, and nobody may change it. What is asked about one
// volume, one pod or one node costs the same however many others there are.
//
// No lock is held while a plugin is asked something or a hook of [Options] is called. A hook is called after each change; several
// changes may be told out of order, so it says where to look, not what is there. All methods may be called from several goroutines
// at once. The package starts nothing and does no I/O.
package cluster
