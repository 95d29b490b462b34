// Package nfs is the plugin of volumes on an NFS server: the nfs source of a pod's volume or of a PersistentVolume.
//
//	plugins.InitPlugins(ctx, nfs.New(nfs.Options{}))
//
// # The life of a volume
//
// SetUp mounts server:path in the pod's directory. TearDown unmounts it and removes the directory. Nothing is attached or
// staged: all mounts of an export share the kernel's cache of it. Recycle empties an export for its next claim.
//
// # Who mounts
//
// The kernel's own client mounts, by system calls and without a child process, if that suffices. The plugin does the work that
// mount.nfs(8) does in its process: it resolves the server's name and tries its addresses one after the other. Unless an option
// names a version, it tries 4.2, 4.1, 4.0 and then 3. Version 3 needs a daemon for its locks (rpc.statd), which mount.nfs
// starts. Without it two nodes can lock the same file. So mount.nfs mounts version 3, unless the options keep locks on this
// node (nolock, local_lock=all). With [Options].Helper, mount.nfs mounts every volume, for sites that configure it.
//
// # Read-only
//
// An inline volume of a pod is read-only if its source says so. A PersistentVolume is read-only if its source or the pod's
// reference to the claim says so.
//
// # A server that does not answer
//
// Every call returns soon after its context has ended. A call that hangs in the kernel is abandoned, and the error says so.
// Before SetUp reports an existing mount as ready, it checks that the server still answers. If the export was removed and made
// again, the mount has a stale handle and is mounted anew, once the server allows it. TearDown of a volume of a dead server
// hangs unless [Options].ForceAfter, and beyond it Lazy, allow more. That can lose unwritten data, so the caller decides.
//
// # What it does not do
//
// The server owns the content: fsGroup is ignored, and content is not relabelled. Options of a user with a comma are refused.
// There are no secrets: Kerberos is configured on the host (sec=krb5 and similar options).
package nfs
