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
// Each state is a few maps under one lock. Queries return copies in a fixed order. Loops (All..., VolumesOfPod and the
// like) yield copies that were made when the loop began. A copy shares its pods and specs with the state, so callers must
// not change them. The cost of a query about one volume, pod or node does not depend on the number of others. A query about
// all of them, or about those of one plugin, visits all.
//
// The state asks a plugin what it can do for a volume when a pod wants the volume and when it is attached, and keeps the
// answer until then. [DesiredStateOfWorld.RefreshPlugin] asks again for the volumes that pods want.
//
// No lock is held during a call of a plugin or of the Changed hook. The hook is called after each change, with the name of
// the changed volume. Calls for several changes may arrive out of order, so a caller takes the name only as a hint to read
// the volume again. All methods may be called from several goroutines at once. The package starts nothing and does no I/O.
package cache
