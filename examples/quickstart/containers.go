package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volumemanager"
)

// containersDir is the directory of what containers see, under the root.
const containersDir = "containers"

// containers mounts the volumes of pods where their containers would see them, as a container runtime does with what the
// manager tells it (ContainerMounts): a bind for each volumeMount.
type containers struct {
	manager *volumemanager.Manager
	mounter mount.Interface
	dir     string // holds a directory per namespace, in it one per pod, and in that one per container
	binds   []bind
}

// bind is one volume in one container.
type bind struct {
	pod       string // namespace and name
	container string
	volume    string // the name in the pod's spec
	mountPath string // as the container sees it
	path      string // as this process sees it
	readOnly  bool
}

// mount binds the volumes of pods that are ready into their containers. What was bound before an error stays for
// unmount.
func (c *containers) mount(ctx context.Context, pods []*readyPod) error {
	for _, pod := range pods {
		if err := c.mountPod(ctx, pod); err != nil {
			return err
		}
	}
	return nil
}

func (c *containers) mountPod(ctx context.Context, pod *readyPod) error {
	for _, container := range containerNames(pod.pod) {
		volumes, err := c.manager.ContainerMounts(ctx, pod.pod, container)
		if err != nil {
			return err
		}
		for _, m := range volumes.Mounts {
			b := bind{
				pod: pod.name, container: container, volume: m.Name, mountPath: m.Target,
				path: filepath.Join(c.dir, pod.name, container, pathElement(m.Target)), readOnly: m.ReadOnly,
			}
			if err := c.bind(ctx, m.Source, b); err != nil {
				return fmt.Errorf("mount volume %q into container %q of pod %q: %w", m.Name, container, pod.name, err)
			}
		}
	}
	return nil
}

// bind is not given up halfway when ctx ends: what was mounted must be known, to be unmounted.
func (c *containers) bind(ctx context.Context, source string, b bind) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	request := mount.Request{Source: source, Target: b.path, Options: []string{"rbind"}}
	if b.readOnly {
		request.Options = append(request.Options, "ro")
	}
	if err := os.MkdirAll(filepath.Dir(b.path), 0o750); err != nil {
		return err
	}
	c.binds = append(c.binds, b)
	return c.mounter.Mount(context.WithoutCancel(ctx), request)
}

// unmount takes every volume out of its container. No process uses them any more, so that what lies below a bind (the
// mounts in a host's directory) may be detached with it.
func (c *containers) unmount(ctx context.Context) error {
	var errs []error
	for _, b := range slices.Backward(c.binds) {
		err := c.mounter.Unmount(ctx, b.path, mount.UnmountOptions{Lazy: true})
		if err == nil || errors.Is(err, mount.ErrNotMounted) {
			err = c.mounter.RemoveTarget(ctx, b.path)
		}
		errs = append(errs, err)
	}
	c.binds = nil
	return errors.Join(errs...)
}

// pathElement makes a container's path one element, so that volumes that a container mounts inside each other are still
// beside each other here and nothing need be made inside a volume.
func pathElement(mountPath string) string {
	return strings.ReplaceAll(strings.Trim(path.Clean(mountPath), "/"), "/", "~")
}
