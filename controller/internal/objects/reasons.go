package objects

// The reasons of events that no program waits for; they are those of Kubernetes.
const (
	// ReasonProvisioningSucceeded says that the plugin has made a volume.
	ReasonProvisioningSucceeded = "ProvisioningSucceeded"
	// ReasonPopulationSucceeded says that a populator has filled the volume. Kubernetes has no such reason.
	ReasonPopulationSucceeded = "PopulationSucceeded"
	// ReasonProvisioningCleanupFailed says that storage was made that could neither be recorded nor deleted.
	ReasonProvisioningCleanupFailed = "ProvisioningCleanupFailed"
	// ReasonClaimLost says that the claim's volume is gone.
	ReasonClaimLost = "ClaimLost"
	// ReasonClaimMisbound says that the claim's volume belongs to another claim.
	ReasonClaimMisbound = "ClaimMisbound"
	// ReasonFailedClaim says that a pod's ephemeral volume can have no claim.
	ReasonFailedClaim = "FailedClaim"
	// ReasonVolumeDelete says that the volume is still in use; deleting it is tried again.
	ReasonVolumeDelete = "VolumeDelete"
	// ReasonVolumeFailedDelete says that the volume could not be deleted; it is tried again.
	ReasonVolumeFailedDelete = "VolumeFailedDelete"
	// ReasonVolumeFailedRecycle says that the volume cannot be recycled, or could not be and is tried again.
	ReasonVolumeFailedRecycle = "VolumeFailedRecycle"
	// ReasonVolumeRecycled says that the volume was emptied and is available again.
	ReasonVolumeRecycled = "VolumeRecycled"
	// ReasonVolumeUnknownReclaimPolicy says that the volume's reclaim policy is none that is known.
	ReasonVolumeUnknownReclaimPolicy = "VolumeUnknownReclaimPolicy"
)
