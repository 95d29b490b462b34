package cache

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/volume"
)

// sizeLimit returns the size limit of a volume that is local to its pod: the least of the volume's own and of the pod's
// limit of ephemeral storage; nil when there is neither, or the volume is none of those.
func sizeLimit(pod *v1.Pod, spec *volume.Spec) *resource.Quantity {
	if spec.Volume == nil || !volume.IsLocalEphemeralVolume(spec.Volume) {
		return nil
	}
	limit := ephemeralStorageLimit(&pod.Spec)
	if source := spec.Volume.EmptyDir; source != nil && source.SizeLimit != nil && source.SizeLimit.Sign() > 0 {
		if limit.Sign() <= 0 || source.SizeLimit.Cmp(limit) < 0 {
			limit = source.SizeLimit.DeepCopy()
		}
	}
	if limit.Sign() <= 0 {
		return nil
	}
	return &limit
}

// ephemeralStorageLimit returns what the containers of a pod may use together at any time: those that run side by side,
// or the greatest of those that run before them beside the sidecars that run already.
func ephemeralStorageLimit(spec *v1.PodSpec) resource.Quantity {
	var together, sidecars, before resource.Quantity
	for i := range spec.Containers {
		together.Add(limitOf(&spec.Containers[i]))
	}
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways {
			sidecars.Add(limitOf(c))
			continue
		}
		alone := limitOf(c)
		alone.Add(sidecars)
		if alone.Cmp(before) > 0 {
			before = alone
		}
	}
	together.Add(sidecars)
	if before.Cmp(together) > 0 {
		together = before
	}
	if overhead, ok := spec.Overhead[v1.ResourceEphemeralStorage]; ok && together.Sign() > 0 {
		together.Add(overhead)
	}
	return together
}

func limitOf(c *v1.Container) resource.Quantity {
	limit := c.Resources.Limits[v1.ResourceEphemeralStorage]
	return limit.DeepCopy()
}
