// Package csidriver makes a [volume.VolumePlugin] of a CSI driver: of the unix socket on which it answers.
//
//	driver, err := csidriver.New(csidriver.Options{Socket: "/run/csi/hostpath.sock", Driver: "hostpath.csi.k8s.io"})
//	defer driver.Close()
//	err = plugins.InitPlugins(ctx, driver.Plugin())
//
// # The life of a volume
//
// The numbers are the calls of the driver, in the order in which a volume that is provisioned, attached and staged sees them. A driver
// without a capability is not called for it.
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
// CreateSnapshot calls CreateSnapshot, and GetSnapshot says when the snapshot is ready to use; Provision from a snapshot is CreateVolume
// with its id. Groups are the calls of the group controller service. A driver without these capabilities is a plugin without them.
//
// A volume of a pod's own, with a csi source in the pod, is published alone: the driver makes it then, and deletes it when it is taken away.
// The driver's CSIDriver must list Ephemeral in volumeLifecycleModes. The CSIDriver also says what the driver hears of pods: their
// names (podInfoOnMount), and tokens of their service accounts (tokenRequests), from [Options].Tokens. It is read from [Options].Objects.
//
// A block device is published at a file in the place of a directory.
//
// # The connection
//
// One connection is kept and every call uses it. On each new one the driver is asked for its name, its capabilities and its id of
// this node before anything else; if one of these answers is missing, the connection is not used, so that what was not
// answered is never taken for what the driver cannot do. No call goes over a connection other than the one whose answers it went by. A
// driver may end, be updated and come back while volumes are in use.
//
// Requests and answers are bounded in size and in time. A socket that others than root and this process may write to, or
// replace, is refused with [ErrUntrustedSocket].
//
// # Finding drivers
//
// A [Prober] finds the drivers whose sockets are in a directory, and those that register as they do with kubelet, and tells a volume
// manager of them while they come and go:
//
//	prober, err := csidriver.NewProber(csidriver.ProberOptions{Dir: "/var/lib/agent/csi", Drivers: csidriver.Options{Objects: csidriver.StoredObjects(s)}})
//	manager, err := volumemanager.New(plugins, volumemanager.Options{Prober: prober})
//
// # What is believed
//
// An error is final, uncertain or busy by the specification's table of errors, which is in errors.go whole. A code that the specification
// gives no meaning for the call is uncertain, and so is every call that was cut off: the next call repeats it or undoes it. An answer
// is not believed against the mount table: a volume that was published and is not mounted is an error, and so is one that was
// taken away and is still mounted.
//
// # Secrets
//
// They are asked for at each call, through [Options].Secrets, and are in no record, log or error. Fields that the specification marks as
// secret are left out of what is logged, and their values are taken out of what a driver says.
package csidriver
