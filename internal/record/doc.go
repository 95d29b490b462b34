// Package record keeps small records on disk, by key, so that a program knows after a crash what it was about to do.
//
// A record is opaque bytes. All records of a directory are in one file, the log: each write is appended to it, as a frame with the
// key, the length and a checksum, and the last one of a key counts. What several goroutines write at once goes to the disk
// together, with one sync. When most of the log is past, what counts is written to a new one, which takes its place by rename.
//
// What cannot be read of a log is damaged, unless it is proven to be the end of a write that a crash has broken off: see [Dir.Load].
// A log with damage is kept whole in the directory "quarantine", the rest of it is used, and nothing is guessed. What a newer
// program has written is reported and stays where it is, and is moved aside before it would be overwritten.
//
// A [Table] keeps the records of one kind as rows of a Go type.
//
// Earlier versions kept a file for each record. Such files are read, written to the log, and removed when they are in it.
//
// A [Dir] is locked against any other Dir of the same path, in this process or another, until it is closed. With
// [Options].Sync a write is on the disk when Put or Remove returns; without it, it survives the process and not the
// machine, which is all that a tmpfs can do. A directory that cannot be written to, or has no room, can be opened, locked
// and read all the same. A record whose Put has returned has the room of its removal, where the filesystem can reserve room.
package record
