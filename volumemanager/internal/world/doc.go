// Package world is a simulated world of nodes, volumes and pods for package simulation. It has the real attachments,
// stagings and set-ups, a plugin whose calls end as the driver decides, a journal that survives crashes, and the rules
// that must hold.
//
// # Words
//
// The truth is the state of the storage and the kernels: [World] holds it, and it survives everything but a reboot. A
// program under test, an [Engine], runs on one node, or, in a world with a controller, on the controller, which is the
// node [Controller]. Each of its lives is a [Process]: all its requests to the outside go through it, and have no
// effect after it was killed. The desired state is the set of pods that the orchestrator wants.
//
// A call of the plugin waits for the driver at most twice: before its effect, and, if its answer is lost, after it. A
// call of the journal waits before it writes. So a program can be killed before and after each of its effects.
//
// # Rules
//
// They are checked after every step; each error begins with the rule's name. S1 to S8 and S12 to S14 are safety, L1 to L5 are
// liveness, checked by [World.Converge] when faults have stopped.
//
//	S1   calls for one volume exclude each other as the keys of the executor promise, also calls past their deadline;
//	     so do calls at one path of a pod
//	S2   what is believed present is there, what is believed absent is not; all else is believed uncertain
//	S3   set up only what is staged, stage only what is attached; unstage and detach only what no pod uses
//	S4   each effect is on record before it is made, and until it is gone
//	S5   what a pod uses is not taken from it: no teardown begins while it is wanted, but for S13 and where it asks for other
//	     storage, no unstaging and no detach of the node's own while one of its pods wants the volume, no set-up that fails
//	     unmounts it
//	S8   a volume for one node is attached to one, a volume for one pod is set up for one, uncertain ones counted
//	S12  a pod that is said to be ready has its volumes, of the storage that it asks for, with the size that was requested before
//	S13  what was set up for a pod that was removed is not for one that comes again: it is torn down before a mount begins
//	     and before that one is said to be ready
//	S14  a set-up begins only at a path at which no other storage is set up
//	L1   what is wanted is there, with its size
//	L2   what is not wanted is gone: mounts, attachments, records
//	L3   pods whose volumes are healthy get ready while the calls of other volumes hang or fail
//	L4   the program stops, also while calls hang, and another one begins in its process when they have returned
//	L5   the number of calls is bounded, and none is made when nothing changes
package world
