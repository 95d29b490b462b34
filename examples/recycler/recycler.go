// Package recycler is the orchestrator's side of recycling by a pod: a [volume.PodRecycler] over a volume manager. Copy
// it, and replace [Runtime] with your own container runtime.
//
//	pods := recycler.New(recycler.Options{Store: objects, Runtime: runtime, Template: template})
//	plugins.InitPlugins(ctx, nfs.New(nfs.Options{Recycler: pods}))
//	manager, err := volumemanager.New(plugins, ...)
//	pods.Use(manager)
//
// Without a recycler, plugins recycle in their own process. A pod is for storage that the process cannot or must not
// access: the pod has the rights that your runtime gives to every container, and no more.
package recycler

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

// cleanUpTimeout bounds the clean-up of a pod after its deadline.
const cleanUpTimeout = 30 * time.Second

// annRecycles is the annotation of these pods. Its value is the name of the volume.
const annRecycles = "example.com/recycles"

// Runtime runs containers.
type Runtime interface {
	// Run runs a container with volumes, and returns nil if it succeeded. When Run returns, no process of the container
	// is alive. When ctx ends, Run kills them.
	Run(ctx context.Context, container v1.Container, volumes volumemanager.ContainerVolumes) error
}

// Options configures a [Recycler]. All fields are required.
type Options struct {
	// Store holds the pods of the orchestrator.
	Store store.Store
	// Runtime runs the containers of the pod.
	Runtime Runtime
	// Template is the pod that recycles. Its first volume, which its containers mount, is replaced by the volume to
	// recycle. The pods run in its namespace.
	Template v1.Pod
}

// Recycler is a [volume.PodRecycler]. Make one with [New].
type Recycler struct {
	options Options
	manager *volumemanager.Manager
}

var _ volume.PodRecycler = (*Recycler)(nil)

// New returns a recycler for the constructors of plugins. It recycles nothing before Use.
func New(options Options) *Recycler { return &Recycler{options: options} }

// Use sets the manager that sets up the volumes of the pods. Call it once, before the first recycling: the manager
// needs the plugins, and the plugins need the recycler.
func (r *Recycler) Use(manager *volumemanager.Manager) { r.manager = manager }

// RecycleByPod implements [volume.PodRecycler]. The pod's object is in the store before anything of the pod exists, and
// until nothing is left. So the pod of an earlier process is found by its name.
func (r *Recycler) RecycleByPod(ctx context.Context, request volume.PodRecycleRequest, recorder volume.RecycleEventRecorder) error {
	ctx, cancel := context.WithTimeout(ctx, request.Timeout)
	defer cancel()
	pod := r.podFor(request)
	if err := r.removeEarlier(ctx, pod); err != nil {
		return fmt.Errorf("an earlier pod %s is not gone: %w", store.NameOf(pod), err)
	}
	pod, err := store.Create(ctx, r.options.Store, pod)
	if err != nil {
		return err
	}
	recorder(v1.EventTypeNormal, fmt.Sprintf("pod %s recycles the volume", store.NameOf(pod)))
	err = r.run(ctx, pod)
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
	defer cancel()
	if err := errors.Join(err, r.remove(after, pod)); err != nil {
		return fmt.Errorf("pod %s: %w", store.NameOf(pod), err)
	}
	return nil
}

// podFor returns the pod for a volume, from the template.
func (r *Recycler) podFor(request volume.PodRecycleRequest) *v1.Pod {
	pod := r.options.Template.DeepCopy()
	pod.ObjectMeta = metav1.ObjectMeta{
		Namespace: pod.Namespace, Name: "recycler-for-" + request.PVName, Annotations: map[string]string{annRecycles: request.PVName},
	}
	pod.Spec.Volumes[0].VolumeSource = *request.Volume.DeepCopy()
	seconds := int64(request.Timeout.Seconds())
	pod.Spec.ActiveDeadlineSeconds = &seconds
	return pod
}

// removeEarlier removes the pod of an earlier process with that name. Its result is unknown, and does not count. A
// foreign pod of that name stays; the error then matches store.ErrConflict.
func (r *Recycler) removeEarlier(ctx context.Context, pod *v1.Pod) error {
	earlier, err := store.Get[*v1.Pod](ctx, r.options.Store, pod.Namespace, pod.Name)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil
	case err != nil:
		return err
	case earlier.Annotations[annRecycles] != pod.Annotations[annRecycles]:
		return fmt.Errorf("it has no annotation %s and is another program's: delete it if it is not needed: %w", annRecycles, store.ErrConflict)
	}
	return r.remove(ctx, earlier)
}

// run runs the containers of a pod, one after the other, until one fails.
func (r *Recycler) run(ctx context.Context, pod *v1.Pod) error {
	if err := r.manager.AddPod(ctx, pod); err != nil {
		return err
	}
	if err := r.manager.WaitForAttachAndMount(ctx, pod); err != nil {
		return err
	}
	for _, container := range pod.Spec.Containers {
		volumes, err := r.manager.ContainerMounts(ctx, pod, container.Name)
		if err == nil {
			err = r.options.Runtime.Run(ctx, container, volumes)
		}
		if err != nil {
			return fmt.Errorf("container %q: %w", container.Name, err)
		}
	}
	return nil
}

// remove removes a pod without running containers, and its volumes. The containers of an earlier process have ended
// with it here. If your runtime's containers outlive the agent, end them first.
func (r *Recycler) remove(ctx context.Context, pod *v1.Pod) error {
	if err := r.manager.RemovePod(pod.UID); err != nil {
		return err
	}
	if err := r.manager.WaitForUnmount(ctx, pod); err != nil {
		return err
	}
	err := store.Delete(ctx, r.options.Store, pod)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}
