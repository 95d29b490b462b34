package volume

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// source is one field of v1.VolumeSource or v1.PersistentVolumeSource; fields of one name in both are one source. It is
// an index of sourceNames.
type source uint8

// sourceSet is a set of sources, bit by bit.
type sourceSet uint64

const (
	sourceAWS source = iota
	sourceAzureDisk
	sourceAzureFile
	sourceCephFS
	sourceCinder
	sourceConfigMap
	sourceCSI
	sourceDownwardAPI
	sourceEmptyDir
	sourceEphemeral
	sourceFC
	sourceFlexVolume
	sourceFlocker
	sourceGCE
	sourceGitRepo
	sourceGlusterfs
	sourceHostPath
	sourceImage
	sourceISCSI
	sourceLocal
	sourceNFS
	sourceClaim
	sourcePhoton
	sourcePortworx
	sourceProjected
	sourceQuobyte
	sourceRBD
	sourceScaleIO
	sourceSecret
	sourceStorageOS
	sourceVsphere
	sourceCount
)

// sourceNames are the names as they are written in a manifest, in the order of the constants.
var sourceNames = [sourceCount]string{
	"awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder", "configMap", "csi", "downwardAPI", "emptyDir",
	"ephemeral", "fc", "flexVolume", "flocker", "gcePersistentDisk", "gitRepo", "glusterfs", "hostPath", "image", "iscsi",
	"local", "nfs", "persistentVolumeClaim", "photonPersistentDisk", "portworxVolume", "projected", "quobyte", "rbd",
	"scaleIO", "secret", "storageos", "vsphereVolume",
}

// sourceNamed returns the source of that name, and false when there is none.
func sourceNamed(name string) (source, bool) {
	i := slices.Index(sourceNames[:], name)
	return source(max(i, 0)), i >= 0
}

// sources returns which sources are set in the spec. It is in the way of every look-up: no reflection here. A field of a
// newer k8s.io/api is not seen; such a spec is served by plugins that declare no kinds.
func (s *Spec) sources() sourceSet {
	var set sourceSet
	if s.Volume != nil {
		set = inlineSources(&s.Volume.VolumeSource)
	}
	if s.PersistentVolume != nil {
		set |= persistentSources(&s.PersistentVolume.Spec.PersistentVolumeSource)
	}
	return set
}

func inlineSources(v *v1.VolumeSource) sourceSet {
	return has(v.AWSElasticBlockStore, sourceAWS) | has(v.AzureDisk, sourceAzureDisk) |
		has(v.AzureFile, sourceAzureFile) | has(v.CephFS, sourceCephFS) | has(v.Cinder, sourceCinder) |
		has(v.ConfigMap, sourceConfigMap) | has(v.CSI, sourceCSI) | has(v.DownwardAPI, sourceDownwardAPI) |
		has(v.EmptyDir, sourceEmptyDir) | has(v.Ephemeral, sourceEphemeral) | has(v.FC, sourceFC) |
		has(v.FlexVolume, sourceFlexVolume) | has(v.Flocker, sourceFlocker) | has(v.GCEPersistentDisk, sourceGCE) |
		has(v.GitRepo, sourceGitRepo) | has(v.Glusterfs, sourceGlusterfs) | has(v.HostPath, sourceHostPath) |
		has(v.Image, sourceImage) | has(v.ISCSI, sourceISCSI) | has(v.NFS, sourceNFS) |
		has(v.PersistentVolumeClaim, sourceClaim) | has(v.PhotonPersistentDisk, sourcePhoton) |
		has(v.PortworxVolume, sourcePortworx) | has(v.Projected, sourceProjected) | has(v.Quobyte, sourceQuobyte) |
		has(v.RBD, sourceRBD) | has(v.ScaleIO, sourceScaleIO) | has(v.Secret, sourceSecret) |
		has(v.StorageOS, sourceStorageOS) | has(v.VsphereVolume, sourceVsphere)
}

func persistentSources(v *v1.PersistentVolumeSource) sourceSet {
	return has(v.AWSElasticBlockStore, sourceAWS) | has(v.AzureDisk, sourceAzureDisk) |
		has(v.AzureFile, sourceAzureFile) | has(v.CephFS, sourceCephFS) | has(v.Cinder, sourceCinder) |
		has(v.CSI, sourceCSI) | has(v.FC, sourceFC) | has(v.FlexVolume, sourceFlexVolume) |
		has(v.Flocker, sourceFlocker) | has(v.GCEPersistentDisk, sourceGCE) | has(v.Glusterfs, sourceGlusterfs) |
		has(v.HostPath, sourceHostPath) | has(v.ISCSI, sourceISCSI) | has(v.Local, sourceLocal) |
		has(v.NFS, sourceNFS) | has(v.PhotonPersistentDisk, sourcePhoton) | has(v.PortworxVolume, sourcePortworx) |
		has(v.Quobyte, sourceQuobyte) | has(v.RBD, sourceRBD) | has(v.ScaleIO, sourceScaleIO) |
		has(v.StorageOS, sourceStorageOS) | has(v.VsphereVolume, sourceVsphere)
}

// has is the set of source when field is set, else the empty set.
func has[T any](field *T, s source) sourceSet {
	if field == nil {
		return 0
	}
	return 1 << s
}

// driverOf returns the driver that is named in src, as it stands there, and false when src is not set or names none.
func (s *Spec) driverOf(src source) (string, bool) {
	if src == sourceCSI {
		return s.csiDriver()
	}
	if src == sourceFlexVolume {
		return s.flexDriver()
	}
	return "", false
}

// csiDriver returns the driver that the spec's csi source names, as it stands there, and false when it has none.
func (s *Spec) csiDriver() (string, bool) {
	switch {
	case s.Volume != nil:
		if csi := s.Volume.CSI; csi != nil {
			return csi.Driver, true
		}
	case s.PersistentVolume != nil:
		if csi := s.PersistentVolume.Spec.CSI; csi != nil {
			return csi.Driver, true
		}
	}
	return "", false
}

// flexDriver is csiDriver for the flexVolume source.
func (s *Spec) flexDriver() (string, bool) {
	switch {
	case s.Volume != nil:
		if flex := s.Volume.FlexVolume; flex != nil {
			return flex.Driver, true
		}
	case s.PersistentVolume != nil:
		if flex := s.PersistentVolume.Spec.FlexVolume; flex != nil {
			return flex.Driver, true
		}
	}
	return "", false
}
