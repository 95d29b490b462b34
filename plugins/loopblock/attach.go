package loopblock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/volume"
)

// node attaches and stages on this node; it is each of Attacher, Detacher, DeviceMounter and DeviceUnmounter.
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

// Attach attaches the image to a loop device of this node, or returns the device that it has. A device that was made by
// somebody else otherwise than the volume needs it is an error that matches volume.ErrInUse, a node that has as many volumes as
// [Options].MaxVolumes allows one that matches volume.ErrAttachLimit.
func (n *node) Attach(ctx context.Context, spec *volume.Spec, nodeName types.NodeName) (string, error) {
	src, err := sourceOf(spec)
	if err != nil {
		return "", err
	}
	if err := n.plugin.checkNode(nodeName); err != nil {
		return "", err
	}
	device, err := withImage(ctx, n.plugin, src.handle, func(file *os.File) (loop.Device, error) {
		return n.plugin.withinLimit(ctx, file, func() (loop.Device, error) {
			return n.plugin.loops.AttachFile(ctx, file, loop.AttachOptions{
				ReadOnly: src.readOnly, DirectIO: n.plugin.options.DirectIO, Label: label(src.handle),
			})
		})
	})
	return device.Path, classify(err)
}

// WaitForAttach returns the device of the image, which is there as soon as Attach has returned. devicePath is not
// believed: after a reboot it is another volume's.
func (n *node) WaitForAttach(ctx context.Context, spec *volume.Spec, _ string, _ *v1.Pod) (string, error) {
	src, err := sourceOf(spec)
	if err != nil {
		return "", err
	}
	device, err := n.plugin.find(ctx, src.handle)
	if err != nil {
		return "", fmt.Errorf("waiting for the device of volume %q: %w", src.handle, classify(err))
	}
	return device.Path, nil
}

// VolumesAreAttached looks at all loop devices once. A volume whose image cannot be looked at is left out.
func (n *node) VolumesAreAttached(
	ctx context.Context, specs map[v1.UniqueVolumeName]*volume.Spec, nodeName types.NodeName,
) (map[v1.UniqueVolumeName]bool, error) {
	if err := n.plugin.checkNode(nodeName); err != nil {
		return nil, err
	}
	all, err := n.plugin.loops.Devices(ctx)
	if err != nil {
		return nil, classify(err)
	}
	answer := make(map[v1.UniqueVolumeName]bool, len(specs))
	for name, spec := range specs {
		src, err := sourceOf(spec)
		if err != nil {
			continue
		}
		if found, err := n.plugin.among(ctx, all, src.handle); err == nil {
			answer[name] = len(found) > 0
		}
	}
	return answer, nil
}

// Detach detaches the image of volumeName and proves it. A device that is still mounted, in whatever mount namespace, is an
// error that matches volume.ErrInUse.
func (n *node) Detach(ctx context.Context, volumeName string, nodeName types.NodeName) error {
	if err := checkHandle(volumeName); err != nil {
		return err
	}
	if err := n.plugin.checkNode(nodeName); err != nil {
		return err
	}
	device, err := n.plugin.find(ctx, volumeName)
	if errors.Is(err, loop.ErrNotAttached) {
		return nil
	}
	if err == nil {
		err = n.plugin.loops.Detach(ctx, device)
	}
	if err != nil {
		return fmt.Errorf("detaching volume %q: %w", volumeName, classify(err))
	}
	return nil
}

// label is what a loop device of this plugin is marked with, so that it is found when its image has no name any more.
func label(handle string) string { return Name + "/" + handle }

// find returns the device of an image. None is an error that matches loop.ErrNotAttached.
func (p *Plugin) find(ctx context.Context, handle string) (loop.Device, error) {
	device, err := withImage(ctx, p, handle, func(file *os.File) (loop.Device, error) {
		return p.loops.FindFile(ctx, file)
	})
	if !errors.Is(err, fs.ErrNotExist) {
		return device, err
	}
	return p.findDeleted(ctx, handle)
}

// findDeleted returns the device of an image that was deleted.
func (p *Plugin) findDeleted(ctx context.Context, handle string) (loop.Device, error) {
	all, err := p.loops.Devices(ctx)
	if err != nil {
		return loop.Device{}, err
	}
	found, err := p.among(ctx, all, handle)
	switch {
	case err != nil:
		return loop.Device{}, err
	case len(found) == 0:
		return loop.Device{}, fmt.Errorf("volume %q: %w", handle, loop.ErrNotAttached)
	case len(found) > 1:
		return loop.Device{}, fmt.Errorf("the image of volume %q is attached to %s and to %s: detach all but one: %w",
			handle, found[0].Path, found[1].Path, loop.ErrInUse)
	}
	return found[0], nil
}

// among returns the devices that have the image of handle. That one which does not answer may have it is an error.
func (p *Plugin) among(ctx context.Context, all []loop.Device, handle string) ([]loop.Device, error) {
	info, err := withImage(ctx, p, handle, (*os.File).Stat)
	gone := errors.Is(err, fs.ErrNotExist)
	if err != nil && !gone {
		return nil, err
	}
	var found []loop.Device
	for _, d := range all {
		if (gone && p.hadImage(d, handle)) || (!gone && d.Has(info)) {
			found = append(found, d)
		} else if d.Silent && d.BackingPath == p.shownPath(handle) {
			return nil, fmt.Errorf("%s does not answer and may have the image of volume %q: %w", d.Path, handle, loop.ErrInUse)
		}
	}
	return found, nil
}

// hadImage reports whether a device has an image that was deleted, and is ours by both of the marks that are left.
func (p *Plugin) hadImage(d loop.Device, handle string) bool {
	return d.Deleted && d.MayBeLabelled(label(handle)) && d.BackingPath == p.shownPath(handle)
}
