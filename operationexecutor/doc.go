// Package operationexecutor runs what is done to volumes: attach, detach, verify, mount or map, unmount or unmap, unmount
// or unmap the device, expand, reconstruct. No operation waits for another one, never two run at once that must not
// meet; it waits longer after each failure, and makes sure that what is believed of the world afterwards is never more than
// what is known.
//
// # Words
//
// An [OperationGenerator] turns "this volume, that pod" into an [Operation] that has not begun; an [Executor] begins it. An
// operation calls a plugin in a few steps, each a [Step], and tells the actual state of the world (the two updaters)
// what became of it. The key of an operation is what it needs for itself: see [Key].
//
// # The life of an operation
//
//	op, err := executor.MountVolume(ctx, volumeToMount, MountOptions{}, actualState)
//	                    // err: it did not start: *volume.PendingError, *volume.BackoffError
//	<-op.Done()
//	err = op.Err()      // how it ended: *volume.Error, whose class outcome tells
//
// Generating does no I/O and asks no plugin anything: a plugin that is not found is a failure of the operation, so that
// it waits like any other failure before it is tried again. In the operation's goroutine the plugin is looked up, what
// can be checked is checked, the intent goes to the [Journal], the plugin is called, the updater is told, the journal
// concludes, events are recorded, [Observer.OperationFinished] is called, the key becomes free, Done closes, and
// ExecutorOptions.KeyFreed is called, in this order.
//
// # Guarantees
//
// The class of an error decides what is believed (see volume.Mounter): after an uncertain one the effect may be there,
// after a final one it is not, after a transient one nothing was begun. Classes survive wrapping. A live mount is never
// downgraded because a remount failed; a failed teardown is always uncertain; what was found after a restart stays
// uncertain until something succeeded; every error of an attach or detach call is uncertain.
//
// A plugin's call gets a context with a deadline, by the kind of operation and by the plugin, and so does a port's. If a
// plugin's call has not returned a short grace after its context ended, it is abandoned. Its operation ends as uncertain if
// the call may change the world, and the key stays locked until the call has really returned, so no other operation starts
// beside it. The abandoned call takes no worker of the plugin, so the plugin's other volumes continue. When too many calls
// hang, further calls fail with a [PluginHungError]. [Executor.Hung] lists the hanging calls with their start and their
// stacks. A panic in a call, runtime.Goexit, an error that is a nil pointer and an error that panics when it is read are
// errors of that operation and of nothing else.
//
// A plugin's reports are checked. With GeneratorOptions.Mounts, three contradictions end as uncertain, with an error that
// matches [ErrContractViolation]: a failed call that left a mount, a teardown that left one, and a success without the
// mount that the plugin promises (volume.MountingVolumePlugin). The specs that plugins get are copies, one for each
// operation. If a plugin changes a copy, nothing else is affected, and the step CheckSpec and an event report it. The
// executor never looks at paths outside of the pods' and the plugin's directories.
//
// Intent comes before effect: each call that changes the world has its record first, and is not made when the record
// cannot be written.
//
// # Concurrency
//
// All methods of [Executor] and [Operation] may be called from several goroutines at once. No lock is held while a
// plugin, a port or a callback runs. Constructors start nothing; [Executor.Wait] waits for every goroutine but those of
// calls that were abandoned, which it names; after [Executor.Shutdown] nothing begins.
//
// # How an operation runs
//
// An operation is a function that reads from top to bottom: check, record the intent, call the plugin, say what is believed,
// conclude. It runs from start to end in one goroutine, and so do the plugin's calls: a new one for each operation, or, with
// [Executor.Synchronous], that of the caller. When a call is abandoned, another goroutine ends the operation in its place.
// Beginning, ending and asking cost the same however many operations run; one timer serves all calls.
package operationexecutor
