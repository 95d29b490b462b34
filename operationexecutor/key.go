package operationexecutor

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/keyed"
	"github.com/volumekit/volumekit/volume"
)

// Key is what an operation needs for itself while it runs. An empty Pod or Node stands for all of them: (v, "", "") meets
// every key of v, (v, p, "") those of p and those of the whole volume, (v, "", n) those of n and those without a node.
//
// Mount takes the whole volume when it is attached or staged, else (v, p); unmount takes (v, p); unmount device takes the
// whole volume; attach and detach take the whole volume when it may be attached to one node only, else (v, n). So
// staging and set-ups exclude one another and all teardowns, and teardowns of several pods run side by side. Expansions,
// modifications, and taking over what the control plane attached, take the whole volume; verifications and reconstruction take nothing. Map
// takes the whole volume, since its pods share what SetUpDevice prepares; unmap and unmap device take what unmount and unmount
// device take.
type Key struct {
	// Volume is the unique name of the volume. An operation with none meets no other.
	Volume v1.UniqueVolumeName
	// Pod is the unique name of the pod; empty stands for all pods.
	Pod volume.UniquePodName
	// Node is the node; empty stands for all nodes.
	Node types.NodeName
}

func (k Key) keyed() keyed.Key {
	return keyed.Key{Volume: string(k.Volume), Pod: string(k.Pod), Node: string(k.Node)}
}

// operationOf returns the identity under which the back-off of an operation counts. It is finer than the operation's key,
// so a pod does not wait for the failures of another one.
func operationOf(info *OperationInfo) keyed.Operation {
	return keyed.Operation{
		Key:  keyed.Key{Volume: string(info.VolumeName), Pod: string(info.PodName), Node: string(info.NodeName)},
		Kind: string(info.Kind),
	}
}
