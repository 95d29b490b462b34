// Package volume is the contract between a program that gives pods their volumes and the plugins that know how each
// kind of storage is made, mounted and taken away.
//
// It is for both sides. Who writes a plugin implements [VolumePlugin] and a few of the small interfaces beside it. Who
// writes an orchestrator puts plugins into a [VolumePluginMgr] and hands that to the package volumemanager, which calls
// them in the order told below. This package mounts nothing itself.
//
// # Words
//
// A volume is storage that a pod uses: a directory tree, or a block device without a filesystem.
//
// A spec ([Spec]) is one volume as it is described to a plugin: either a volume of a pod's own, as it stands in
// pod.spec.volumes, or the PersistentVolume to which the pod's claim is bound.
//
// A plugin ([VolumePlugin]) serves one kind of storage. Its name is a domain, one slash and a name ("example.com/ram").
// A spec names its plugin by the field that is set in it (nfs, hostPath), or by a driver: see [Spec.Driver].
//
// The outer name is the name in pod.spec.volumes. The inner name ([Spec.Name]) is what paths on disk hold: the
// PersistentVolume's name for a claim, else the outer name. The volume name ([VolumePlugin.GetVolumeName]) says which
// storage it is, and the unique name (plugin name and volume name, [GetUniqueVolumeName]) says so among all plugins.
//
// To attach is to make storage visible on a node, as a disk is put into a machine; most plugins have nothing to attach.
// To stage, in the names of this package to mount the device, is to mount it once per node at a global path, the device
// mount path. To set up is to make the volume appear at the pod's own path, which most plugins do by a bind mount. To
// map is what is done instead for a block device: a link and a bind of the device. Each has its opposite: detach,
// unstage (unmount the device), tear down, unmap.
//
// A mounter sets up one volume for one pod, an unmounter tears it down; an attacher and a detacher, a device mounter
// and a device unmounter work for all volumes of a plugin. All of them are small objects that are made for one use, and
// making them does no I/O.
//
// A step is uncertain when its effect is unknown: the server did not answer, ctx ended, or the program was killed. The
// manager sets an uncertain volume up again before it uses it, and tears it down before it forgets it.
//
// To reconstruct is to find out after a restart which volumes are set up. The program's own records come first; the
// plugin rebuilds the spec of any other volume ([ReconstructableVolumePlugin]).
//
// # The life of a volume
//
// Say a pod with UID 7f3c has a volume "data" by a claim that is bound to the PersistentVolume "pv-1", and the plugin
// "example.com/disk" attaches and stages. These are the calls that the plugin sees, in this order. Calls for one volume
// never overlap where one changes what the other uses; calls for different volumes do.
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
// It is attached, by whoever may talk to the storage, perhaps on another machine:
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
// The pod is gone. Only the inner name and the pod's UID need be known:
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
// A plugin that does not attach leaves out those calls, one that does not stage leaves out those too: what remains is
// NewMounter, SetUp, NewUnmounter and TearDown. A block volume has GetGlobalMapPath, SetUpDevice and MapPodDevice in
// place of MountDevice and SetUp, and UnmapPodDevice and TearDownDevice in place of TearDown and UnmountDevice.
//
// A plugin may rely on this: SetUp comes after MountDevice has succeeded, MountDevice after WaitForAttach,
// WaitForAttach after Attach; TearDown of every pod has succeeded before UnmountDevice is called, and UnmountDevice
// before Detach. It must not rely on being called once: after an error, after a restart, and to be sure, each of these
// calls is made again, and must then finish the work or find it done.
//
// # What to implement first
//
//  1. [VolumePlugin] with a [Mounter] and an [Unmounter]. Embed [Dir], or [MetricsNil], for the methods that you have
//     nothing to say about. This is a whole plugin: put it into a registry with [VolumePluginMgr.InitPlugins]. The
//     example of this package is one, and lives through its volume's life.
//  2. Run the conformance suite, package volumetest, on it: one call proves what this page says.
//  3. [SpecKindDeclarer], so that the registry finds the plugin at once, however many there are, and [Explainer], so
//     that a user learns why the plugin declined a spec.
//  4. [PersistentVolumePlugin], and with it [ProvisionableVolumePlugin] and [DeletableVolumePlugin], when claims are to
//     find or make volumes of this kind.
//  5. [DeviceMountableVolumePlugin] when several pods of a node share one mount, [AttachableVolumePlugin] when a node
//     must be told to the storage first, [BlockVolumePlugin] for raw devices.
//  6. [ExpandableVolumePlugin], [NodeExpandableVolumePlugin], [RecyclableVolumePlugin] and the optional interfaces; the
//     comment of each says what holds when it is absent.
//
// A plugin's type says what the plugin can do. [CapabilityLimiter] narrows that at run time, CanAttach and
// CanDeviceMount narrow it for each spec. The registry resolves the first two once: see [Capabilities]. In the same way
// [SpecKindDeclarer] says which kinds of spec a plugin serves, and replaces CanSupport in look-ups. A plugin should
// declare its kinds where it can; [DriverKinds] are those of a plugin that specs name as their driver. The registry
// calls CanSupport of a plugin without declared kinds in every look-up; one that hangs holds up each of them.
//
// # Contexts
//
// The first argument of everything that can block bounds the whole call. A plugin must return soon after ctx has ended,
// and must not start work that outlives the call without saying so: an error with the methods Uncertain() bool and
// Done() <-chan struct{} says that something still runs, and nothing else is started on that volume until Done is
// closed. A plugin must not panic in a goroutine of its own: that panic cannot be caught and ends the program. A panic
// in a call is caught and becomes the call's error.
//
// # Errors
//
// The class of an error decides what is believed afterwards. It is found through any wrapping, never by text.
//
//   - An error that matches [ErrTransient] says that nothing was begun; make one with [Transient].
//   - An error that matches [ErrUncertain], or whose method Uncertain returns true, says that the effect may be there;
//     make one with [Uncertain]. When in doubt, this is the safe class.
//   - Every other error is final: the effect is not there, and nothing was abandoned.
//
// Beside the class, [ErrInvalid] says that what the user wrote is wrong, [ErrInfeasible] that it can never be done,
// [ErrUnsupported] that this plugin or this machine cannot, [ErrInUse] that something has to end first. A look-up in
// the registry that fails returns a [*LookupError]; the executor wraps the errors of plugins in [*Error], and says that
// it did not start something with [*PendingError] and [*BackoffError].
//
// # Paths and names
//
// Every path is absolute and as the host sees it, under the one root directory of the [VolumeHost]. What comes from a
// spec and becomes a part of a path is checked with [CheckPathElement] first. What a plugin's directory of mounts holds
// is never deleted by name: a mount directory goes by rmdir, which cannot delete anybody's data.
package volume
