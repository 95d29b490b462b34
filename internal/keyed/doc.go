// Package keyed decides which operations may run at the same time, and which must wait because they failed.
//
// # Words
//
// A [Key] is what an operation needs for itself: a volume and, within it, one pod, one node or all of both. Two keys meet
// when their volumes are equal and their pods and their nodes each are equal or one of the two is empty. Operations whose
// keys meet never run together. A key without a volume meets nothing.
//
// A [Lock] is the right of one operation to its key. Its owner keeps it, most often as a part of something larger; the
// table only points to it.
//
// An [Operation] identifies what back-off counts: a key and the kind of operation. This key need not be the one that the
// operation locks. It is usually finer, so one pod does not wait for the failures of another.
//
// # Guarantees
//
// The costs of starting, ending and querying do not depend on how many operations run or have failed. While a volume has
// one lock, which is nearly always, the lock costs one map entry and no allocation. If it has more, they are indexed by pod
// and by node. To forget failures, the table visits all failures of the volume. It holds nothing for a volume without a
// running operation and without failures. A failure is removed when the same operation succeeds, when it is forgotten, or
// some time after its wait has ended, if the operation does not come back. For the latter, the table visits all failures
// once in the longest wait. All methods may be called from several goroutines at once. The table calls nothing and starts
// nothing.
package keyed
