package volume

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// ContainsAccessMode reports whether mode is one of modes.
func ContainsAccessMode(modes []v1.PersistentVolumeAccessMode, mode v1.PersistentVolumeAccessMode) bool {
	return slices.Contains(modes, mode)
}

// ContainsAllAccessModes reports whether every one of wanted is in have; true when nothing is wanted.
func ContainsAllAccessModes(have, wanted []v1.PersistentVolumeAccessMode) bool {
	for _, mode := range wanted {
		if !ContainsAccessMode(have, mode) {
			return false
		}
	}
	return true
}

// IsMultiAttachAllowed reports whether spec may be attached to more than one node at once, as Kubernetes decides: a
// PersistentVolume may when it says nothing about access modes or has ReadWriteMany or ReadOnlyMany; a volume without a
// claim may, unless its source is a disk of Azure or Cinder; so may an unknown (nil) spec.
func IsMultiAttachAllowed(spec *Spec) bool {
	switch {
	case spec == nil:
		return true
	case spec.Volume != nil:
		return spec.Volume.AzureDisk == nil && spec.Volume.Cinder == nil
	case spec.PersistentVolume != nil:
		modes := spec.PersistentVolume.Spec.AccessModes
		return len(modes) == 0 ||
			ContainsAccessMode(modes, v1.ReadWriteMany) || ContainsAccessMode(modes, v1.ReadOnlyMany)
	}
	return true
}

// IsReadOnlyMany reports whether spec is read-only for every pod: a PersistentVolume with at least one access mode, all of them
// ReadOnlyMany.
func IsReadOnlyMany(spec *Spec) bool {
	if spec == nil || spec.PersistentVolume == nil {
		return false
	}
	modes := spec.PersistentVolume.Spec.AccessModes
	return len(modes) > 0 && !slices.ContainsFunc(modes, func(m v1.PersistentVolumeAccessMode) bool { return m != v1.ReadOnlyMany })
}

// GetVolumeMode returns whether spec is a filesystem or a block device. Nil, a volume without a claim and a
// PersistentVolume without a mode are filesystems: an API server fills in that default, and programs without one need it
// too. (Kubernetes' own function returns an error for a PersistentVolume without a mode.) The error for a mode that does
// not exist matches [ErrInvalid].
func GetVolumeMode(spec *Spec) (v1.PersistentVolumeMode, error) {
	if spec == nil || spec.PersistentVolume == nil || spec.PersistentVolume.Spec.VolumeMode == nil {
		return v1.PersistentVolumeFilesystem, nil
	}
	mode := *spec.PersistentVolume.Spec.VolumeMode
	if mode != v1.PersistentVolumeFilesystem && mode != v1.PersistentVolumeBlock {
		return "", fmt.Errorf("volume %q has volumeMode %q: use Filesystem or Block: %w", spec.Name(), mode, ErrInvalid)
	}
	return mode, nil
}

// IsBlock reports whether pods get the volume as a device. One whose mode does not exist counts as a filesystem: the mount says
// what is wrong with it.
func IsBlock(spec *Spec) bool {
	mode, err := GetVolumeMode(spec)
	return err == nil && mode == v1.PersistentVolumeBlock
}

// CheckVolumeModeFilesystem reports whether spec is used as a filesystem. With an error, that of [GetVolumeMode], the
// answer is false.
func CheckVolumeModeFilesystem(spec *Spec) (bool, error) {
	mode, err := GetVolumeMode(spec)
	return err == nil && mode == v1.PersistentVolumeFilesystem, err
}

// CheckPersistentVolumeClaimModeBlock reports whether claim asks for a block device. One that does not say, and nil,
// ask for a filesystem.
func CheckPersistentVolumeClaimModeBlock(claim *v1.PersistentVolumeClaim) bool {
	return claim != nil && claim.Spec.VolumeMode != nil && *claim.Spec.VolumeMode == v1.PersistentVolumeBlock
}

// IsLocalEphemeralVolume reports whether vol takes up disk space of the node and goes with the pod: an emptyDir that is
// not in memory, a configMap or a gitRepo. Secrets and projected volumes live in memory.
func IsLocalEphemeralVolume(vol *v1.Volume) bool {
	if vol == nil {
		return false
	}
	return vol.GitRepo != nil || vol.ConfigMap != nil ||
		(vol.EmptyDir != nil && vol.EmptyDir.Medium == v1.StorageMediumDefault)
}
