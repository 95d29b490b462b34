// Package local is the plugin of volumes that are a directory or a disk of one node: the local source of a PersistentVolume.
//
//	apiVersion: v1
//	kind: PersistentVolume
//	metadata: {name: ssd-1}
//	spec:
//	  capacity: {storage: 100Gi}
//	  accessModes: [ReadWriteOnce]
//	  local:
//	    path: /dev/disk/by-id/wwn-0x5000c500a1b2c3d4   # or a directory, such as /srv/volumes/1
//	    fsType: xfs                                    # of a disk; optional
//	  nodeAffinity:                                    # required: the node that has the disk
//	    required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node-1]}]}]}
//
// # The life of a volume
//
//	MountDevice  {root}/plugins/kubernetes.io/local-volume/mounts/NAME shows the directory, by a bind, or the disk's filesystem
//	SetUp        the pod's directory shows the staged one, read-only where that is asked for
//	TearDown, UnmountDevice   undo this; what is in the volume stays
//
// A directory is staged too, so every pod sees the directory that was found at first, whatever its path leads to later. If the
// path leads to another one, such as that of a disk that was mounted there since, a new pod gets an error ([ErrNotStaged])
// until the last pod is gone and the volume is staged again.
//
// A volume with volumeMode Block is not staged. Its path must be that of a block device. Pods get the device itself, bound and
// locked by the executor below {root}/plugins/kubernetes.io/local-volume/volumeDevices/NAME. A pod that requests it read-only
// is refused, because a bind mount cannot keep a pod from writing to a device. If all access modes are ReadOnlyMany, the
// manager tells the runtime to forbid writes (volumemanager.ContainerDevice). All pods get the disk of the first pod. If the
// path leads to another disk meanwhile, a new pod gets an error that matches mount.ErrForeign until the last pod is gone.
//
// A disk has a filesystem or is raw, never both. If a pod has the raw disk, its partition or its whole disk, the disk is not
// formatted, checked or mounted, and the other way round. Both errors match loop.ErrInUse. Disks are compared by their numbers.
//
// # What is at the path
//
// Symbolic links in the path are followed, because those of /dev/disk are such. The result must not be the node's own root, nor
// in it, nor above it. It is opened without following any more links, so a link that appears meanwhile has no effect. Nothing
// checks that the directory is the mount of a certain disk; name the disk itself to be sure.
//
// # A disk without a filesystem
//
// A disk is formatted once, at its first staging, if it is proven blank (mount/format): with fsType, or ext4. A partition
// table, a filesystem other than fsType, or anything else that is not zero stays, and is an error ([ErrWrongContent],
// format.ErrNotBlank). A disk that another program holds, or that has no size yet because it is not ready, is not formatted;
// the next try may succeed (format.ErrInUse, format.ErrTooSmall). A disk whose formatting was interrupted is not blank either:
// wipe it by hand (wipefs). A filesystem is checked, and repaired where that is safe, before it is mounted. An event of the
// PersistentVolume reports a repair.
//
// A disk that cannot be written is mounted for pods that request it read-only, without a check. It is not mounted if its
// filesystem was not unmounted cleanly, or for a pod that wants to write (EROFS).
//
// A check that is killed while it writes the superblock of an ext4 leaves it broken. So the plugin keeps the superblock
// meanwhile in {root}/plugins/kubernetes.io/local-volume/checks, and the next staging continues by itself (format.CheckRecoverable).
// If that directory was lost, or the superblock broke otherwise, staging fails with format.ErrDamaged. Then run e2fsck -b 32768
// DISK by hand while the disk is not mounted. It works with a copy of the superblock (for blocks of 1 KiB, as on a disk of less
// than 512 MiB: -b 8193).
//
// # fsGroup
//
// The volume has one group at a time. If only one pod has the volume, its content gets the pod's fsGroup (volume/ownership) at
// each set-up and before the bind mount, so the next set-up finishes an interrupted change. A pod that shares the volume gets
// it unchanged. If it has another group, the pod gets a warning (event AlreadyMountedVolume), as in Kubernetes. This relies on
// the executor, which sets one staged volume up for one pod after the other.
//
// # Expansion
//
// NodeExpand expands the filesystem of a disk to the disk's size, while it is mounted. If the disk is smaller than the
// requested size, the error matches volume.ErrInfeasible. A directory has no size of its own, so there is nothing to expand.
//
// # After a restart
//
// Everything is found by names and in the mount table. [Plugin.ConstructVolumeSpec] makes a spec without a path, which suffices
// to tear the volume down.
package local
