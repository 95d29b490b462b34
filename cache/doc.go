// Package cache holds what is wanted and what is known of volumes: the desired and the actual state of the world.
//
// # Words
//
// [DesiredStateOfWorld] says which pods of this node want which volumes. [ActualStateOfWorld] says which volumes are
// attached to this node, staged, and set up for which pods. Attaching, staging and each set-up are effects, and each is
// absent, uncertain or present. Uncertain means that it must be made again before it is used and undone before it is
// forgotten. An effect that was found after a restart is reconstructed: it stays uncertain until something succeeds on it.
//
// For a cluster, [ClusterDesiredStateOfWorld] says which volumes should be attached to which nodes, and for which pods, and
// [ClusterActualStateOfWorld] says which are, or may be. All is kept per volume and node: the spec, the device path, the
// doubt, whether the node is told of it, whether the node says that it uses it, and since when it is to be detached. What
// the node is told is the report: what its status is to list as attached. A life of a node is that of one UID; another UID
// under the same name is another node.
//
// # Guarantees
//
// An effect moves from state to state by a table of legal moves; a move that the table refuses returns an error and
// changes nothing. A volume is not forgotten while it is, or may be, staged or set up for a pod. A staging is not
// forgotten while pods may have the volume. A volume that is staged for its pods is not mounted before it is staged.
//
// In a cluster, a volume that one node alone may have is given to one: who is, may be or is about to be attached counts, and
// BeginAttach decides that, and whether the node has room, in one step. A node is told of a volume when it is attached for
// certain, and no longer before it is detached; a report that was not written is still to be written. A volume is not taken
// from a node that uses it, by its last word, unless the caller's policy allows it; what a node has just got counts as used.
// When a node goes, what was attached to it stays as uncertain until it is detached, and then nothing of the node is left;
// one that takes its name inherits nothing.
//
// Each state is a few maps under one lock. Queries return copies, in a fixed order, and loops (All..., VolumesOfPod and the
// like) yield copies that were made when the loop began; what a copy points to (pods, specs) is shared, and nobody may
// change it. What is asked about one volume, one pod or one node costs the same however many others there are. What is
// asked about all of them, or about those of one plugin, looks at all.
//
// What a plugin can do for a volume is asked when a pod wants it and when it is attached, and kept with it until then;
// RefreshPlugin asks anew.
//
// No lock is held while a plugin is asked something or the Changed hook is called. The hook is called after each change,
// with the name of the volume that it touched; several changes may be told out of order, so it says where to look, not
// what is there. All methods may be called from several goroutines at once. The package starts nothing and does no I/O.
package cache
