package volume

import "strings"

// Capabilities is a set of things that a plugin can do beside setting a volume up. The zero value is the empty set.
type Capabilities uint32

// The capabilities, each named after the interface that gives it.
const (
	CapPersistent    Capabilities = 1 << iota // PersistentVolumePlugin
	CapRecycle                                // RecyclableVolumePlugin
	CapDelete                                 // DeletableVolumePlugin
	CapProvision                              // ProvisionableVolumePlugin
	CapAttach                                 // AttachableVolumePlugin
	CapDeviceMount                            // DeviceMountableVolumePlugin
	CapExpand                                 // ExpandableVolumePlugin
	CapNodeExpand                             // NodeExpandableVolumePlugin
	CapAttachLimits                           // VolumePluginWithAttachLimits
	CapBlock                                  // BlockVolumePlugin
	CapRemount                                // RemountableVolumePlugin
	CapMountOptions                           // MountOptionVolumePlugin
	CapSELinux                                // SELinuxVolumePlugin
	CapReconstruct                            // ReconstructableVolumePlugin
	CapBulkVerify                             // BulkVolumeVerifier
	CapClone                                  // CloneableVolumePlugin
	CapReuse                                  // ReusableVolumePlugin
	CapModify                                 // ModifiableVolumePlugin
	CapSnapshot                               // SnapshottableVolumePlugin
	CapListSnapshots                          // SnapshotLister
	CapGroupSnapshot                          // GroupSnapshottableVolumePlugin
	CapCapacity                               // VolumePluginWithCapacity

	// AllCapabilities is the set of all of them.
	AllCapabilities Capabilities = 1<<iota - 1
)

// capabilityNames is in the order of the constants.
var capabilityNames = [...]string{
	"persistent", "recycle", "delete", "provision", "attach", "device-mount", "expand", "node-expand",
	"attach-limits", "block", "remount", "mount-options", "selinux", "reconstruct", "bulk-verify",
	"clone", "reuse", "modify",
	"snapshot", "list-snapshots", "group-snapshot",
	"capacity",
}

// Has reports whether all of want are in the set.
func (c Capabilities) Has(want Capabilities) bool { return c&want == want }

// String lists the set, such as "attach,delete"; the empty set is "none".
func (c Capabilities) String() string {
	var names []string
	for i, name := range capabilityNames {
		if c&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	if names == nil {
		return "none"
	}
	return strings.Join(names, ",")
}

// CapabilitiesOf returns what plugin can do: what its type implements, narrowed by [CapabilityLimiter]. The registry
// asks once, at registration.
func CapabilitiesOf(plugin VolumePlugin) Capabilities {
	c := typeCapabilities(plugin)
	if m, ok := plugin.(MountOptionVolumePlugin); ok && m.SupportsMountOption() {
		c |= CapMountOptions
	}
	if l, ok := plugin.(CapabilityLimiter); ok {
		c &= l.Capabilities()
	}
	if !c.Has(CapDeviceMount) {
		c &^= CapAttach
	}
	if !c.Has(CapProvision) {
		c &^= CapClone | CapSnapshot | CapCapacity
	}
	if !c.Has(CapSnapshot) {
		c &^= CapListSnapshots | CapGroupSnapshot
	}
	return c
}

func typeCapabilities(plugin VolumePlugin) Capabilities {
	var c Capabilities
	add := func(ok bool, capability Capabilities) {
		if ok {
			c |= capability
		}
	}
	add(implements[PersistentVolumePlugin](plugin), CapPersistent)
	add(implements[RecyclableVolumePlugin](plugin), CapRecycle)
	add(implements[DeletableVolumePlugin](plugin), CapDelete)
	add(implements[ProvisionableVolumePlugin](plugin), CapProvision)
	add(implements[AttachableVolumePlugin](plugin), CapAttach)
	add(implements[DeviceMountableVolumePlugin](plugin), CapDeviceMount)
	add(implements[ExpandableVolumePlugin](plugin), CapExpand)
	add(implements[NodeExpandableVolumePlugin](plugin), CapNodeExpand)
	add(implements[VolumePluginWithAttachLimits](plugin), CapAttachLimits)
	add(implements[BlockVolumePlugin](plugin), CapBlock)
	add(implements[RemountableVolumePlugin](plugin), CapRemount)
	add(implements[SELinuxVolumePlugin](plugin), CapSELinux)
	add(implements[ReconstructableVolumePlugin](plugin), CapReconstruct)
	add(implements[BulkVolumeVerifier](plugin), CapBulkVerify)
	add(implements[CloneableVolumePlugin](plugin), CapClone)
	add(implements[ReusableVolumePlugin](plugin), CapReuse)
	add(implements[ModifiableVolumePlugin](plugin), CapModify)
	add(implements[SnapshottableVolumePlugin](plugin), CapSnapshot)
	add(implements[SnapshotLister](plugin), CapListSnapshots)
	add(implements[GroupSnapshottableVolumePlugin](plugin), CapGroupSnapshot)
	add(implements[VolumePluginWithCapacity](plugin), CapCapacity)
	return c
}

func implements[T any](v any) bool {
	_, ok := v.(T)
	return ok
}
