// Package csidriver makes a [volume.VolumePlugin] from the unix socket of a CSI driver.
//
//	driver, err := csidriver.New(csidriver.Options{Socket: "/run/csi/hostpath.sock", Driver: "hostpath.csi.k8s.io"})
//	defer driver.Close()
//	err = plugins.InitPlugins(ctx, driver.Plugin())
//
// # The life of a volume
//
// The steps are in the order in which a provisioned, attached and staged volume has them. The plugin does not make a
// call for which the driver lacks the capability.
//
//  1. Provision calls CreateVolume, by the name of the PersistentVolume, so that a repetition finds the same volume. The
//     PersistentVolume is what Kubernetes' external-provisioner makes: driver, volumeHandle, volumeAttributes and the references to
//     secrets in spec.csi, and the topology as its node affinity.
//  2. Attach calls ControllerPublishVolume. What the driver returns for the node travels in the path of the device, see [PublishContext].
//  3. WaitForAttach calls nothing: the path says what the node needs.
//  4. MountDevice writes a record, makes the directory and calls NodeStageVolume.
//  5. SetUp writes a record, makes the directory above and calls NodePublishVolume. Then it looks whether something is mounted.
//  6. ModifyVolume calls ControllerModifyVolume, also while pods have the volume. NodeExpand, GetMetrics and GetHealth call NodeExpandVolume, NodeGetVolumeStats and NodeGetVolumeHealth.
//  7. TearDown calls NodeUnpublishVolume for what is on record, UnmountDevice NodeUnstageVolume. Each looks whether the mount is gone,
//     removes the directory by rmdir, and then the record.
//  8. Detach calls ControllerUnpublishVolume, Delete calls DeleteVolume.
//
// CreateSnapshot calls CreateSnapshot, and GetSnapshot reports when the snapshot is ready to use. Provision from a
// snapshot calls CreateVolume with its id. Groups use the group controller service. For a driver without these
// capabilities the plugin has none.
//
// An inline volume, with a csi source in the pod, needs only NodePublishVolume and NodeUnpublishVolume: the driver
// creates it in the first and deletes it in the second. The driver's CSIDriver must list Ephemeral in
// volumeLifecycleModes. The CSIDriver also decides what the driver gets about pods: their names (podInfoOnMount), and
// tokens of their service accounts (tokenRequests), from [Options].Tokens. The plugin reads it from [Options].Objects.
//
// A block device is published at a file instead of a directory.
//
// # The connection
//
// Every call uses one kept connection. On each new connection the plugin first reads the driver's name, its
// capabilities and its id of this node. If one of these reads fails, the plugin does not use the connection: it never
// takes a missing answer for a missing capability. A call uses only the connection whose answers it depends on. A
// driver may end, be updated and start again while volumes are in use.
//
// Requests and answers are bounded in size and in time. If users other than root and this process can write to the
// socket or replace it, the plugin refuses it with [ErrUntrustedSocket].
//
// # Finding drivers
//
// A [Prober] finds the drivers with sockets in a directory, and those that register as with kubelet. It adds them to a
// volume manager and removes them:
//
//	prober, err := csidriver.NewProber(csidriver.ProberOptions{Dir: "/var/lib/agent/csi", Drivers: csidriver.Options{Objects: csidriver.StoredObjects(s)}})
//	manager, err := volumemanager.New(plugins, volumemanager.Options{Prober: prober})
//
// # What is believed
//
// An error is final, uncertain or busy by the specification's table of errors; errors.go has the whole table. A code
// without a meaning for the call in the specification is uncertain, and so is every interrupted call: the next call
// repeats or undoes it. The mount table overrides an answer: it is an error if a published volume is not mounted, or if
// an unpublished one still is.
//
// # Secrets
//
// The plugin reads secrets at each call, with [Options].Secrets, and writes them to no record, log or error. It omits
// fields that the specification marks as secret from logs, and removes their values from the driver's messages.
package csidriver
