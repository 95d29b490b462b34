// Package csiserver serves a [volume.VolumePlugin] on a unix socket, as a driver of the Container Storage Interface: Kubernetes,
// Nomad and whatever else speaks CSI can then use the plugin.
//
//	server, err := csiserver.New(loopblock.New(loopblock.Options{}), csiserver.Options{
//		Socket:     "/run/loop-block/csi.sock",
//		RootDir:    "/var/lib/loop-block",
//		StateDir:   "/var/lib/loop-block/state",
//		RuntimeDir: "/run/loop-block/records",
//		NodeName:   "node-1",
//		Attach:     csiserver.AttachOnNode,
//	})
//	err = server.Run(ctx)
//
// What the driver says it can do follows from the plugin's capabilities, as the registry resolves them
// ([volume.CapabilitiesOf]). The driver's name is that of the plugin in the order of CSI: "example.com/ram" is ram.example.com.
//
// # A life
//
//	CreateVolume               Provision. A record of the intent is written before it, and one of the volume after it
//	ControllerPublishVolume    Attach (not with AttachOnNode), on record before it is done
//	NodeStageVolume            Attach with AttachOnNode, WaitForAttach, MountDevice or SetUpDevice
//	NodePublishVolume          SetUp below RootDir, and a bind of that at the target path; of a block volume, of its device
//	NodeGetVolumeStats         GetMetrics
//	ControllerExpandVolume     ExpandVolumeDevice
//	ControllerModifyVolume     ModifyVolume
//	CreateSnapshot             CreateSnapshot, on record like CreateVolume. CreateVolumeGroupSnapshot: CreateGroupSnapshot
//	DeleteSnapshot             DeleteSnapshot. DeleteVolumeGroupSnapshot: DeleteGroupSnapshot
//	NodeExpandVolume           NodeExpand
//	NodeUnpublishVolume        the bind is taken off, then TearDown
//	NodeUnstageVolume          UnmountDevice or TearDownDevice, Detach with AttachOnNode
//	ControllerUnpublishVolume  Detach
//	DeleteVolume               Delete
//
// The plugin stages a volume where it always does, below RootDir. The staging directory of the caller is remembered and stays
// empty, which the specification allows. Where the server runs in a container, RootDir must lie on a mount that the host sees
// (Bidirectional in Kubernetes), as the target paths must: else what is mounted there ends with the container.
//
// # Volume ids
//
// A volume's id is the handle that the plugin gives it, in the csi source of its PersistentVolume, or else the name of the
// PersistentVolume: the name of the request where that can be an element of a path, and a digest of it elsewhere. The node needs
// no record of the controller's: the volume context says which source the volume has. A volume that was made by hand, and
// has no such context, has the csi source that its id and its attributes name.
//
// # Guarantees
//
// What the server did is on record before it is done, in a directory that is locked and not in memory. After kill -9 at any
// instruction a caller repeats its call, and gets the answer that the first one would have got: nothing is lost, nothing is
// left, and nothing is mounted twice. StateDir says which volumes there are and where they are attached, and is synced.
// RuntimeDir, which should be on a tmpfs, says what is staged and published in this boot.
//
// No volume is deleted, detached, unmounted or removed that is not on record. A volume whose record is lost is left, and so is
// a mount at a target path that this server has not made. A snapshot is deleted by its id, which is the plugin's own handle, with a
// record or without. A snapshot on record that the plugin has lost is not made again under its name until it is deleted.
//
// One call changes a volume or a snapshot at a time. Another one is refused with ABORTED, also while an abandoned call of the plugin has not
// ended.
//
// Requests are held to the sizes of the specification, 64 KiB and [Options].CallTimeout. Secrets and mount flags are in no
// record, log or error. (Volume contexts are in records: the specification forbids secrets there.)
//
// # What is not served
//
// Health; inline ephemeral volumes; the topology of snapshots. docs/csi.md says more.
package csiserver
