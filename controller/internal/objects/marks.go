package objects

// The annotations of claims, volumes and classes. Those with a domain of Kubernetes are Kubernetes' own.
const (
	// AnnBindCompleted is on a claim that has been bound; its value does not matter.
	AnnBindCompleted = "pv.kubernetes.io/bind-completed"
	// AnnBoundByController is on a claim or a volume whose reference to the other was chosen by a controller, not by a
	// user; its value does not matter.
	AnnBoundByController = "pv.kubernetes.io/bound-by-controller"
	// AnnDynamicallyProvisioned is on a volume that was made for a claim; its value is the provisioner's name.
	AnnDynamicallyProvisioned = "pv.kubernetes.io/provisioned-by"
	// AnnSelectedNode is on a claim whose class waits for its first consumer; its value is the name of the consumer's node.
	AnnSelectedNode = "volume.kubernetes.io/selected-node"
	// AnnStorageProvisioner is on a claim for which a volume is to be made; its value is the provisioner's name. A provisioner in
	// another program waits for it.
	AnnStorageProvisioner = "volume.kubernetes.io/storage-provisioner"
	// AnnBetaStorageProvisioner is the older name of AnnStorageProvisioner, for provisioners that still read it.
	AnnBetaStorageProvisioner = "volume.beta.kubernetes.io/storage-provisioner"
	// AnnMigratedTo is on a volume that a CSI driver serves in place of its plugin; its value is the driver's name. The driver's
	// controller reclaims the volume.
	AnnMigratedTo = "pv.kubernetes.io/migrated-to"
	// AnnPreResizeCapacity is on a volume that an older resizer is expanding; its value is the volume's size before.
	AnnPreResizeCapacity = "volume.alpha.kubernetes.io/pre-resize-capacity"
	// AnnDefaultClass is "true" on the class of claims that name none.
	AnnDefaultClass = "storageclass.kubernetes.io/is-default-class"
	// AnnPopulate is on a volume that a populator fills before its claim is bound; its value says from what. The volume is created with
	// it.
	AnnPopulate = "volumekit.io/populate"
	// AnnPopulating is on a volume that a populator has begun to fill; its value is the last attempt.
	AnnPopulating = "volumekit.io/populating"
	// AnnPopulated is on a volume that a populator has filled; its value is the digest of the content. It is written after the content
	// was synced and unmounted. A volume with AnnPopulate and without it is not full.
	AnnPopulated = "volumekit.io/populated"
	// AnnMadeForPod is on a claim that was made for one pod; its value is the pod's UID. Such a claim goes with its pod.
	AnnMadeForPod = "volumekit.io/made-for-pod"

	annBetaDefaultClass = "storageclass.beta.kubernetes.io/is-default-class"

	// Yes is the value of annotations whose value does not matter.
	Yes = "yes"
)

// NoProvisioner is the provisioner of a class whose volumes are made by people.
const NoProvisioner = "kubernetes.io/no-provisioner"

// The finalizers of claims and volumes.
const (
	// FinalizerProvisioning is on a claim from before its provisioner is called until the volume is in the store or the
	// provisioner says that nothing is there.
	FinalizerProvisioning = "volumekit.io/provisioning"
	// FinalizerVolume is on a volume that was provisioned here and is to be deleted with its claim: the object stays until
	// its storage is gone.
	FinalizerVolume = "volumekit.io/provisioned-volume"
	// FinalizerClaimProtection is on every claim, so that it stays while pods use it. It is that of Kubernetes.
	FinalizerClaimProtection = "kubernetes.io/pvc-protection"
	// FinalizerVolumeProtection is on every volume, so that its object stays while it is bound. It is that of Kubernetes.
	FinalizerVolumeProtection = "kubernetes.io/pv-protection"
)
