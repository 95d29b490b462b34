package populator

import (
	v1 "k8s.io/api/core/v1"
)

// This file decides which parts of a pod the manager copies. The manager keeps nothing of the caller's own object: changes
// that the caller makes to it change nothing here.

// copyOfPod returns a copy of what is used of a pod, by the manager, by plugins, by Options.Environment and by events: its
// metadata, volumes and security, what its containers mount, may use and run as, and the addresses in its status. The rest,
// images, commands, probes and scheduling among it, is left out.
func copyOfPod(pod *v1.Pod) *v1.Pod {
	spec, status := &pod.Spec, &pod.Status
	used := &v1.Pod{TypeMeta: pod.TypeMeta, ObjectMeta: pod.ObjectMeta}
	used.ManagedFields = nil
	used.Spec = v1.PodSpec{
		Volumes: spec.Volumes, SecurityContext: spec.SecurityContext, NodeName: spec.NodeName, ServiceAccountName: spec.ServiceAccountName,
		Overhead: spec.Overhead, Resources: spec.Resources,
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

// containerInUse returns what is used of a container. Its environment is used for a subPathExpr alone.
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
