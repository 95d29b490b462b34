// Package atomicwriter publishes a set of small files in a directory, so that whoever reads there sees the old set or
// the new one, whole, and never a mix. Config maps, secrets, tokens and the downward API are published with it.
//
// A payload is a map from path to [FileProjection]: what each file holds, its mode and its owner. [AtomicWriter.Write]
// makes the directory show exactly that payload:
//
//	w, err := atomicwriter.New("/var/lib/agent/pods/7f3c/volumes/example.com~config/app", atomicwriter.Options{})
//	...
//	result, err := w.Write(ctx, map[string]atomicwriter.FileProjection{
//		"app.conf":      {Data: conf, Mode: 0o644},
//		"tls/server.pem": {Data: cert, Mode: 0o600, FsUser: &uid},
//	})
//
// # What lies in the directory
//
// The layout is that of Kubernetes, so that a program that watches "..data" works unchanged:
//
//	app.conf -> ..data/app.conf                   user-visible links, one for each first element of a path
//	tls      -> ..data/tls
//	..data   -> ..2026_11_22_00_53_48.1234567890  the set that is published
//	..2026_11_22_00_53_48.1234567890/app.conf     the files: a directory for each set, named by its time (UTC)
//	..2026_11_22_00_53_48.1234567890/tls/server.pem
//
// A Write goes like this. The set that is published is compared with the payload. If they are the same, no name changes
// and no watcher wakes up. If not, a new directory is filled beside it, [Options].SetPerms is called on it, the link
// "..data_tmp" is made to lead to it, and that link is renamed to "..data": this one rename is the whole change, and one
// event for a watcher. Then the links for new names are made, those of names that have vanished go, and the old
// directory is removed. A reader that holds the old directory open finds it empty then and opens "..data" again.
// Directories have mode 0755 (and the group and setgid bit of the volume's directory, if it is setgid), files exactly the
// mode that was asked for, whatever the umask.
//
// # Guarantees
//
//   - Whoever is killed, at whatever instruction, leaves "..data" as it was or leading to the new set, which is complete.
//     All that a Write was in the middle of (a link "..data_tmp", directories half written or no longer used, links that
//     are missing or too many) is found and put right by the next Write, even if the payload is the published one.
//   - A Write that fails before it has published leaves nothing behind, neither when the filesystem is full nor when
//     SetPerms fails. An error after that matches outcome "uncertain" (volume.ErrUncertain), and [Result] says what is there.
//   - A change of modes or owners alone is a change. What was asked for is known by the last digits of the directory's
//     name, which are a hash of paths, modes and owners (never of data), because SetPerms may change what the disk says.
//     What Kubernetes has written is written once more for that reason.
//   - After a loss of power the set may have empty files, unless [Options].Sync is set. The next Write compares what the
//     disk holds, so a volume that is written before each use needs no Sync.
//
// # Whoever else writes there
//
// The directories above the volume are trusted. The directory itself need not be: a workload may plant links, files,
// pipes, directories and mounts in the place of each of our names, and may swap them while we work. Each step acts on one
// name of a directory that is held open; no link is followed, and no mount that lies in the directory is entered. A name
// that matches the pattern of a set is ours and is removed with all that is in it; at "..data" and "..data_tmp"
// everything but a directory with something in it is replaced; at a user-visible name only links are. What lies in the
// way beyond that, and every mount, stays and is an error that matches [ErrForeign]. See Kubernetes CVE-2017-1002102.
//
// # One writer
//
// One Write at a time for each directory; the caller sees to that. If two overlap all the same, from whatever values or
// processes, each set that "..data" leads to is still whole, and a Write that notices returns an error that matches
// [ErrConflict]; the links are right again after the next Write. This is held by a lock (flock) on the directory of each
// set while it is written, which no reader waits for.
//
// # When not to use it
//
// It is for files that are small enough to be held in memory twice, on a filesystem of this machine: a Write does not
// come back from a server that hangs. A file that is mounted by itself (a sub-path) stays the old one. There is no limit
// for a payload but what the filesystem has room for: who accepts payloads from others bounds them. It is for Linux;
// elsewhere Write returns an error that matches [errors.ErrUnsupported].
package atomicwriter
