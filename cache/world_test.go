package cache_test

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/internal/cachetest"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

const node = cachetest.Node

// changes keeps what the hook is told.
type changes struct{ names []v1.UniqueVolumeName }

func (c *changes) options() cache.Options {
	return cache.Options{Changed: func(name v1.UniqueVolumeName) { c.names = append(c.names, name) }}
}

// take returns what was told since the last call.
func (c *changes) take() []v1.UniqueVolumeName {
	names := c.names
	c.names = nil
	return names
}

// mountedFor is what a state is told of a set-up.
func mountedFor(name v1.UniqueVolumeName, podName, inner string) operationexecutor.MountedVolume {
	return operationexecutor.MountedVolume{
		VolumeName: name, PodName: volume.UniquePodName(podName), PodUID: types.UID(podName), Pod: cachetest.Pod(podName),
		VolumeSpec: cachetest.Spec(inner), OuterVolumeSpecNames: []string{"outer"},
	}
}
