package volume

import (
	"fmt"
	"math/bits"
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

// sources returns which sources are set in the spec. A field of a newer k8s.io/api is not seen; such a spec is served by
// plugins that declare no kinds.
func (s *Spec) sources(scope SpecScope) sourceSet {
	var set sourceSet
	if s.Volume != nil && scope != PersistentScope {
		set = inlineSources(&s.Volume.VolumeSource)
	}
	if s.PersistentVolume != nil && scope != PodScope {
		set |= persistentSources(&s.PersistentVolume.Spec.PersistentVolumeSource)
	}
	return set
}

// CheckSources refuses a spec with more than one source: whichever plugin served it would leave the others out. The error
// matches [ErrInvalid]. A spec without a source is one that no plugin serves.
func CheckSources(spec *Spec) error {
	if spec == nil || bits.OnesCount64(uint64(spec.sources(AnyScope))) < 2 {
		return nil
	}
	return fmt.Errorf("%s: set exactly one source: %w", describeSpec(spec), ErrInvalid)
}

// inlineSources is in the way of every look-up: no reflection here.
func inlineSources(v *v1.VolumeSource) sourceSet {
	var set sourceSet
	add(&set, v.AWSElasticBlockStore, sourceAWS)
	add(&set, v.AzureDisk, sourceAzureDisk)
	add(&set, v.AzureFile, sourceAzureFile)
	add(&set, v.CephFS, sourceCephFS)
	add(&set, v.Cinder, sourceCinder)
	add(&set, v.ConfigMap, sourceConfigMap)
	add(&set, v.CSI, sourceCSI)
	add(&set, v.DownwardAPI, sourceDownwardAPI)
	add(&set, v.EmptyDir, sourceEmptyDir)
	add(&set, v.Ephemeral, sourceEphemeral)
	add(&set, v.FC, sourceFC)
	add(&set, v.FlexVolume, sourceFlexVolume)
	add(&set, v.Flocker, sourceFlocker)
	add(&set, v.GCEPersistentDisk, sourceGCE)
	add(&set, v.GitRepo, sourceGitRepo)
	add(&set, v.Glusterfs, sourceGlusterfs)
	add(&set, v.HostPath, sourceHostPath)
	add(&set, v.Image, sourceImage)
	add(&set, v.ISCSI, sourceISCSI)
	add(&set, v.NFS, sourceNFS)
	add(&set, v.PersistentVolumeClaim, sourceClaim)
	add(&set, v.PhotonPersistentDisk, sourcePhoton)
	add(&set, v.PortworxVolume, sourcePortworx)
	add(&set, v.Projected, sourceProjected)
	add(&set, v.Quobyte, sourceQuobyte)
	add(&set, v.RBD, sourceRBD)
	add(&set, v.ScaleIO, sourceScaleIO)
	add(&set, v.Secret, sourceSecret)
	add(&set, v.StorageOS, sourceStorageOS)
	add(&set, v.VsphereVolume, sourceVsphere)
	return set
}

func persistentSources(v *v1.PersistentVolumeSource) sourceSet {
	var set sourceSet
	add(&set, v.AWSElasticBlockStore, sourceAWS)
	add(&set, v.AzureDisk, sourceAzureDisk)
	add(&set, v.AzureFile, sourceAzureFile)
	add(&set, v.CephFS, sourceCephFS)
	add(&set, v.Cinder, sourceCinder)
	add(&set, v.CSI, sourceCSI)
	add(&set, v.FC, sourceFC)
	add(&set, v.FlexVolume, sourceFlexVolume)
	add(&set, v.Flocker, sourceFlocker)
	add(&set, v.GCEPersistentDisk, sourceGCE)
	add(&set, v.Glusterfs, sourceGlusterfs)
	add(&set, v.HostPath, sourceHostPath)
	add(&set, v.ISCSI, sourceISCSI)
	add(&set, v.Local, sourceLocal)
	add(&set, v.NFS, sourceNFS)
	add(&set, v.PhotonPersistentDisk, sourcePhoton)
	add(&set, v.PortworxVolume, sourcePortworx)
	add(&set, v.Quobyte, sourceQuobyte)
	add(&set, v.RBD, sourceRBD)
	add(&set, v.ScaleIO, sourceScaleIO)
	add(&set, v.StorageOS, sourceStorageOS)
	add(&set, v.VsphereVolume, sourceVsphere)
	return set
}

// add adds s to set when field is set. It writes through a pointer so that the compiler makes it a jump that is nearly
// never taken: thirty of those take half the time of thirty conditional moves.
func add[T any](set *sourceSet, field *T, s source) {
	if field != nil {
		*set |= 1 << s
	}
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
