package persistentvolume

import "github.com/volumekit/volumekit/controller/internal/objects"

// Annotations and values that users and schedulers set on claims and classes, with Kubernetes' names.
const (
	// AnnSelectedNode is the annotation of a claim whose class waits for its first consumer; its value is the name of the node on
	// which the consumer will run.
	AnnSelectedNode = objects.AnnSelectedNode
	// AnnDefaultClass is the annotation, "true", of the class of claims that name none.
	AnnDefaultClass = objects.AnnDefaultClass
	// NoProvisioner is the provisioner of a class whose volumes are made by hand.
	NoProvisioner = objects.NoProvisioner
)

// The reasons why a claim is pending, in [PendingClaim] and in events. They are those of Kubernetes.
const (
	// ReasonFailedBinding says that no volume fits, and none can be provisioned.
	ReasonFailedBinding = "FailedBinding"
	// ReasonVolumeMismatch says that the claim and the volume that it names do not fit.
	ReasonVolumeMismatch = "VolumeMismatch"
	// ReasonWaitForFirstConsumer says that the volume will be provisioned when a pod that uses the claim has a node.
	ReasonWaitForFirstConsumer = "WaitForFirstConsumer"
	// ReasonWaitForPodScheduled says that a pod uses the claim, and that the volume will be provisioned when this pod has a node.
	ReasonWaitForPodScheduled = "WaitForPodScheduled"
	// ReasonExternalProvisioning says that no plugin here provisions for the class.
	ReasonExternalProvisioning = "ExternalProvisioning"
	// ReasonProvisioningFailed says that the plugin could not provision a volume. The controller tries again.
	ReasonProvisioningFailed = "ProvisioningFailed"
	// ReasonUnrecognizedDataSourceKind says that no populator is registered for the kind of the claim's data source.
	ReasonUnrecognizedDataSourceKind = "UnrecognizedDataSourceKind"
	// ReasonPopulating says that a populator fills the volume. The message has the progress. Kubernetes has no such reason.
	ReasonPopulating = "Populating"
	// ReasonPopulationFailed says that the volume could not be filled or unmounted. The controller tries again. Kubernetes has no such
	// reason.
	ReasonPopulationFailed = "PopulationFailed"
)
