package main

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/volumemanager"
)

// create makes a container, its root filesystem, and the mounts that it needs on the host.
func (r *containerRuntime) create(ctx context.Context, s containerStart) (client.Container, error) {
	id := containerID(s.pod, s.container)
	image, err := r.client.GetImage(ctx, s.container.Image)
	if err != nil {
		return nil, err
	}
	if err := image.Unpack(ctx, ""); err != nil { // does nothing for one that is unpacked
		return nil, err
	}
	config, err := image.Spec(ctx)
	if err != nil {
		return nil, err
	}
	spec := []oci.SpecOpts{oci.WithDefaultSpec(), oci.WithDefaultUnixDevices, oci.WithEnv(config.Config.Env), withProcess(config.Config.Entrypoint, config.Config.Cmd, s)}
	volumes := s.volumes
	if hasUserNamespace(s.pod) {
		if !r.mapsOwners {
			if volumes, err = r.mountMapped(ctx, id, volumes); err != nil {
				return nil, err
			}
		}
		users := []specs.LinuxIDMapping{{ContainerID: 0, HostID: r.firstUser, Size: usersOfAPod}}
		spec = append(spec, oci.WithUserNamespace(users, users))
	}
	spec = append(spec, withSecurity(s), withVolumes(volumes.OCI()))
	return r.client.NewContainer(ctx, id, client.WithImage(image), client.WithNewSnapshot(id, image), r.withOwnRoot(s.pod), client.WithNewSpec(spec...))
}

// withProcess sets the command of a container: that of the pod, or else that of the image.
func withProcess(entrypoint, cmd []string, s containerStart) oci.SpecOpts {
	c := s.container
	switch {
	case len(c.Command) > 0:
		entrypoint, cmd = c.Command, c.Args
	case len(c.Args) > 0:
		cmd = c.Args
	}
	return func(_ context.Context, _ oci.Client, _ *containers.Container, spec *oci.Spec) error {
		spec.Process.Args = append(append([]string{}, entrypoint...), cmd...)
		spec.Process.Cwd = "/"
		if c.WorkingDir != "" {
			spec.Process.Cwd = c.WorkingDir
		}
		for _, v := range c.Env {
			if v.ValueFrom != nil {
				return fmt.Errorf("variable %q: this example knows values alone", v.Name)
			}
			spec.Process.Env = append(spec.Process.Env, v.Name+"="+v.Value)
		}
		return nil
	}
}

// withSecurity sets the user, the groups and the privileges of a container.
func withSecurity(s containerStart) oci.SpecOpts {
	return func(ctx context.Context, c oci.Client, container *containers.Container, spec *oci.Spec) error {
		groups := s.groups
		if p := s.pod.Spec.SecurityContext; p != nil {
			groups = append(groups, p.SupplementalGroups...)
			if p.FSGroup != nil {
				groups = append(groups, *p.FSGroup)
			}
			setUser(spec, p.RunAsUser, p.RunAsGroup)
		}
		for _, group := range groups {
			spec.Process.User.AdditionalGids = append(spec.Process.User.AdditionalGids, uint32(group))
		}
		own := s.container.SecurityContext
		if own == nil {
			return nil
		}
		setUser(spec, own.RunAsUser, own.RunAsGroup)
		spec.Root.Readonly = own.ReadOnlyRootFilesystem != nil && *own.ReadOnlyRootFilesystem
		if own.Privileged != nil && *own.Privileged {
			return oci.WithPrivileged(ctx, c, container, spec)
		}
		return nil
	}
}

func setUser(spec *oci.Spec, user, group *int64) {
	if user != nil {
		spec.Process.User.UID = uint32(*user)
	}
	if group != nil {
		spec.Process.User.GID = uint32(*group)
	}
}

// withVolumes adds the volumes to the specification of a container. The manager's structs have the same fields as the specification's.
func withVolumes(volumes volumemanager.OCIVolumes) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, spec *oci.Spec) error {
		for _, m := range volumes.Mounts {
			spec.Mounts = append(spec.Mounts, specs.Mount{
				Destination: m.Destination, Type: m.Type, Source: m.Source, Options: m.Options,
				UIDMappings: idMappings(m.UIDMappings), GIDMappings: idMappings(m.GIDMappings),
			})
			if m.Options[1] == "rshared" {
				// Mounts of the container reach the host only if its root mount is shared.
				spec.Linux.RootfsPropagation = "rshared"
			}
		}
		for _, d := range volumes.Devices {
			spec.Linux.Devices = append(spec.Linux.Devices, specs.LinuxDevice{Path: d.Path, Type: d.Type, Major: d.Major, Minor: d.Minor})
		}
		for _, rule := range volumes.DeviceRules {
			spec.Linux.Resources.Devices = append(spec.Linux.Resources.Devices, specs.LinuxDeviceCgroup{
				Allow: rule.Allow, Type: rule.Type, Major: rule.Major, Minor: rule.Minor, Access: rule.Access,
			})
		}
		return nil
	}
}

func idMappings(ranges []volumemanager.OCIIDMapping) []specs.LinuxIDMapping {
	var all []specs.LinuxIDMapping
	for _, r := range ranges {
		all = append(all, specs.LinuxIDMapping(r))
	}
	return all
}

// hasUserNamespace reports whether a pod's users are not those of the host.
func hasUserNamespace(pod *v1.Pod) bool { return pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers }
