// Package nfs is the plugin of volumes on an NFS server: the nfs source of a pod's volume or of a PersistentVolume.
//
//	plugins.InitPlugins(ctx, nfs.New(nfs.Options{}))
//
// # The life of a volume
//
// SetUp mounts server:path in the pod's directory. TearDown unmounts it and removes the directory. Nothing is attached or
// staged: the kernel itself shares what it knows of an export among all its mounts. Recycle empties an export for its next
// claim.
//
// # Who mounts
//
// The kernel's own client, by system calls and without a child process, where it suffices. The plugin does what mount.nfs(8)
// does in the process of mounting: it resolves the server's name, tries its addresses one after the other, and unless an
// option names a version it tries 4.2, 4.1, 4.0 and then 3. Version 3 needs a daemon for its locks (rpc.statd), which mount.nfs
// starts; without it two nodes can lock the same file. So version 3 is mounted by mount.nfs unless the options say that locks
// stay on this node (nolock, local_lock=all). [Options].Helper has every volume mounted by mount.nfs, for sites that configure it.
//
// # Read-only
//
// A volume that is inline in a pod is read-only when its source says so, a PersistentVolume when its source or the pod's
// reference to the claim does.
//
// # A server that does not answer
//
// Every call returns soon after its context has ended; what hangs in the kernel is abandoned, and the error says so. A
// volume that is mounted already is asked whether it still answers before SetUp says that it is there: one whose export was
// taken away and made anew has a stale handle and is mounted anew, once the server gives it. TearDown of a dead server's volume hangs unless
// [Options].ForceAfter, and beyond it Lazy, allow more; that can lose what was not written yet, and so it is the
// caller's decision.
//
// # What is not here
//
// Ownership is the server's: fsGroup is ignored, and content is not relabelled. Options of a user that hold a comma are
// refused. Secrets play no part: Kerberos is set up on the host (sec=krb5 and its like are options).
package nfs
