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
// An [Operation] is what back-off is kept by: a key and the kind of operation. It need not be the key that the operation
// takes; usually it is finer, so that one pod does not wait for the failures of another.
//
// # Guarantees
//
// Starting, ending and asking cost the same however many operations run and however many have failed. As long as a volume
// has one lock, which is nearly always, that costs one map entry and no allocation; with more, its locks are indexed by
// pod and by node. To forget failures looks through those of the volume. The table holds nothing of a volume of which
// nothing runs and nothing has failed; a failure goes when the same operation succeeds, when it is forgotten, and, some time
// after it could have been tried again, when nobody came back for it: all failures are looked through for that once in the
// longest wait. All methods may be called from several goroutines at once; the table calls nothing and starts nothing.
package keyed
