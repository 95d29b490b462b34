// Package local is the plugin of volumes that are a directory or a disk of one node: the local source of a
// PersistentVolume.
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
// A directory is staged, too, so that every pod sees the one that was found, whatever its path leads to later. When that is
// another one, such as that of a disk which was mounted there since, a new pod gets an error ([ErrNotStaged]) until the
// last pod is gone and the volume is staged anew.
//
// A volume with volumeMode Block is not staged. Its path must be that of a block device, which pods get as it is, bound and
// locked by the executor below {root}/plugins/kubernetes.io/local-volume/volumeDevices/NAME. A pod that asks for it
// read-only is refused, since a bind cannot keep a pod from writing to a device. Where all access modes are ReadOnlyMany the
// manager tells the runtime to forbid writes (volumemanager.ContainerDevice). All pods get the disk that the first has got: where
// the path leads to another one meanwhile, a new pod gets an error that matches mount.ErrForeign until the last one is gone.
//
// A disk has a filesystem or is raw, never both: one that a pod has raw, or whose partition or whole a pod has, is neither formatted nor
// checked nor mounted, and the other way round. Both are errors that match loop.ErrInUse. Disks are compared by their numbers.
//
// # What is at the path
//
// Symbolic links in the path are followed, since those of /dev/disk are such. The path then must not lead to the node's own
// root, into it or above it, and is opened without following any more links, so that one which somebody puts there meanwhile
// leads nowhere. Nothing checks that the directory is the mount of a certain disk; name the disk itself to be sure.
//
// # A disk without a filesystem
//
// A disk is formatted once, when it is staged for the first time, if it is proven to be blank (mount/format): with fsType, or
// ext4. A partition table, a filesystem other than fsType, anything else that is not zero, is left whole and is an error
// ([ErrWrongContent], format.ErrNotBlank). A disk that another program has claimed, or that has no size yet since it is not
// ready, is not formatted and is tried again (format.ErrInUse, format.ErrTooSmall). One whose formatting was cut short is not blank either: wipe it by hand (wipefs). A
// filesystem is checked, and repaired where that is safe, before it is mounted; an event of the PersistentVolume tells of a repair.
//
// A disk to which nobody can write is served to pods that ask for it read-only, unchecked; one whose filesystem was not unmounted
// cleanly is not, and neither is a pod that wants to write (EROFS).
//
// A check that is killed while it writes the superblock of an ext4 leaves it broken. The superblock is therefore kept meanwhile in
// {root}/plugins/kubernetes.io/local-volume/checks, so that the next staging goes on by itself (format.CheckKept). Where that
// directory was lost, or the superblock broke otherwise, staging fails with format.ErrDamaged: run e2fsck -b 32768 DISK by hand,
// which works with a copy of the superblock (for blocks of 1 KiB, as on a disk of less than 512 MiB: -b 8193), when nobody
// has the disk mounted.
//
// # fsGroup
//
// The volume has one group at a time. A pod that has the volume alone gets the content for its fsGroup (volume/ownership),
// at each set-up and before the bind, so that one which was cut short is finished by the next. A pod that shares the volume
// gets it as it is, and where that is of another group a warning (event AlreadyMountedVolume), as in Kubernetes. This counts
// on what the executor does: it sets one staged volume up for one pod after the other.
//
// # Expansion
//
// NodeExpand grows the filesystem of a disk to the disk's size, while it is mounted. A disk that is smaller than what is asked
// for is an error that matches volume.ErrInfeasible. A directory has no size of its own: there is nothing to grow.
//
// # After a restart
//
// All is found by names and in the mount table. [Plugin.ConstructVolumeSpec] makes a spec without a path, good to tear the
// volume down.
package local
