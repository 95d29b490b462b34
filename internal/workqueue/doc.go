// Package workqueue is a queue of keys of objects that need work.
//
// A key that waits is not queued twice: the caller that takes it sees every change before that. A key that is added after it was
// taken is queued again, so no change is missed. Get returns keys in the order in which they were added. A key may also be
// added at a time in the future. Of several such times, the earliest counts.
//
// The queue starts no goroutine of its own. A key with a time costs one timer, which [Queue.Stop] ends.
package workqueue
