package emptydir

import (
	"context"
	"fmt"
	"math"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/volume"
)

// allocatable returns the memory that the pods of the node may use together; nil if that is unknown.
func (m *mounter) allocatable(ctx context.Context) (*resource.Quantity, error) {
	if m.node == nil {
		return nil, nil
	}
	has, err := m.node.Allocatable(ctx)
	if err != nil {
		return nil, volume.Transient(fmt.Errorf("allocatable memory of the node: %w", err))
	}
	return has.Memory(), nil
}

// memoryOf returns the memory limit of a pod: its own, or what its containers may use together if each of them has a limit. Otherwise
// it returns nil.
func memoryOf(pod *v1.Pod) *resource.Quantity {
	var limit resource.Quantity
	if own := pod.Spec.Resources; own != nil && own.Limits.Memory().Sign() > 0 {
		limit = own.Limits.Memory().DeepCopy()
	} else {
		containers, ok := memoryOfContainers(&pod.Spec)
		if !ok {
			return nil
		}
		limit = containers
	}
	limit.Add(*pod.Spec.Overhead.Memory())
	return &limit
}

// memoryOfContainers returns the most memory that containers may use at the same time; false if one of them has no limit. Init
// containers run one by one before the others. Those that are always restarted (sidecars) run on.
func memoryOfContainers(spec *v1.PodSpec) (most resource.Quantity, limited bool) {
	var staying resource.Quantity
	for i := range spec.InitContainers {
		container := &spec.InitContainers[i]
		memory := container.Resources.Limits.Memory()
		if memory.Sign() <= 0 {
			return most, false
		}
		now := staying.DeepCopy()
		now.Add(*memory)
		if container.RestartPolicy != nil && *container.RestartPolicy == v1.ContainerRestartPolicyAlways {
			staying = now
		}
		if now.Cmp(most) > 0 {
			most = now.DeepCopy()
		}
	}
	for i := range spec.Containers {
		memory := spec.Containers[i].Resources.Limits.Memory()
		if memory.Sign() <= 0 {
			return most, false
		}
		staying.Add(*memory)
	}
	if staying.Cmp(most) > 0 {
		most = staying
	}
	return most, len(spec.Containers) > 0
}

// smallest returns the smallest of the limits that are set, in bytes; 0 if none is set.
func smallest(limits ...*resource.Quantity) int64 {
	var least int64
	for _, limit := range limits {
		if limit == nil || limit.Sign() <= 0 {
			continue
		}
		bytes := int64(math.MaxInt64)
		if limit.CmpInt64(math.MaxInt64) < 0 {
			bytes = limit.Value()
		}
		if least == 0 || bytes < least {
			least = bytes
		}
	}
	return least
}
