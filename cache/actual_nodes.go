package cache

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/operationexecutor"
)

var _ operationexecutor.VolumeNodes = (*ActualStateOfWorld)(nil)

// NodesOfVolume implements operationexecutor.VolumeNodes: this node, when the volume is, or may be, attached to it.
func (a *ActualStateOfWorld) NodesOfVolume(volumeName v1.UniqueVolumeName) []types.NodeName {
	if !a.VolumeExists(volumeName) {
		return nil
	}
	return []types.NodeName{a.nodeName}
}
