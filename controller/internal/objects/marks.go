package objects

// The annotations of claims, volumes and classes. Those with a domain of Kubernetes are Kubernetes' own.
const (
	// AnnBindCompleted is on a bound claim; its value does not matter.
	AnnBindCompleted = "pv.kubernetes.io/bind-completed"
	// AnnBoundByController is on a claim or a volume whose reference to the other was chosen by a controller and not by
	// a user; its value does not matter.
	AnnBoundByController = "pv.kubernetes.io/bound-by-controller"
	// AnnDynamicallyProvisioned is on a provisioned volume; its value is the provisioner's name.
	AnnDynamicallyProvisioned = "pv.kubernetes.io/provisioned-by"
	// AnnSelectedNode is on a claim whose class waits for its first consumer; its value is the name of the consumer's node.
	AnnSelectedNode = "volume.kubernetes.io/selected-node"
	// AnnStorageProvisioner is on a claim that needs a new volume; its value is the provisioner's name. An external
	// provisioner waits for it.
	AnnStorageProvisioner = "volume.kubernetes.io/storage-provisioner"
	// AnnBetaStorageProvisioner is the older name of AnnStorageProvisioner, for provisioners that still read it.
	AnnBetaStorageProvisioner = "volume.beta.kubernetes.io/storage-provisioner"
	// AnnMigratedTo is on a volume that a CSI driver serves instead of its plugin; its value is the driver's name. The
	// driver's controller reclaims the volume.
	AnnMigratedTo = "pv.kubernetes.io/migrated-to"
	// AnnPreResizeCapacity is on a volume that an older resizer is expanding; its value is the size before.
	AnnPreResizeCapacity = "volume.alpha.kubernetes.io/pre-resize-capacity"
	// AnnDefaultClass is "true" on the default class.
	AnnDefaultClass = "storageclass.kubernetes.io/is-default-class"
	// AnnPopulate is on a volume that a populator fills before its claim is bound; its value is the source. The volume
	// is created with it.
	AnnPopulate = "volumekit.io/populate"
	// AnnPopulating is on a volume that a populator has begun to fill; its value is the last attempt.
	AnnPopulating = "volumekit.io/populating"
	// AnnPopulated is on a volume that a populator has filled; its value is the digest of the content. It is written after the content
	// was synced and unmounted. A volume with AnnPopulate and without it is not full.
	AnnPopulated = "volumekit.io/populated"
	// AnnMadeForPod is on the claim of an ephemeral volume; its value is the UID of its pod. Such a claim is deleted
	// with its pod.
	AnnMadeForPod = "volumekit.io/made-for-pod"

	annBetaDefaultClass = "storageclass.beta.kubernetes.io/is-default-class"

	// Yes is the value of annotations whose value does not matter.
	Yes = "yes"
)

// NoProvisioner is the provisioner of a class whose volumes are created by hand.
const NoProvisioner = "kubernetes.io/no-provisioner"

// The finalizers of claims and volumes.
const (
	// FinalizerProvisioning is on a claim from before the call of its provisioner until the volume is in the store or
	// the provisioner has proven that no storage exists.
	FinalizerProvisioning = "volumekit.io/provisioning"
	// FinalizerVolume is on a volume that was provisioned here and is deleted with its claim: the object stays until
	// its storage is gone.
	FinalizerVolume = "volumekit.io/provisioned-volume"
	// FinalizerClaimProtection is on every claim: the object stays while pods use the claim. It is Kubernetes'
	// finalizer.
	FinalizerClaimProtection = "kubernetes.io/pvc-protection"
	// FinalizerVolumeProtection is on every volume: the object stays while the volume is bound. It is Kubernetes'
	// finalizer.
	FinalizerVolumeProtection = "kubernetes.io/pv-protection"
)
