// Package abandonable runs what may never return, such as a system call on a dead server, so that its caller can leave when
// its context ends.
//
// An operation runs in a goroutine of its own, unless its context never ends. When the context ends first, the operation is
// abandoned: the caller gets an *outcome.AbandonedError at once, and the channel in it closes when the operation has really
// ended. Until then a second operation with the same key is refused, and so is every operation when too many are abandoned,
// because each keeps a thread.
//
//	calls := abandonable.New(abandonable.Options{Stuck: ErrStuck})
//	err := calls.Do(ctx, abandonable.Key{Path: path}, func(ctx context.Context) error {
//		if err := abandonable.Begin(ctx, "open"); err != nil {
//			return err // the caller has gone, so that nothing more is begun
//		}
//		...
//	})
//
// A panic of the operation, and a runtime.Goexit, happen to its caller, as if it had called the operation itself; when
// the caller has left, a panic ends the process, as in any goroutine.
package abandonable
