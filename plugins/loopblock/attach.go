package loopblock

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/volume"
)

// node attaches and stages on this node. It implements Attacher, Detacher, DeviceMounter and DeviceUnmounter.
type node struct{ plugin *Plugin }

// NewAttacher implements volume.AttachableVolumePlugin.
func (p *Plugin) NewAttacher() (volume.Attacher, error) { return &node{p}, nil }

// NewDetacher implements volume.AttachableVolumePlugin.
func (p *Plugin) NewDetacher() (volume.Detacher, error) { return &node{p}, nil }

// CanAttach implements volume.AttachableVolumePlugin: every volume needs its loop device.
func (p *Plugin) CanAttach(spec *volume.Spec) (bool, error) {
	_, err := sourceOf(spec)
	return err == nil, err
}

// Attach attaches the image to a loop device of this node, or returns the device that the image has. If another program
// made that device with properties that do not fit the volume, the error matches volume.ErrInUse. If the node has as many
// volumes as [Options].MaxVolumes allows, it matches volume.ErrAttachLimit.
func (n *node) Attach(ctx context.Context, spec *volume.Spec, nodeName types.NodeName) (string, error) {
	src, err := sourceOf(spec)
	if err != nil {
		return "", err
	}
	if err := n.checkNode(nodeName); err != nil {
		return "", err
	}
	device, err := n.plugin.devices.attach(ctx, src)
	return device.Path, classify(err)
}

// WaitForAttach returns the device of the image, which exists as soon as Attach has returned. It ignores devicePath,
// because after a reboot that may be the device of another volume.
func (n *node) WaitForAttach(ctx context.Context, spec *volume.Spec, _ string, _ *v1.Pod) (string, error) {
	src, err := sourceOf(spec)
	if err != nil {
		return "", err
	}
	device, err := n.plugin.devices.find(ctx, src.handle)
	if err != nil {
		return "", fmt.Errorf("waiting for the device of volume %q: %w", src.handle, classify(err))
	}
	return device.Path, nil
}

// VolumesAreAttached looks at all loop devices once. It leaves out a volume whose image it cannot read.
func (n *node) VolumesAreAttached(
	ctx context.Context, specs map[v1.UniqueVolumeName]*volume.Spec, nodeName types.NodeName,
) (map[v1.UniqueVolumeName]bool, error) {
	if err := n.checkNode(nodeName); err != nil {
		return nil, err
	}
	all, err := n.plugin.devices.loops.Devices(ctx)
	if err != nil {
		return nil, classify(err)
	}
	answer := make(map[v1.UniqueVolumeName]bool, len(specs))
	for name, spec := range specs {
		src, err := sourceOf(spec)
		if err != nil {
			continue
		}
		if found, err := n.plugin.devices.among(ctx, all, src.handle); err == nil {
			answer[name] = len(found) > 0
		}
	}
	return answer, nil
}

// Detach detaches the image of volumeName and proves it. If the device is still mounted, in any mount namespace, the error
// matches volume.ErrInUse.
func (n *node) Detach(ctx context.Context, volumeName string, nodeName types.NodeName) error {
	if err := checkHandle(volumeName); err != nil {
		return err
	}
	if err := n.checkNode(nodeName); err != nil {
		return err
	}
	device, err := n.plugin.devices.find(ctx, volumeName)
	if errors.Is(err, loop.ErrNotAttached) {
		return nil
	}
	if err == nil {
		err = n.plugin.devices.detach(ctx, volumeName, device)
	}
	if err != nil {
		return fmt.Errorf("detaching volume %q: %w", volumeName, classify(err))
	}
	return nil
}

// checkNode refuses every node but this one: images are files of this node.
func (n *node) checkNode(nodeName types.NodeName) error {
	if nodeName == n.plugin.host.GetNodeName() {
		return nil
	}
	return fmt.Errorf("images of node %q cannot be attached to node %q: %w", n.plugin.host.GetNodeName(), nodeName, volume.ErrInfeasible)
}
