package volume

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
)

// The look-ups of this file ask for a plugin that can do a certain thing. Where Kubernetes returns nil and no error for
// a plugin that cannot, they return a [*LookupError] that matches both [ErrNoPlugin] and [ErrUnsupported].

// FindPersistentPluginBySpec returns the plugin that supports spec, if it is a [PersistentVolumePlugin].
func (m *VolumePluginMgr) FindPersistentPluginBySpec(spec *Spec) (PersistentVolumePlugin, error) {
	plugin, _, err := findBySpec[PersistentVolumePlugin](m, spec, CapPersistent)
	return plugin, err
}

// FindRecyclablePluginBySpec returns the plugin that supports spec, if it is a [RecyclableVolumePlugin].
func (m *VolumePluginMgr) FindRecyclablePluginBySpec(spec *Spec) (RecyclableVolumePlugin, error) {
	plugin, _, err := findBySpec[RecyclableVolumePlugin](m, spec, CapRecycle)
	return plugin, err
}

// FindProvisionablePluginByName returns the plugin of that name, if it is a [ProvisionableVolumePlugin].
func (m *VolumePluginMgr) FindProvisionablePluginByName(name string) (ProvisionableVolumePlugin, error) {
	return findByName[ProvisionableVolumePlugin](m, name, CapProvision)
}

// FindCloneablePluginBySpec returns the plugin that supports spec, if it is a [CloneableVolumePlugin] and its CanClone says
// yes to spec, the volume that is to be copied. An error of CanClone is returned wrapped.
func (m *VolumePluginMgr) FindCloneablePluginBySpec(spec *Spec) (CloneableVolumePlugin, error) {
	plugin, entry, err := findBySpec[CloneableVolumePlugin](m, spec, CapClone)
	if err != nil {
		return nil, err
	}
	ok, err := entry.can("CanClone", plugin.CanClone, spec)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, entry.lacks(describeSpec(spec), CapClone)
	}
	return plugin, nil
}

// FindDeletablePluginBySpec returns the plugin that supports spec, if it is a [DeletableVolumePlugin].
func (m *VolumePluginMgr) FindDeletablePluginBySpec(spec *Spec) (DeletableVolumePlugin, error) {
	plugin, _, err := findBySpec[DeletableVolumePlugin](m, spec, CapDelete)
	return plugin, err
}

// FindDeletablePluginByName returns the plugin of that name, if it is a [DeletableVolumePlugin].
func (m *VolumePluginMgr) FindDeletablePluginByName(name string) (DeletableVolumePlugin, error) {
	return findByName[DeletableVolumePlugin](m, name, CapDelete)
}

// FindAttachablePluginBySpec returns the plugin that supports spec, if it is an [AttachableVolumePlugin] and its
// CanAttach says yes to spec. An error of CanAttach is returned wrapped.
func (m *VolumePluginMgr) FindAttachablePluginBySpec(spec *Spec) (AttachableVolumePlugin, error) {
	plugin, entry, err := findBySpec[AttachableVolumePlugin](m, spec, CapAttach)
	if err != nil {
		return nil, err
	}
	ok, err := entry.can("CanAttach", plugin.CanAttach, spec)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, entry.lacks(describeSpec(spec), CapAttach)
	}
	return plugin, nil
}

// FindAttachablePluginByName returns the plugin of that name, if it is an [AttachableVolumePlugin]. Without a spec it
// cannot ask CanAttach.
func (m *VolumePluginMgr) FindAttachablePluginByName(name string) (AttachableVolumePlugin, error) {
	return findByName[AttachableVolumePlugin](m, name, CapAttach)
}

// FindDeviceMountablePluginBySpec returns the plugin that supports spec, if it is a [DeviceMountableVolumePlugin] and
// its CanDeviceMount says yes to spec. An error of CanDeviceMount is returned wrapped.
func (m *VolumePluginMgr) FindDeviceMountablePluginBySpec(spec *Spec) (DeviceMountableVolumePlugin, error) {
	plugin, entry, err := findBySpec[DeviceMountableVolumePlugin](m, spec, CapDeviceMount)
	if err != nil {
		return nil, err
	}
	ok, err := entry.can("CanDeviceMount", plugin.CanDeviceMount, spec)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, entry.lacks(describeSpec(spec), CapDeviceMount)
	}
	return plugin, nil
}

// FindDeviceMountablePluginByName returns the plugin of that name, if it is a [DeviceMountableVolumePlugin]. Without a
// spec it cannot ask CanDeviceMount.
func (m *VolumePluginMgr) FindDeviceMountablePluginByName(name string) (DeviceMountableVolumePlugin, error) {
	return findByName[DeviceMountableVolumePlugin](m, name, CapDeviceMount)
}

// FindMapperPluginBySpec returns the plugin that supports spec, if it is a [BlockVolumePlugin].
func (m *VolumePluginMgr) FindMapperPluginBySpec(spec *Spec) (BlockVolumePlugin, error) {
	plugin, _, err := findBySpec[BlockVolumePlugin](m, spec, CapBlock)
	return plugin, err
}

// FindMapperPluginByName returns the plugin of that name, if it is a [BlockVolumePlugin].
func (m *VolumePluginMgr) FindMapperPluginByName(name string) (BlockVolumePlugin, error) {
	return findByName[BlockVolumePlugin](m, name, CapBlock)
}

// FindExpandablePluginBySpec returns the plugin that supports spec, if it is an [ExpandableVolumePlugin].
func (m *VolumePluginMgr) FindExpandablePluginBySpec(spec *Spec) (ExpandableVolumePlugin, error) {
	plugin, _, err := findBySpec[ExpandableVolumePlugin](m, spec, CapExpand)
	return plugin, err
}

// FindModifiablePluginBySpec returns the plugin that supports spec, if it is a [ModifiableVolumePlugin].
func (m *VolumePluginMgr) FindModifiablePluginBySpec(spec *Spec) (ModifiableVolumePlugin, error) {
	plugin, _, err := findBySpec[ModifiableVolumePlugin](m, spec, CapModify)
	return plugin, err
}

// FindNodeExpandablePluginBySpec returns the plugin that supports spec, if it is a [NodeExpandableVolumePlugin].
func (m *VolumePluginMgr) FindNodeExpandablePluginBySpec(spec *Spec) (NodeExpandableVolumePlugin, error) {
	plugin, _, err := findBySpec[NodeExpandableVolumePlugin](m, spec, CapNodeExpand)
	return plugin, err
}

// FindAttachLimitPluginByName returns the plugin of that name, if it is a [VolumePluginWithAttachLimits].
func (m *VolumePluginMgr) FindAttachLimitPluginByName(name string) (VolumePluginWithAttachLimits, error) {
	return findByName[VolumePluginWithAttachLimits](m, name, CapAttachLimits)
}

// FindBulkVerifierByName returns the plugin of that name, if it is a [BulkVolumeVerifier].
func (m *VolumePluginMgr) FindBulkVerifierByName(name string) (BulkVolumeVerifier, error) {
	return findByName[BulkVolumeVerifier](m, name, CapBulkVerify)
}

// FindReconstructablePluginByName returns the plugin of that name, if it is a [ReconstructableVolumePlugin].
func (m *VolumePluginMgr) FindReconstructablePluginByName(name string) (ReconstructableVolumePlugin, error) {
	return findByName[ReconstructableVolumePlugin](m, name, CapReconstruct)
}

// SupportsMountOption reports whether the plugin of that name honours mount options; false when there is no such
// plugin.
func (m *VolumePluginMgr) SupportsMountOption(pluginName string) bool {
	return m.Capabilities(pluginName).Has(CapMountOptions)
}

// CanReuse reports whether a volume of spec that is found after a restart, mounted as it was set up, needs no SetUp. It is
// false for a plugin without [ReusableVolumePlugin], and for a volume that is set up again whenever its pod is updated: such
// a volume has to show what its content has become since.
func (m *VolumePluginMgr) CanReuse(spec *Spec) (bool, error) {
	entry, err := m.entryBySpec(spec)
	if err != nil {
		return false, err
	}
	if yes, err := entry.answer(requiresRemount(), spec); yes || err != nil {
		return false, err
	}
	return entry.answer(canReuse(), spec)
}

// IsAttachable reports whether spec is a volume that must be attached to a node. It is
// [VolumePluginMgr.FindAttachablePluginBySpec] for those who only want to know: a plugin that does not attach is no
// error, one that is not there is.
func (m *VolumePluginMgr) IsAttachable(spec *Spec) (bool, error) {
	entry, err := m.entryBySpec(spec)
	if err != nil {
		return false, err
	}
	return entry.answer(canAttach(), spec)
}

// IsDeviceMountable reports whether spec is a volume that must be staged before it is set up, as
// [VolumePluginMgr.IsAttachable] does for attaching.
func (m *VolumePluginMgr) IsDeviceMountable(spec *Spec) (bool, error) {
	entry, err := m.entryBySpec(spec)
	if err != nil {
		return false, err
	}
	return entry.answer(canDeviceMount(), spec)
}

// UniqueVolumeName returns the unique name of spec for the pod podName: the name that all pods share
// ([GetUniqueVolumeNameFromSpec]) when the volume is attachable or device-mountable, else the pod's own
// ([GetUniqueVolumeNameFromSpecWithPod]). All code that names a volume must use it, or one volume gets two names.
func (m *VolumePluginMgr) UniqueVolumeName(podName UniquePodName, spec *Spec) (v1.UniqueVolumeName, error) {
	entry, err := m.entryBySpec(spec)
	if err != nil {
		return "", err
	}
	shared, err := entry.shares(spec)
	if err != nil {
		return "", err
	}
	if shared {
		return entry.sharedName(spec)
	}
	return entry.ownName(podName, spec), nil
}

// shares reports whether the pods of a node share what the plugin makes of spec.
func (r *registered) shares(spec *Spec) (bool, error) {
	if yes, err := r.answer(canAttach(), spec); yes || err != nil {
		return yes, err
	}
	return r.answer(canDeviceMount(), spec)
}

// can calls ask, a method of a plugin about spec; call is its name.
func (r *registered) can(call string, ask func(*Spec) (bool, error), spec *Spec) (ok bool, err error) {
	if p := guard(r.name, call, func() { ok, err = ask(spec) }); p != nil {
		return false, spec.Secrets(r.publicKeys).Redact(p)
	}
	if err != nil {
		return false, r.cannotSay(call, spec, err)
	}
	return ok, nil
}

// cannotSay is the error of a plugin that did not answer a query.
func (r *registered) cannotSay(call string, spec *Spec, err error) error {
	return fmt.Errorf("volume plugin %q: %s of %s: %w", r.name, call, describeSpec(spec), spec.Secrets(r.publicKeys).Redact(err))
}
