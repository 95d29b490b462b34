// Package record keeps small records on disk, one file for each key, so that a program knows after a crash what it was
// about to do.
//
// A record is opaque bytes. It is replaced as a whole: written to a temporary file and renamed, so that a reader sees the
// old record or the new one. Each file carries its key, the length and a checksum; a file that does not agree with them,
// that is no regular file, or that is too large is damaged. [Dir.Load] moves damaged files into the directory
// "quarantine" beside the records and reports them; nothing is deleted and nothing is guessed. What a newer program has
// written, or what the disk cannot read, is reported and stays where it is, and is moved aside before it would be
// overwritten.
//
// A [Dir] is locked against any other Dir of the same path, in this process or another, until it is closed. With
// [Options].Sync a write is on the disk when Put or Remove returns; without it, it survives the process and not the
// machine, which is all that a tmpfs can do. A directory that cannot be written to, or has no room, can be opened, locked
// and read all the same.
package record
