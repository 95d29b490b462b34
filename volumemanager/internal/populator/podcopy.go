package populator

import (
	v1 "k8s.io/api/core/v1"
)

// This file decides which parts of a pod the manager copies. The manager does not keep the caller's own object: later
// changes of the object have no effect here.

// copyOfPod returns a copy of the parts of a pod that the manager, plugins, Options.Environment and events use: its
// metadata, volumes and security context, its containers' mounts, resources and identities, and the addresses in its
// status. It omits the rest, such as images, commands, probes and scheduling.
func copyOfPod(pod *v1.Pod) *v1.Pod {
	spec, status := &pod.Spec, &pod.Status
	used := &v1.Pod{TypeMeta: pod.TypeMeta, ObjectMeta: pod.ObjectMeta}
	used.ManagedFields = nil
	used.Spec = v1.PodSpec{
		Volumes: spec.Volumes, SecurityContext: spec.SecurityContext, NodeName: spec.NodeName, ServiceAccountName: spec.ServiceAccountName,
		Overhead: spec.Overhead, Resources: spec.Resources, HostUsers: spec.HostUsers,
		InitContainers: containersInUse(spec.InitContainers), Containers: containersInUse(spec.Containers),
	}
	for i := range spec.EphemeralContainers {
		c := v1.Container(spec.EphemeralContainers[i].EphemeralContainerCommon)
		used.Spec.EphemeralContainers = append(used.Spec.EphemeralContainers, v1.EphemeralContainer{EphemeralContainerCommon: v1.EphemeralContainerCommon(containerInUse(&c))})
	}
	used.Status = v1.PodStatus{HostIP: status.HostIP, HostIPs: status.HostIPs, PodIP: status.PodIP, PodIPs: status.PodIPs}
	return used.DeepCopy()
}

func containersInUse(containers []v1.Container) []v1.Container {
	if len(containers) == 0 {
		return nil
	}
	used := make([]v1.Container, len(containers))
	for i := range containers {
		used[i] = containerInUse(&containers[i])
	}
	return used
}

// containerInUse returns the used parts of a container. Its environment is used only for a subPathExpr.
func containerInUse(c *v1.Container) v1.Container {
	used := v1.Container{
		Name: c.Name, VolumeMounts: c.VolumeMounts, VolumeDevices: c.VolumeDevices, SecurityContext: c.SecurityContext,
		Resources: c.Resources, RestartPolicy: c.RestartPolicy,
	}
	for i := range c.VolumeMounts {
		if c.VolumeMounts[i].SubPathExpr != "" {
			used.Env, used.EnvFrom = c.Env, c.EnvFrom
		}
	}
	return used
}
