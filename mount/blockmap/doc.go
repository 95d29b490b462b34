// Package blockmap gives a pod a block device without a filesystem, and removes it again. Kubernetes calls this mapping a
// volume.
//
// # What a mapping is
//
//	{GlobalMapPath}/{PodUID}      the device's node, bound onto a file: what the pod is given
//	{PodMapDir}/{LinkName}        a symbolic link to that bind
//	a loop device over the device the lock: it keeps the kernel from giving the device's number to another disk
//
// The bind mount shows the device node that was verified, even if its name below /dev changes. The lock is a loop device, as in
// Kubernetes, because only that holds a device and outlives the agent's process: after a restart of the agent an open
// descriptor would be gone while the pod still runs. Unlike that of Kubernetes, the lock is read-only, so it is no second way
// to write to the device. It is found by a label and by the number of the device that it holds, not by a path.
//
// # A life
//
//	mapper := blockmap.New(blockmap.Options{})
//	err := mapper.MapDevice(ctx, blockmap.Mapping{DevicePath: "/dev/sdb", GlobalMapPath: ..., PodMapDir: ..., ...})
//	... the pod uses it ...
//	err = mapper.UnmapDevice(ctx, mapping)
//
// # Guarantees
//
// The device is opened once. That descriptor is probed, locked and bound, and its number is compared after the bind. A device
// that is mounted in any mount namespace, or held exclusively by another program, is not given to a first pod: a write would
// destroy the filesystem. The lock is made before that check. So a mount in loop.Manager.WhileUnheld and a pod that gets the
// device exclude each other by the number of the device, whatever path each uses. The caller decides whether a second pod may
// share the device.
//
// If a step fails, the earlier steps are undone, unless the device was bound for the pod before. Both calls can be repeated:
// what exists is kept, and what is gone is no error. Whatever is found there and is not this package's own is left alone, with
// an error that matches mount.ErrForeign. No element of GlobalMapPath and PodMapDir may be a symbolic link.
//
// A bind mount without its lock shows whatever device has the number by now. MapDevice removes such a bind mount and makes a
// new one.
//
// A process that is killed meanwhile leaves some of the three. UnmapDevice with the same mapping removes them, and needs
// neither the device nor its path.
//
// # When not to use this package
//
// For a volume with a filesystem: mount it. To keep a pod from writing: a read-only bind mount of a device node does not,
// because its flag concerns only the node. Make the device read-only, or forbid the pod to write (device cgroup). On systems
// other than Linux every method returns an error that matches mount.ErrUnsupported.
package blockmap
