package objects

// The reasons of events that programs do not match. They are Kubernetes' reasons.
const (
	// ReasonProvisioningSucceeded says that the plugin has created a volume.
	ReasonProvisioningSucceeded = "ProvisioningSucceeded"
	// ReasonPopulationSucceeded says that a populator has filled the volume. Kubernetes has no such reason.
	ReasonPopulationSucceeded = "PopulationSucceeded"
	// ReasonProvisioningCleanupFailed says that new storage could neither be recorded nor deleted.
	ReasonProvisioningCleanupFailed = "ProvisioningCleanupFailed"
	// ReasonClaimLost says that the claim's volume is gone.
	ReasonClaimLost = "ClaimLost"
	// ReasonClaimMisbound says that the claim's volume belongs to another claim.
	ReasonClaimMisbound = "ClaimMisbound"
	// ReasonFailedClaim says that a pod's ephemeral volume can have no claim.
	ReasonFailedClaim = "FailedClaim"
	// ReasonVolumeDelete says that the volume is still in use; its deletion is retried.
	ReasonVolumeDelete = "VolumeDelete"
	// ReasonVolumeFailedDelete says that the volume could not be deleted; the deletion is retried.
	ReasonVolumeFailedDelete = "VolumeFailedDelete"
	// ReasonVolumeFailedRecycle says that the volume cannot be recycled, or that recycling failed and is retried.
	ReasonVolumeFailedRecycle = "VolumeFailedRecycle"
	// ReasonVolumeRecycled says that the volume was emptied and is available again.
	ReasonVolumeRecycled = "VolumeRecycled"
	// ReasonVolumeUnknownReclaimPolicy says that the volume's reclaim policy is unknown.
	ReasonVolumeUnknownReclaimPolicy = "VolumeUnknownReclaimPolicy"
)
