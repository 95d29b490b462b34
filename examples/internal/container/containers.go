package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volumemanager"
)

// Containers mounts the volumes of pods as a container runtime does, without processes: one bind for each volumeMount,
// from the answer of the manager's ContainerMounts.
type Containers struct {
	// Manager has the volumes; Mounter makes the binds.
	Manager *volumemanager.Manager
	Mounter mount.Interface
	// Dir has a directory per namespace, with one per pod, with one per container.
	Dir   string
	binds []bind
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

// Mount binds the volumes of ready pods into their containers. After an error the finished binds stay, for Unmount.
func (c *Containers) Mount(ctx context.Context, pods []*v1.Pod) error {
	for _, pod := range pods {
		if err := c.mountPod(ctx, pod); err != nil {
			return err
		}
	}
	return nil
}

func (c *Containers) mountPod(ctx context.Context, pod *v1.Pod) error {
	podName := pod.Namespace + "/" + pod.Name
	for _, container := range names(pod) {
		volumes, err := c.Manager.ContainerMounts(ctx, pod, container)
		if err != nil {
			return err
		}
		for _, m := range volumes.Mounts {
			b := bind{
				pod: podName, container: container, volume: m.Name, mountPath: m.Target,
				path: filepath.Join(c.Dir, podName, container, pathElement(m.Target)), readOnly: m.ReadOnly,
			}
			if err := c.bind(ctx, m.Source, b); err != nil {
				return fmt.Errorf("mount volume %q into container %q of pod %q: %w", m.Name, container, podName, err)
			}
		}
	}
	return nil
}

// bind continues when ctx ends: it must record every mount, so that Unmount finds it.
func (c *Containers) bind(ctx context.Context, source string, b bind) error {
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
	return c.Mounter.Mount(context.WithoutCancel(ctx), request)
}

// Unmount unmounts every volume from its container. No process uses the volumes any more, so Unmount may also detach
// the mounts below a bind (those in a host's directory).
func (c *Containers) Unmount(ctx context.Context) error {
	var errs []error
	for _, b := range slices.Backward(c.binds) {
		err := c.Mounter.Unmount(ctx, b.path, mount.UnmountOptions{Lazy: true})
		if err == nil || errors.Is(err, mount.ErrNotMounted) {
			err = c.Mounter.RemoveTarget(ctx, b.path)
		}
		errs = append(errs, err)
	}
	c.binds = nil
	return errors.Join(errs...)
}

// names returns the names of the containers of pod, in the order in which they start.
func names(pod *v1.Pod) []string {
	var names []string
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		names = append(names, c.Name)
	}
	return names
}

// pathElement makes a container's path one element. Volumes that a container mounts inside each other are then separate
// here, and need no directory inside a volume.
func pathElement(mountPath string) string {
	return strings.ReplaceAll(strings.Trim(path.Clean(mountPath), "/"), "/", "~")
}
