package volume

import v1 "k8s.io/api/core/v1"

// Resolved is all that whoever keeps book of a volume has to know of its plugin, as it was answered at one moment.
type Resolved struct {
	// PluginName is the name of the plugin that serves the spec.
	PluginName string
	// Attachable says that the volume must be attached to a node.
	Attachable bool
	// DeviceMountable says that the volume must be staged before it is set up.
	DeviceMountable bool
	// RequiresRemount says that the volume is to be set up again whenever its pod is updated.
	RequiresRemount bool
	// SELinuxMount says that the volume can be mounted with an SELinux context.
	SELinuxMount bool
	// NodeExpandable says that the node must grow what is on the volume when the volume has grown.
	NodeExpandable bool

	entry *registered
	spec  *Spec
}

// Resolve looks the plugin of spec up, once, and asks it everything that [Resolved] holds. Errors are those of
// [VolumePluginMgr.FindPluginBySpec] and of the plugin's answers, wrapped.
func (m *VolumePluginMgr) Resolve(spec *Spec) (Resolved, error) {
	entry, err := m.entryBySpec(spec)
	if err != nil {
		return Resolved{}, err
	}
	r := Resolved{PluginName: entry.name, entry: entry, spec: spec}
	if r.Attachable, err = entry.attaches(spec); err != nil {
		return Resolved{}, err
	}
	if r.DeviceMountable, err = entry.stages(spec); err != nil {
		return Resolved{}, err
	}
	if r.RequiresRemount, err = entry.remounts(spec); err != nil {
		return Resolved{}, err
	}
	if r.SELinuxMount, err = entry.mountsWithContext(spec); err != nil {
		return Resolved{}, err
	}
	r.NodeExpandable, err = entry.growsOnNode(spec)
	return r, err
}

// UniqueVolumeName is [VolumePluginMgr.UniqueVolumeName] of the spec that was resolved.
func (r Resolved) UniqueVolumeName(podName UniquePodName) (v1.UniqueVolumeName, error) {
	if r.Attachable || r.DeviceMountable {
		return r.entry.sharedName(r.spec)
	}
	return r.entry.ownName(podName, r.spec), nil
}

// ownName is the unique name of spec where it belongs to one pod.
func (r *registered) ownName(podName UniquePodName, spec *Spec) v1.UniqueVolumeName {
	return v1.UniqueVolumeName(r.name + "/" + string(podName) + "-" + spec.Name())
}

// sharedName is the unique name of spec where the pods of a node share it.
func (r *registered) sharedName(spec *Spec) (name v1.UniqueVolumeName, err error) {
	p := guard(r.name, "GetVolumeName", func() { name, err = GetUniqueVolumeNameFromSpec(r.plugin, spec) })
	if p != nil {
		return "", p
	}
	return name, err
}

func (r *registered) attaches(spec *Spec) (bool, error) {
	plugin, ok := r.plugin.(AttachableVolumePlugin)
	if !ok || !r.capabilities.Has(CapAttach) {
		return false, nil
	}
	return r.can("CanAttach", plugin.CanAttach, spec)
}

func (r *registered) stages(spec *Spec) (bool, error) {
	plugin, ok := r.plugin.(DeviceMountableVolumePlugin)
	if !ok || !r.capabilities.Has(CapDeviceMount) {
		return false, nil
	}
	return r.can("CanDeviceMount", plugin.CanDeviceMount, spec)
}

func (r *registered) remounts(spec *Spec) (bool, error) {
	plugin, ok := r.plugin.(RemountableVolumePlugin)
	if !ok || !r.capabilities.Has(CapRemount) {
		return false, nil
	}
	return r.can("RequiresRemount", func(s *Spec) (bool, error) { return plugin.RequiresRemount(s), nil }, spec)
}

func (r *registered) mountsWithContext(spec *Spec) (bool, error) {
	plugin, ok := r.plugin.(SELinuxVolumePlugin)
	if !ok || !r.capabilities.Has(CapSELinux) {
		return false, nil
	}
	return r.can("SupportsSELinuxContextMount", plugin.SupportsSELinuxContextMount, spec)
}

func (r *registered) growsOnNode(spec *Spec) (bool, error) {
	plugin, ok := r.plugin.(NodeExpandableVolumePlugin)
	if !ok || !r.capabilities.Has(CapNodeExpand) {
		return false, nil
	}
	return r.can("RequiresFSResize", func(*Spec) (bool, error) { return plugin.RequiresFSResize(), nil }, spec)
}
