// Package atomicwriter publishes a set of small files in a directory. A reader sees the old set or the new one, whole, and
// never a mix. Config maps, secrets, tokens and the downward API are published with it.
//
// A payload is a map from path to [FileProjection]: the content of each file, its mode and its owner. [AtomicWriter.Write]
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
// The layout is that of Kubernetes, so a program that watches "..data" works unchanged:
//
//	app.conf -> ..data/app.conf                   user-visible links, one for each first element of a path
//	tls      -> ..data/tls
//	..data   -> ..2026_11_22_00_53_48.1234567890  the set that is published
//	..2026_11_22_00_53_48.1234567890/app.conf     the files: a directory for each set, named by its time (UTC)
//	..2026_11_22_00_53_48.1234567890/tls/server.pem
//
// A Write compares the published set with the payload. If they are equal, it changes no name and wakes no watcher. Otherwise
// it fills a new directory beside it and calls [Options].SetPerms on that. It makes the link "..data_tmp" to the new
// directory, and renames that link to "..data". This one rename is the whole change, and one event for a watcher. Then it
// makes the links for new names, removes those of names that are gone, and removes the old directory. A reader that holds the
// old directory open finds it empty then and opens "..data" again. Directories have mode 0755 (and the group and setgid bit
// of the volume's directory, if it is setgid). Files have exactly the requested mode, whatever the umask.
//
// # Guarantees
//
//   - After a kill at any instruction, "..data" leads to the old set or to the new one, and that set is complete. The next
//     Write repairs all other traces of the killed one (a link "..data_tmp", directories half written or no longer used,
//     links that are missing or too many), even if the payload is already published.
//   - A Write that fails before it has published leaves nothing, neither on a full filesystem nor after a failure of
//     SetPerms. A later error matches outcome "uncertain" (volume.ErrUncertain), and [Result] says what is there.
//   - A changed mode or owner alone is a change. The last digits of the directory's name are a hash of the requested paths,
//     modes and owners (never of data), because SetPerms may change what is on disk. For that reason, a set that Kubernetes
//     wrote is written once more.
//   - After a loss of power the set may have empty files, unless [Options].Sync is set. The next Write compares the content
//     on disk, so a volume that is written before each use needs no Sync.
//
// # Other writers
//
// The directories above the volume are trusted. The directory itself need not be: a workload may plant links, files, pipes,
// directories and mounts in place of each name, and may swap them during a Write. Each step acts on one name of a directory
// that is held open. It follows no link and enters no mount in the directory. A name with the pattern of a set is removed
// with all its content. At "..data" and "..data_tmp" a Write replaces everything except a directory that is not empty. At a
// user-visible name it replaces only links. Any other obstacle, and every mount, stays and is an error that matches
// [ErrForeign]. See Kubernetes CVE-2017-1002102.
//
// # One writer
//
// The caller runs one Write at a time for each directory. If two overlap all the same, from any values or processes, each set
// to which "..data" leads is still whole. A Write that notices returns an error that matches [ErrConflict], and the next
// Write makes the links right again. A Write holds a lock (flock) on the directory of its set; no reader waits for it.
//
// # When not to use it
//
// It is for files that fit twice into memory, on a filesystem of this machine: a Write to a server that hangs does not
// return. A file that is mounted by itself (a sub-path) stays the old one. Only the filesystem's free space limits a payload:
// bound payloads from others before you write them. It is for Linux; elsewhere Write returns an error that matches
// [errors.ErrUnsupported].
package atomicwriter
