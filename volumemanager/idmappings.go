package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/sentinel"
)

// UserNamespaces returns the user namespaces of pods, as the program that starts their containers makes them.
type UserNamespaces interface {
	// IDMappings returns the ranges of the pod's user namespace: who is ContainerID in the container is HostID on the host. All
	// containers of a pod have the same ranges until the pod is removed. [Manager.ContainerMounts] calls it once, for a pod whose
	// hostUsers is false. pod must not be changed. It is called in the goroutine of the caller of ContainerMounts, without a lock.
	IDMappings(ctx context.Context, pod *v1.Pod) (mount.IDMappings, error)
}

// IDMappingError says that a volume cannot be given to a container in a user namespace. It matches [volume.ErrUnsupported] when
// this kernel cannot map the owners in the volume's filesystem or in one mounted beneath, and when the volume is a device. The pod
// needs hostUsers: true, another filesystem or another kernel.
type IDMappingError struct {
	// Name is the volume's name in the pod's spec.
	Name string
	// Source is the absolute path on the host that was to be mounted.
	Source string
	// Err is why it cannot be.
	Err error
}

// Error names the volume and the path.
func (e *IDMappingError) Error() string {
	return fmt.Sprintf("volume %q at %q cannot be used in a user namespace (hostUsers: false): %v", e.Name, e.Source, e.Err)
}

// Unwrap returns the cause.
func (e *IDMappingError) Unwrap() error { return e.Err }

// idMapper proves that the owners in what lies at a path can be mapped.
type idMapper interface {
	CheckIDMappings(ctx context.Context, source string, mappings mount.IDMappings) error
}

// idMapper returns what looks at the mounts that the binder makes.
func (o Options) idMapper(binder mount.Interface) idMapper {
	if found, ok := binder.(idMapper); ok {
		return found
	}
	return mount.New(mount.Options{Logger: o.Logger})
}

// readIDMappings asks for the ranges of a pod with a user namespace.
func (a *containerRequest) readIDMappings(ctx context.Context) error {
	pod, namespaces := a.entry.Pod, a.manager.options.UserNamespaces
	if namespaces == nil || pod.Spec.HostUsers == nil || *pod.Spec.HostUsers {
		return nil
	}
	mappings, err := namespaces.IDMappings(ctx, pod)
	if err == nil {
		err = mappings.Validate()
	}
	if err != nil {
		return fmt.Errorf("user namespace of pod %q: %w", store.NameOf(pod), sentinel.OfMount(err))
	}
	a.mappings = mappings
	return nil
}

// mapped gives a mount its ranges, and proves that they can be given.
func (a *containerRequest) mapped(ctx context.Context, made ContainerMount) (ContainerMount, error) {
	if a.mappings.IsZero() {
		return made, nil
	}
	made.IDMappings = mount.IDMappings{UIDs: slices.Clone(a.mappings.UIDs), GIDs: slices.Clone(a.mappings.GIDs)}
	err := a.manager.idMapper.CheckIDMappings(ctx, made.Source, made.IDMappings)
	if err == nil || errors.Is(err, mount.ErrUncertain) || errors.Is(err, mount.ErrTransient) { // it hangs, or was not begun
		return made, err
	}
	return made, &IDMappingError{Name: made.Name, Source: made.Source, Err: sentinel.OfMount(err)}
}

// checkDevice refuses a device in a user namespace: no mount maps the owner of its node, and a runtime cannot make another node.
func (a *containerRequest) checkDevice(made ContainerDevice) error {
	if a.mappings.IsZero() {
		return nil
	}
	return &IDMappingError{Name: made.Name, Source: made.Source, Err: fmt.Errorf("a block device has no owner that can be mapped: %w", volume.ErrUnsupported)}
}
