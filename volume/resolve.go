package volume

import v1 "k8s.io/api/core/v1"

// Resolved is what a cache of volumes keeps of a volume's plugin: the plugin's answers at one moment.
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
	var call string
	var yes [5]bool
	if p := guardCalls(entry.name, &call, func() { yes, err = entry.queryCapabilities(spec, &call) }); p != nil {
		return Resolved{}, spec.Secrets(entry.publicKeys).Redact(p)
	}
	return Resolved{
		PluginName: entry.name, Attachable: yes[0], DeviceMountable: yes[1], RequiresRemount: yes[2],
		SELinuxMount: yes[3], NodeExpandable: yes[4], entry: entry, spec: spec,
	}, err
}

// queryCapabilities calls the plugin's capability methods one after the other; *call is the name of the one under way.
func (r *registered) queryCapabilities(spec *Spec, call *string) (yes [5]bool, err error) {
	for i, q := range [...]capabilityQuery{
		canAttach(), canDeviceMount(), requiresRemount(), supportsSELinuxContextMount(), requiresFSResize(),
	} {
		if !r.capabilities.Has(q.needs) {
			continue
		}
		*call = q.call
		if yes[i], err = q.ask(r.plugin, spec); err != nil {
			return yes, r.cannotSay(q.call, spec, err)
		}
	}
	return yes, nil
}

// UniqueVolumeName is [VolumePluginMgr.UniqueVolumeName] of the spec that was resolved.
func (r Resolved) UniqueVolumeName(podName UniquePodName) (v1.UniqueVolumeName, error) {
	if r.Attachable || r.DeviceMountable {
		return r.entry.sharedName(r.spec)
	}
	return r.entry.ownName(podName, r.spec), nil
}

// SharedVolumeName is the unique name that the volume has where it must be attached or staged, also when it need not be.
func (r Resolved) SharedVolumeName() (v1.UniqueVolumeName, error) { return r.entry.sharedName(r.spec) }

// ownName is the unique name of spec where it belongs to one pod.
func (r *registered) ownName(podName UniquePodName, spec *Spec) v1.UniqueVolumeName {
	return ownVolumeName(r.name, podName, spec)
}

// sharedName is the unique name of spec where the pods of a node share it.
func (r *registered) sharedName(spec *Spec) (name v1.UniqueVolumeName, err error) {
	p := guard(r.name, "GetVolumeName", func() { name, err = GetUniqueVolumeNameFromSpec(r.plugin, spec) })
	if p != nil {
		err = p
	}
	if err != nil {
		return "", spec.Secrets(r.publicKeys).Redact(err)
	}
	return name, nil
}

// capabilityQuery is a method about a spec that a plugin with a capability has. Without the capability the answer is no.
type capabilityQuery struct {
	needs Capabilities
	call  string // the method
	ask   func(VolumePlugin, *Spec) (bool, error)
}

func canAttach() capabilityQuery {
	return capabilityQuery{CapAttach, "CanAttach", func(p VolumePlugin, s *Spec) (bool, error) {
		return p.(AttachableVolumePlugin).CanAttach(s) //nolint:forcetypeassert // The capability says that it is one.
	}}
}

func canDeviceMount() capabilityQuery {
	return capabilityQuery{CapDeviceMount, "CanDeviceMount", func(p VolumePlugin, s *Spec) (bool, error) {
		return p.(DeviceMountableVolumePlugin).CanDeviceMount(s) //nolint:forcetypeassert // The capability says that it is one.
	}}
}

func requiresRemount() capabilityQuery {
	return capabilityQuery{CapRemount, "RequiresRemount", func(p VolumePlugin, s *Spec) (bool, error) {
		return p.(RemountableVolumePlugin).RequiresRemount(s), nil //nolint:forcetypeassert // The capability says that it is one.
	}}
}

func canReuse() capabilityQuery {
	return capabilityQuery{CapReuse, "CanReuse", func(p VolumePlugin, s *Spec) (bool, error) {
		return p.(ReusableVolumePlugin).CanReuse(s), nil //nolint:forcetypeassert // The capability says that it is one.
	}}
}

func supportsSELinuxContextMount() capabilityQuery {
	return capabilityQuery{CapSELinux, "SupportsSELinuxContextMount", func(p VolumePlugin, s *Spec) (bool, error) {
		return p.(SELinuxVolumePlugin).SupportsSELinuxContextMount(s) //nolint:forcetypeassert // The capability says that it is one.
	}}
}

func requiresFSResize() capabilityQuery {
	return capabilityQuery{CapNodeExpand, "RequiresFSResize", func(p VolumePlugin, _ *Spec) (bool, error) {
		return p.(NodeExpandableVolumePlugin).RequiresFSResize(), nil //nolint:forcetypeassert // The capability says that it is one.
	}}
}

// answer returns the plugin's answer to one query.
func (r *registered) answer(q capabilityQuery, spec *Spec) (bool, error) {
	if !r.capabilities.Has(q.needs) {
		return false, nil
	}
	return r.can(q.call, func(s *Spec) (bool, error) { return q.ask(r.plugin, s) }, spec)
}
