package persistentvolume

import "github.com/volumekit/volumekit/controller/internal/objects"

// What people and schedulers write on claims and classes, by the names of Kubernetes.
const (
	// AnnSelectedNode is the annotation of a claim whose class waits for its first consumer; its value is the name of the node on
	// which the consumer will run.
	AnnSelectedNode = objects.AnnSelectedNode
	// AnnDefaultClass is the annotation, "true", of the class of claims that name none.
	AnnDefaultClass = objects.AnnDefaultClass
	// NoProvisioner is the provisioner of a class whose volumes are made by people.
	NoProvisioner = objects.NoProvisioner
)

// The reasons why a claim is pending, in [PendingClaim] and in events. They are those of Kubernetes.
const (
	// ReasonFailedBinding says that no volume fits and none can be made.
	ReasonFailedBinding = "FailedBinding"
	// ReasonVolumeMismatch says that the claim and the volume that it names do not fit.
	ReasonVolumeMismatch = "VolumeMismatch"
	// ReasonWaitForFirstConsumer says that the volume is made when the node of the claim's pod is known.
	ReasonWaitForFirstConsumer = "WaitForFirstConsumer"
	// ReasonWaitForPodScheduled says that the volume is made when the pod that uses the claim has a node.
	ReasonWaitForPodScheduled = "WaitForPodScheduled"
	// ReasonExternalProvisioning says that no plugin here provisions for the class.
	ReasonExternalProvisioning = "ExternalProvisioning"
	// ReasonProvisioningFailed says that the plugin could not make a volume; it is tried again.
	ReasonProvisioningFailed = "ProvisioningFailed"
	// ReasonUnrecognizedDataSourceKind says that no populator is registered for the kind of the claim's data source.
	ReasonUnrecognizedDataSourceKind = "UnrecognizedDataSourceKind"
	// ReasonPopulating says that a populator fills the volume; the message says how far it is. Kubernetes has no such reason.
	ReasonPopulating = "Populating"
	// ReasonPopulationFailed says that the volume could not be filled, or not be released; it is tried again. Kubernetes has no such
	// reason.
	ReasonPopulationFailed = "PopulationFailed"
)
