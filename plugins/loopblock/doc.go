// Package loopblock serves volumes that are image files of this node. Each is a file with a filesystem in it, attached to a
// loop device, staged once, and bind-mounted for each pod. It needs no server and no disk of its own, and gives every volume a
// hard size limit. It is a complete example of a plugin that provisions, attaches, stages and deletes.
//
// # A volume
//
// A PersistentVolume names the plugin and the image by its csi source:
//
//	csi:
//	  driver: loop-block.volumekit.io
//	  volumeHandle: pvc-0a1b        # the image {BaseDir}/pvc-0a1b.img
//	  fsType: ext4                  # optional; what the image holds must be this
//
// The handle is one path element. Images lie in the directory [Options].BaseDir, which a spec cannot leave: they are opened
// beneath a descriptor of it, and must be regular files to which no symbolic link leads.
//
// A storage class with provisioner volumekit.io/loop-block takes the parameters "fstype" (ext4, the default, xfs or btrfs) and
// "preallocate" ("true" allocates the space when the volume is made; otherwise the image is sparse).
//
// # A life
//
//	Provision    {BaseDir}/H.partial is made, sized, formatted, synced and renamed to H.img
//	Attach       H.img gets a loop device of this node, and never a second one
//	MountDevice  the device is checked, and mounted at {root}/plugins/volumekit.io/loop-block/mounts/H
//	SetUp        the staged directory is bound to the pod's directory, read-only where that is asked for
//	TearDown, UnmountDevice, Detach, Delete   undo this, in the reverse order; each proves that it is done
//
// # Guarantees
//
// An image is formatted only while it is provisioned, under a name by which no volume is found. An image without a filesystem
// is an error ([ErrNoFilesystem]), not a reason to format. An incomplete image of a killed process is made anew.
//
// A pod gets the volume or an error. Before a directory is bound for a pod, the mount table must show that the loop device of
// this image is mounted there. A staging directory without that mount, as after a reboot, is refused ([ErrNotStaged]):
// otherwise the pod would fill the node's own disk.
//
// Only a mount of a loop device with the image is unmounted. A foreign mount at a path of the plugin is reported
// (mount.ErrForeign). Neither it nor the mounts below it are unmounted.
//
// Setuid files and device nodes in an image have no effect (nosuid, nodev) unless the mount options of the volume say
// "suid" or "dev".
//
// An attached volume is not deleted. Deletion removes one name of one file, which is proven to be attached nowhere and locked
// against attaching meanwhile. A volume is deleted only by a node that its node affinity names, if it has one: on another node the
// image would count as gone and stay for ever. Provision writes no node affinity, because nodes may share BaseDir. If several nodes
// have images of their own, delete a volume on its node, or write the node affinity into its PersistentVolume.
//
// If all access modes of a volume are ReadOnlyMany, or its source or mount options say read-only, the loop device itself is
// read-only. Then neither a repair nor a replay of the journal writes to the image.
//
// fsGroup: at each set-up for a pod with an fsGroup, before the bind mount, the staged content gets that group (see
// volume/ownership). A file that cannot be changed fails the set-up, and the next one continues there. A read-only volume is
// not changed.
//
// # Raw block volumes
//
// A PersistentVolume with volumeMode Block, and no fsType, is attached in the same way and not staged. Its pods get the loop
// device itself, bound and locked by the executor below {root}/plugins/volumekit.io/loop-block/volumeDevices/H. Its image is
// provisioned without a filesystem. The pods decide about the content of the image, which may be a filesystem of their own. The
// mode of the PersistentVolume decides, so it must not have both Block and an fsType. A read-only volume has a read-only loop
// device. A volume that is read-only for only one pod is refused, because a bind mount cannot keep that pod from writing to the
// device.
//
// # Expansion
//
// If a claim requests more, ExpandVolumeDevice makes its image larger, in one system call that can shrink no file, and then its
// loop device. A pod with the device itself needs no more. NodeExpand then expands the mounted filesystem. The kernel does that
// with xfs and btrfs for every root, with ext4 only if the agent has CAP_SYS_RESOURCE. Without it an ext4 is expanded at its
// next staging, by resize2fs. If that fails, as on a full disk, the volume is used with its old size. Its PersistentVolume gets
// an event ([EventFilesystemNotGrown]), and the next staging tries again.
//
// # Capacity
//
// GetCapacity says how much can still be made: what the filesystem of BaseDir has free, less what existing images may still
// write. A sparse image is made even if there is less. The segment of a node is its name under the label kubernetes.io/hostname.
//
// # Attributes
//
// A VolumeAttributesClass with the driverName loop-block.volumekit.io has the parameters "directIO" (the loop device bypasses the
// page cache of the images' filesystem) and "readAhead" (a quantity such as "1Mi"). They change while pods use the volume, and
// are kept in the file {BaseDir}/H.attributes, from which each attachment gets them. A value that cannot be has no effect: the
// error matches volume.ErrInfeasible. Where a volume has come to a disk whose sectors are too large for its direct I/O, it is attached
// without, with a warning.
//
// # Copies
//
// A claim whose data source is another claim of this plugin gets a copy of its volume. The copy is made while it is
// provisioned, under the name {BaseDir}/H.partial, so an incomplete copy is no volume. It has the filesystem of its source,
// with an identity of its own (format.RenewFile), so both can be mounted on one node. It is at least as large as its source,
// and is expanded to the claim's request when it is staged. The content of a raw block volume is copied unchanged.
//
// If the images' filesystem can (xfs and btrfs), source and copy share their blocks until one is written. Then the copy takes
// moments, and the source may be in use: the copy holds what was written before, as after a power cut. Otherwise, and if the
// class says "preallocate", the data is copied without holes. The source must then be attached nowhere or read-only, and cannot
// be attached for writing meanwhile; a source in use is an error that matches volume.ErrInUse. [Options].Progress reports the
// progress. An interrupted copy begins anew: give the controller a CallTimeout in which the largest volume can be copied.
//
// # Snapshots
//
// A snapshot N of a volume is the image {BaseDir}/N.0.id.snap and the record {BaseDir}/N.snapshot, which is written last, in one
// step, also for all snapshots of a group: without it there is no snapshot. A snapshot needs no volume: its source may be deleted.
//
// A volume that is attached nowhere, or read-only, is copied while it cannot be attached for writing. The filesystem of a volume
// that is staged is frozen meanwhile (mount/freeze), and those of a group together: the snapshot has all that was written
// before, and a clean filesystem. If the images' filesystem shares blocks (xfs and btrfs), that takes moments. Otherwise the data
// is copied without holes. No volume stays frozen longer than [Options].FreezeLimit, also if this process is killed: the copy is
// then removed, and the error matches [ErrTimeout]. This takes sh, timeout, cat and fsfreeze. A raw block volume that is attached
// for writing is shared in one step, on xfs and btrfs alone, and not in a group.
//
// A claim whose data source is a snapshot gets a volume with its content and its filesystem, under an identity of its own. The
// claim must request at least the snapshot's restore size, and may request more.
//
// The plugin works on Linux, as root. Elsewhere every call that touches the machine returns an error
// that matches volume.ErrUnsupported or mount.ErrUnsupported.
//
// # Reading it
//
// Each file is one step of a volume's life, and the packages below mount do the work. The plugin's own types are images,
// devices, mounts and filesystems; each uses the ones before. Read the files in this order:
//
//	plugin.go       what it is and what it can do: options, the interfaces, which errors match which
//	source.go       what a spec says, checked
//	provision.go    what a claim asks for, and the PersistentVolume that it gets
//	images.go       an image is made, whole or not at all
//	clone.go        or filled with the content of another
//	snapshot.go     what is asked about snapshots; snapshots.go: their records
//	snapshotCreation.go       how they are made: who is kept from writing
//	frozen.go       for how long, also if the process is killed
//	restore.go      a volume is made of one
//	attach.go       an image gets a loop device; limits.go: how many the node may have
//	devices.go      which loop device has which image
//	stage.go        the filesystem is mounted
//	filesystem.go   after it was checked, and repaired where that is safe
//	mounter.go      the staged filesystem is bound for a pod, and given to the pod's group
//	mounted.go      what is mounted at a path, if it is ours, and how it is unmounted
//	block.go        or the pod gets the device
//	expand.go       image, device and filesystem become larger; grow.go: the filesystem
//	attributes.go   what a VolumeAttributesClass makes of the device; attributelocks.go: one call at a time
//	capacity.go     how much can still be made
//	reconstruct.go  which volume it is that is mounted there
//	delete.go       the image goes
package loopblock
