// Package loopblock serves volumes that are image files of this node: each is a file with a filesystem in it, attached to
// a loop device, staged once, and bind-mounted for each pod. It needs no server and no disk of its own, gives every volume
// a hard limit of size, and is a whole example of a plugin that provisions, attaches, stages and deletes.
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
// The handle is one path element. Images lie in one directory, that of [Options].BaseDir, which a spec cannot leave: they
// are opened beneath a descriptor of it, and must be regular files that no symbolic link leads to.
//
// A storage class with provisioner volumekit.io/loop-block takes the parameters "fstype" (ext4, the default, xfs or btrfs)
// and "preallocate" ("true" takes the space when the volume is made; otherwise the image is sparse).
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
// An image is formatted while it is provisioned, under a name by which no volume is found, and never again: an image
// without a filesystem is an error ([ErrNoFilesystem]), not a reason to format. A half-made image of a process that was
// killed is made anew.
//
// A pod gets the volume or an error. Before a directory is bound for a pod, the mount table must show that what is mounted
// there is the loop device of this very image; a staging directory that is merely there, as after a reboot, is refused
// ([ErrNotStaged]) rather than given to the pod, which would then fill the node's own disk.
//
// What is unmounted is a mount of a loop device that has the image. Something else that somebody has mounted at a path of the
// plugin is reported (mount.ErrForeign), and neither it nor what lies below it is taken off.
//
// Setuid files and device nodes in an image have no effect (nosuid, nodev) unless the mount options of the volume say
// "suid" or "dev".
//
// A volume that is attached is not deleted. Deletion removes one name of one file, which is proven to be attached nowhere
// and locked against attaching meanwhile.
//
// When all access modes of a volume are ReadOnlyMany, or its source or mount options say read-only, the loop device
// itself is read-only, and neither a repair nor a replay of the journal writes to the image.
//
// fsGroup: at each set-up for a pod that asks for one, before the volume is bound, the staged content gets that group (see
// volume/ownership). A file that cannot be changed fails the set-up, and the next one goes on where it ended. A read-only
// volume is left as it is.
//
// # Raw block volumes
//
// A PersistentVolume with volumeMode Block, and no fsType, is attached in the same way and not staged: its pods get the loop
// device itself, bound and locked by the executor below {root}/plugins/volumekit.io/loop-block/volumeDevices/H. Its image is
// provisioned without a filesystem. What the image holds is its pods' own business, a filesystem too, which they may have
// made: the mode that the PersistentVolume says decides, and so it must not say both Block and an fsType. A volume that
// nobody may write to has a read-only loop device; one that is read-only for a single pod is refused, since a bind cannot
// keep that pod from writing to the device.
//
// # Expansion
//
// The image of a claim that asks for more is made larger by ExpandVolumeDevice, in one system call that can make no file
// smaller, and its loop device with it; a pod that has the device itself needs no more. NodeExpand then grows the filesystem
// where it is mounted. The kernel does that with xfs and btrfs for every root, with ext4 only where the agent has
// CAP_SYS_RESOURCE: without it an ext4 grows when it is staged the next time, by resize2fs. Where that fails, as on a disk that is
// full, the volume is used as it is; its PersistentVolume is told ([EventFilesystemNotGrown]), and the next staging tries again.
//
// # Copies
//
// A claim whose data source is another claim of this plugin gets a copy of its volume, made while it is provisioned and by
// the same name, {BaseDir}/H.partial, so that half a copy is no volume. It has the filesystem of its source, with an identity
// of its own (format.RenewFile), so that both can be mounted on one node, is as large as its source at least, and grows to
// what the claim asks for when it is staged. What a raw block volume holds is copied as it is.
//
// Where the images' filesystem can (xfs and btrfs), source and copy share their blocks until one is written to, the copy takes
// moments, and the source may be in use: the copy holds what was written before, as after a power cut. Elsewhere, and where
// the class says "preallocate", the data is copied, holes left out, while the source is attached nowhere or read-only, and
// cannot be attached for writing; a source in use is an error that matches volume.ErrInUse. [Options].Progress tells how far
// that is. A copy that is broken off begins anew: give the controller a CallTimeout in which the largest volume can be copied.
//
// Not here: snapshots. It works on Linux, as root; elsewhere every call that touches the world returns an error that matches
// volume.ErrUnsupported or mount.ErrUnsupported.
//
// # Reading it
//
// Each file is one step of a volume's life, and the packages below mount do the work. The plugin's own types are images, devices, mounts
// and filesystems, each on top of the ones before. In this order:
//
//	plugin.go       what it is and what it can do: options, the interfaces, which errors match which
//	source.go       what a spec says, checked
//	provision.go    what a claim asks for, and the PersistentVolume that it gets
//	images.go       an image is made, whole or not at all
//	clone.go        or filled with the content of another
//	attach.go       an image gets a loop device; limits.go: how many the node may have
//	devices.go      which loop device has which image
//	stage.go        the filesystem is mounted
//	filesystem.go   after it was checked, and repaired where that is safe
//	mounter.go      the staged filesystem is bound for a pod, and given to the pod's group
//	mounted.go      what is mounted at a path, if it is ours, and how it is unmounted
//	block.go        or the pod gets the device
//	expand.go       image, device and filesystem become larger; grow.go: the filesystem
//	reconstruct.go  which volume it is that is mounted there
//	delete.go       the image goes
package loopblock
