// Package abandonable runs operations that may never return, such as a system call on a dead server. The caller can leave
// when its context ends.
//
// An operation runs in a goroutine of its own, unless its context never ends. If the context ends first, the operation is
// abandoned: the caller gets an *outcome.AbandonedError at once, and the channel in it closes after the operation has
// really ended. Until then every other operation with the same key is refused. If too many operations are abandoned, every
// operation is refused, because each abandoned one keeps a thread.
//
//	calls := abandonable.New(abandonable.Options{Stuck: ErrStuck})
//	err := calls.Do(ctx, abandonable.Key{Path: path}, func(ctx context.Context) error {
//		if err := abandonable.Begin(ctx, "open"); err != nil {
//			return err // the caller has left: begin nothing more
//		}
//		...
//	})
//
// A panic of the operation, or a runtime.Goexit, happens in its caller, as if the caller had called the operation itself.
// If the caller has left, a panic ends the process, as in any goroutine.
package abandonable
