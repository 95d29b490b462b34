// Package volume is the contract between a program that gives pods their volumes and the plugins that provision, mount
// and remove each kind of storage.
//
// It is for both sides. A plugin author implements [VolumePlugin] and a few of the small interfaces beside it. The
// author of an orchestrator puts plugins into a [VolumePluginMgr] and passes it to package volumemanager, which calls
// them in the order below. This package mounts nothing itself.
//
// # Words
//
// A volume is storage that a pod uses: a directory tree, or a block device without a filesystem.
//
// A spec ([Spec]) describes one volume to a plugin. It is either an inline volume of a pod, from pod.spec.volumes, or
// the PersistentVolume to which the pod's claim is bound.
//
// A plugin ([VolumePlugin]) serves one kind of storage. Its name is a domain, one slash and a name ("example.com/ram").
// A spec names its plugin by the field that is set in it (nfs, hostPath), or by a driver: see [Spec.Driver].
//
// The outer name is the name in pod.spec.volumes. The inner name ([Spec.Name]) is the name in paths on disk: the
// PersistentVolume's name for a claim, otherwise the outer name. The volume name ([VolumePlugin.GetVolumeName])
// identifies the storage within the plugin. The unique name (plugin name and volume name, [GetUniqueVolumeName])
// identifies it among all plugins.
//
// To attach is to make storage visible on a node, as a disk is put into a machine. Most plugins do not attach. To stage
// (in the names of this package: to mount the device) is to mount the volume once per node at a global path, the device
// mount path. To set up is to make the volume appear at the pod's own path; most plugins do it by a bind mount. To map
// replaces the set-up for a block device: a link and a bind mount of the device. Each has its opposite: detach, unstage
// (unmount the device), tear down, unmap.
//
// A mounter sets up one volume for one pod, and an unmounter tears it down. An attacher and a detacher, a device
// mounter and a device unmounter work for all volumes of a plugin. All of them are small objects for one use. Their
// constructors do no I/O.
//
// A step is uncertain when its effect is unknown: the server did not answer, ctx ended, or the program was killed. The
// manager sets an uncertain volume up again before it uses it, and tears it down before it forgets it.
//
// To reconstruct is to find out after a restart which volumes are set up. The program's own records come first; the
// plugin rebuilds the spec of any other volume ([ReconstructableVolumePlugin]).
//
// # The life of a volume
//
// A pod with UID 7f3c has a volume "data" by a claim that is bound to the PersistentVolume "pv-1". The plugin
// "example.com/disk" attaches and stages. It gets these calls, in this order. Two calls for one volume never overlap if
// one changes what the other uses. Calls for different volumes do.
//
// Once, when the program starts:
//
//	plugin.Init(ctx, host)                      before everything else
//	plugin.Capabilities()                       if it has that method: what it cannot do after all
//	plugin.SpecKinds()                          if it has that method: which specs it serves
//
// The pod wants the volume. spec is made from the PersistentVolume, spec.Name() is "pv-1":
//
//	plugin.CanSupport(spec)                     every plugin without SpecKinds is asked; exactly one plugin must say
//	                                            yes, or declare the kind of spec
//	plugin.CanAttach(spec), CanDeviceMount(spec)
//	plugin.GetVolumeName(spec)                  "disk-9": the unique name is example.com/disk/disk-9
//
// A program that may reach the storage attaches it, perhaps on another machine:
//
//	attacher = plugin.NewAttacher()
//	attacher.Attach(ctx, spec, "node-1")        "/dev/sdb", or "" when only the node can know
//
// It is staged and set up on the node. The first pod stages; the others only set up:
//
//	mounter = plugin.NewMounter(spec, pod)
//	attacher.GetDeviceMountPath(spec)           {root}/plugins/example.com/disk/mounts/disk-9
//	mounter.CanMount(ctx)                       if it has that method: is all here that is needed?
//	attacher.WaitForAttach(ctx, spec, "/dev/sdb", pod)
//	attacher.MountDevice(ctx, spec, device, deviceMountPath, args)
//	mounter.SetUp(ctx, args)                    at mounter.GetPath():
//	                                            {root}/pods/7f3c/volumes/example.com~disk/pv-1
//	mounter.GetAttributes()                     after success; read-only, for example
//
// While it is in use:
//
//	mounter.GetMetrics(ctx)                     now and then
//	mounter.SetUp(ctx, args)                    with IsRemount, if plugin.RequiresRemount(spec)
//
// The pod is gone. The calls need only the inner name and the pod's UID:
//
//	unmounter = plugin.NewUnmounter("pv-1", "7f3c")
//	unmounter.TearDown(ctx)
//
// It was the last pod of this node that used the volume:
//
//	plugin.GetDeviceMountRefs(ctx, deviceMountPath)    no pod may be left among them
//	detacher.UnmountDevice(ctx, deviceMountPath)
//	detacher.Detach(ctx, "disk-9", "node-1")           what GetVolumeName returned
//
// A plugin that does not attach gets no attach calls, and one that does not stage gets no stage calls. NewMounter,
// SetUp, NewUnmounter and TearDown remain. For a block volume, GetGlobalMapPath, SetUpDevice and MapPodDevice replace
// MountDevice and SetUp. UnmapPodDevice and TearDownDevice replace TearDown and UnmountDevice.
//
// A plugin may rely on this order: SetUp comes after MountDevice has succeeded, MountDevice after WaitForAttach,
// WaitForAttach after Attach. TearDown of every pod has succeeded before UnmountDevice, and UnmountDevice before
// Detach. A plugin must not rely on being called once. After an error, after a restart, and for safety, each of these
// calls comes again, and must then finish the work or find it done.
//
// # What to implement first
//
//  1. [VolumePlugin] with a [Mounter] and an [Unmounter]. Embed [Dir], or [MetricsNil], for the methods that your
//     plugin does not need. This is a whole plugin: put it into a registry with [VolumePluginMgr.InitPlugins]. The
//     example of this package is such a plugin, and takes a volume through its life.
//  2. Run the conformance suite, package volumetest: one call checks the rules of docs/contract.md.
//  3. [SpecKindDeclarer] makes the lookup quick, however many plugins there are. [Explainer] tells a user why the
//     plugin declined a spec.
//  4. [PersistentVolumePlugin], if claims may bind volumes of this kind; [ProvisionableVolumePlugin] and
//     [DeletableVolumePlugin], if the plugin also makes them.
//  5. [DeviceMountableVolumePlugin], if the pods of a node share one mount. [AttachableVolumePlugin], if the storage
//     must know the node first. [BlockVolumePlugin] for raw devices.
//  6. [ExpandableVolumePlugin], [NodeExpandableVolumePlugin], [ModifiableVolumePlugin], [RecyclableVolumePlugin],
//     [VolumePluginWithCapacity] and the other optional interfaces. The comment of each says what happens without it.
//
// A plugin's type says what the plugin can do. [CapabilityLimiter] narrows that at run time. CanAttach and
// CanDeviceMount narrow it for each spec. The registry resolves the first two once: see [Capabilities]. In the same way
// [SpecKindDeclarer] says which kinds of spec a plugin serves, and replaces CanSupport in lookups. A plugin should
// declare its kinds if it can; [DriverKinds] are those of a plugin that specs name as their driver. For a plugin
// without declared kinds, the registry calls CanSupport in every lookup. If that call hangs, so does every lookup.
//
// # Contexts
//
// The first argument of every call that can block bounds the whole call. A plugin must return soon after ctx has ended.
// If its work continues after that, the call must return an error with the methods Uncertain() bool and Done() <-chan
// struct{}. No other call on that volume starts until Done is closed. A plugin must not panic in a goroutine of its
// own: the executor cannot recover that panic, and it ends the program. A panic in a call becomes the error of the
// call.
//
// # Errors
//
// The class of an error decides what the executor records about the volume. Callers find it through any wrapping, never
// by text.
//
//   - An error that matches [ErrTransient] says that nothing has begun. Make one with [Transient].
//   - An error that matches [ErrUncertain], or whose method Uncertain returns true, says that the effect may exist.
//     Make one with [Uncertain]. When in doubt, use this class.
//   - Every other error is final: there is no effect, and nothing is left.
//
// Beside the class, [ErrInvalid] says that the user's input is wrong, [ErrInfeasible] that the request can never
// succeed, [ErrUnsupported] that this plugin or this machine cannot do it, and [ErrInUse] that another use has to end
// first. A failed lookup in the registry returns a [*LookupError]. The executor wraps the errors of plugins in
// [*Error]. It returns [*PendingError] or [*BackoffError] if it did not start an operation.
//
// # Paths and names
//
// Every path is absolute, as the host sees it, and below the root directory of the [VolumeHost]. Check each part of a
// path that comes from a spec with [CheckPathElement] first. Never delete the content of a plugin's mount directory by
// name: remove a mount directory by rmdir, which cannot delete data.
package volume
