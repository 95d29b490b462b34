package volumemanager

import (
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
)

// OCIVolumes is [ContainerVolumes] in the words of the OCI runtime specification. The structs have the names and the JSON of
// github.com/opencontainers/runtime-spec/specs-go, which this module does not need.
type OCIVolumes struct {
	// Mounts go into mounts, in this order, after those of the container's own system directories.
	Mounts []OCIMount
	// Devices go into linux.devices.
	Devices []OCIDevice
	// DeviceRules go into linux.resources.devices, after a rule that denies all.
	DeviceRules []OCIDeviceRule
}

// OCIMount is Mount of the specification.
type OCIMount struct {
	// Destination is the absolute path in the container.
	Destination string `json:"destination"`
	// Type is always "bind".
	Type string `json:"type,omitempty"`
	// Source is the absolute path on the host.
	Source string `json:"source,omitempty"`
	// Options are rbind, the propagation, one of rw, ro, rro, and ridmap if there are mappings.
	Options []string `json:"options,omitempty"`
	// UIDMappings and GIDMappings map the owners in the mount. They are of version 1.1 of the specification, ridmap is of 1.2.
	UIDMappings []OCIIDMapping `json:"uidMappings,omitempty"`
	GIDMappings []OCIIDMapping `json:"gidMappings,omitempty"`
}

// OCIIDMapping is LinuxIDMapping of the specification.
type OCIIDMapping struct {
	// ContainerID is the first id in the container, HostID the first on the host.
	ContainerID uint32 `json:"containerID"`
	HostID      uint32 `json:"hostID"`
	// Size is how many ids there are.
	Size uint32 `json:"size"`
}

// OCIDevice is LinuxDevice of the specification.
type OCIDevice struct {
	// Path is the absolute path in the container.
	Path string `json:"path"`
	// Type is always "b", a block device.
	Type string `json:"type"`
	// Major and Minor are the number of the device.
	Major int64 `json:"major"`
	Minor int64 `json:"minor"`
}

// OCIDeviceRule is LinuxDeviceCgroup of the specification.
type OCIDeviceRule struct {
	// Allow is always true.
	Allow bool `json:"allow"`
	// Type is always "b", a block device.
	Type string `json:"type,omitempty"`
	// Major and Minor are the number of the device; never nil.
	Major *int64 `json:"major,omitempty"`
	Minor *int64 `json:"minor,omitempty"`
	// Access is "rwm", or "rm" when the container may only read the device.
	Access string `json:"access,omitempty"`
}

// ociPropagations are the modes as options of a mount.
var ociPropagations = map[v1.MountPropagationMode]string{
	v1.MountPropagationNone: "rprivate", v1.MountPropagationHostToContainer: "rslave", v1.MountPropagationBidirectional: "rshared",
}

// OCI returns the volumes of a container for an OCI runtime. A mount with Relabel set has no field there: give all that lies at its
// source the container's SELinux label before the container starts.
func (v ContainerVolumes) OCI() OCIVolumes {
	var oci OCIVolumes
	for _, m := range v.Mounts {
		made := OCIMount{
			Destination: m.Target, Type: "bind", Source: m.Source, Options: []string{"rbind", ociPropagations[m.Propagation], m.ociAccess()},
		}
		if !m.IDMappings.IsZero() {
			made.Options = append(made.Options, "ridmap")
			made.UIDMappings, made.GIDMappings = ociMappings(m.IDMappings.UIDs), ociMappings(m.IDMappings.GIDs)
		}
		oci.Mounts = append(oci.Mounts, made)
	}
	for _, d := range v.Devices {
		major, minor := int64(d.Major), int64(d.Minor)
		oci.Devices = append(oci.Devices, OCIDevice{Path: d.Target, Type: "b", Major: major, Minor: minor})
		oci.DeviceRules = append(oci.DeviceRules, OCIDeviceRule{Allow: true, Type: "b", Major: &major, Minor: &minor, Access: d.Permissions})
	}
	return oci
}

func ociMappings(ranges []mount.IDMapping) []OCIIDMapping {
	var all []OCIIDMapping
	for _, r := range ranges {
		all = append(all, OCIIDMapping(r))
	}
	return all
}

func (m ContainerMount) ociAccess() string {
	switch {
	case m.RecursiveReadOnly:
		return "rro"
	case m.ReadOnly:
		return "ro"
	}
	return "rw"
}

// CRIVolumes is [ContainerVolumes] in the words of the CRI. The structs have the fields of
// k8s.io/cri-api/pkg/apis/runtime/v1. Copy them field by field: this module does not depend on that one.
type CRIVolumes struct {
	// Mounts are mounts of ContainerConfig, in this order.
	Mounts []CRIMount
	// Devices are devices of ContainerConfig.
	Devices []CRIDevice
}

// CRIMount is Mount of the CRI.
type CRIMount struct {
	// ContainerPath is the absolute path in the container, HostPath that on the host.
	ContainerPath, HostPath string
	// Readonly and RecursiveReadOnly say what the container may not write. The second comes with the first only.
	Readonly, RecursiveReadOnly bool
	// SelinuxRelabel says that the content is to be given the container's label.
	SelinuxRelabel bool
	// Propagation converts to MountPropagation of the CRI.
	Propagation CRIPropagation
	// UIDMappings and GIDMappings map the owners in the mount. The pod's sandbox must have the same (NamespaceOption.userns_options).
	UIDMappings, GIDMappings []CRIIDMapping
}

// CRIIDMapping is IDMapping of the CRI.
type CRIIDMapping struct {
	// ContainerID is the first id in the container, HostID the first on the host.
	ContainerID, HostID uint32
	// Length is how many ids there are.
	Length uint32
}

// CRIDevice is Device of the CRI.
type CRIDevice struct {
	// ContainerPath is the absolute path in the container, HostPath that on the host.
	ContainerPath, HostPath string
	// Permissions are "rwm", or "rm" when the container may only read the device.
	Permissions string
}

// CRIPropagation is the enumeration MountPropagation of the CRI, with its numbers.
type CRIPropagation int32

// The propagations of the CRI.
const (
	CRIPropagationPrivate         CRIPropagation = 0
	CRIPropagationHostToContainer CRIPropagation = 1
	CRIPropagationBidirectional   CRIPropagation = 2
)

// String returns the name in the CRI.
func (p CRIPropagation) String() string {
	switch p {
	case CRIPropagationHostToContainer:
		return "PROPAGATION_HOST_TO_CONTAINER"
	case CRIPropagationBidirectional:
		return "PROPAGATION_BIDIRECTIONAL"
	default:
		return "PROPAGATION_PRIVATE"
	}
}

var criPropagations = map[v1.MountPropagationMode]CRIPropagation{
	v1.MountPropagationNone: CRIPropagationPrivate, v1.MountPropagationHostToContainer: CRIPropagationHostToContainer,
	v1.MountPropagationBidirectional: CRIPropagationBidirectional,
}

// CRI returns the volumes of a container for a runtime of the CRI.
func (v ContainerVolumes) CRI() CRIVolumes {
	var cri CRIVolumes
	for _, m := range v.Mounts {
		cri.Mounts = append(cri.Mounts, CRIMount{
			ContainerPath: m.Target, HostPath: m.Source, Readonly: m.ReadOnly, RecursiveReadOnly: m.RecursiveReadOnly,
			SelinuxRelabel: m.Relabel, Propagation: criPropagations[m.Propagation],
			UIDMappings: criMappings(m.IDMappings.UIDs), GIDMappings: criMappings(m.IDMappings.GIDs),
		})
	}
	for _, d := range v.Devices {
		cri.Devices = append(cri.Devices, CRIDevice{ContainerPath: d.Target, HostPath: d.Source, Permissions: d.Permissions})
	}
	return cri
}

func criMappings(ranges []mount.IDMapping) []CRIIDMapping {
	var all []CRIIDMapping
	for _, r := range ranges {
		all = append(all, CRIIDMapping{ContainerID: r.ContainerID, HostID: r.HostID, Length: r.Size})
	}
	return all
}
