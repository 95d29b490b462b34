// Package workqueue is a queue of names of things that need to be looked at.
//
// A key that is added while it waits is not added twice: the caller that takes it sees everything that happened before. A key
// that is added after it was taken, while it is being worked on, is queued again, so that no change is missed. Keys come
// out in the order in which they went in. A key may also be added at a time in the future; of several such times the
// earliest counts.
//
// The queue starts no goroutine of its own. A key with a time costs one timer, which [Queue.Stop] ends.
package workqueue
