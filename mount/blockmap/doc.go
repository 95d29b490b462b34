// Package blockmap gives a pod a block device as it is, without a filesystem, and takes it away again. It is what
// Kubernetes calls to map a volume.
//
// # What a mapping is
//
//	{GlobalMapPath}/{PodUID}      the device's node, bound onto a file: what the pod is given
//	{PodMapDir}/{LinkName}        a symbolic link to that bind
//	a loop device over the device the lock: it keeps the kernel from giving the device's number to another disk
//
// The bind shows the node that was verified, whatever becomes of the name below /dev. The lock is a loop device, as in
// Kubernetes, because it is the one thing that holds a device and outlives the agent's process: an open descriptor would
// be gone after a restart of the agent, while the pod runs on. Unlike Kubernetes' it is read-only, so that there is no
// second way to write to the device, and is known by a label and by the number of what it holds, not by a path.
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
// The device is opened once. What is probed, locked and bound is that descriptor, and its number is compared after the
// bind. A device that is mounted in any mount namespace, or otherwise claimed, is not given to a first pod: writing to
// it would destroy the filesystem. The lock is made before that is looked at, so that who mounts in loop.Manager.WhileUnheld, and
// a pod that gets the device, exclude each other by the number of the device, whatever path each knows. That a second pod may share it is the caller's to say.
//
// When a step fails, those before it are undone, unless the device was bound for the pod before. Both calls can be repeated: what is there
// is kept, what is gone is no error. What is found and cannot be this package's is left alone and is an error that matches
// mount.ErrForeign. No element of GlobalMapPath and PodMapDir may be a symbolic link.
//
// A bind whose lock is gone shows whatever device has its number by now. MapDevice removes it and makes a new one.
//
// A process that is killed in the midst leaves some of the three; UnmapDevice with the same mapping removes them. It needs
// neither the device nor its path for that.
//
// # When not to use this package
//
// For a volume with a filesystem: mount it. To keep a pod from writing: a read-only bind of a device node does not, since
// the flag is about the node; make the device read-only, or allow the pod no writes (device cgroup). Everywhere but on
// Linux every method returns an error that matches mount.ErrUnsupported.
package blockmap
