// Package cache holds what is wanted and what is known of the volumes of a node: its desired and its actual state of the world.
//
// # Words
//
// [DesiredStateOfWorld] says which pods of this node want which volumes. [ActualStateOfWorld] says which volumes are
// attached to this node, staged, and set up for which pods. Attaching, staging and each set-up are effects, and each is
// absent, uncertain or present. Uncertain means that it must be made again before it is used and undone before it is
// forgotten. An effect that was found after a restart is reconstructed: it stays uncertain until something succeeds on it.
//
// What is attached in a cluster is in package internal/cluster.
//
// # Guarantees
//
// An effect moves from state to state by a table of legal moves; a move that the table refuses returns an error and
// changes nothing. A volume is not forgotten while it is, or may be, staged or set up for a pod. A staging is not
// forgotten while pods may have the volume. A volume that is staged for its pods is not mounted before it is staged.
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
