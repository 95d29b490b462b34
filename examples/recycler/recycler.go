// Package recycler shows the orchestrator's side of recycling by a pod: a [volume.PodRecycler] over a volume manager. Copy it,
// and put your own way to run a container in place of [Runtime].
//
//	pods := recycler.New(recycler.Options{Store: objects, Runtime: runtime, Template: template})
//	plugins.InitPlugins(ctx, nfs.New(nfs.Options{Recycler: pods}))
//	manager, err := volumemanager.New(plugins, ...)
//	pods.Use(manager)
//
// Plugins recycle in their process where they are given no recycler. A pod is for storage that the process cannot reach, or
// that it shall not touch: the pod has what your runtime gives to every container, and no more.
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

// cleanUpPatience bounds what is done for a pod after its time is over.
const cleanUpPatience = 30 * time.Second

// annRecycles is the annotation by which a pod is known to be one of these. Its value is the name of the volume.
const annRecycles = "example.com/recycles"

// Runtime runs containers.
type Runtime interface {
	// Run starts a container, with volumes, and returns nil when it has ended with success. When it returns, no process of the
	// container is alive, however it has ended; with ctx, at the latest, it kills them.
	Run(ctx context.Context, container v1.Container, volumes volumemanager.ContainerVolumes) error
}

// Options says how volumes are recycled. All of it is required.
type Options struct {
	// Store holds the pods of the orchestrator.
	Store store.Store
	// Runtime runs the containers of the pod.
	Runtime Runtime
	// Template is the pod that recycles: its first volume is replaced by the one to be recycled, which its containers mount.
	// Its namespace is where the pods run.
	Template v1.Pod
}

// Recycler is a [volume.PodRecycler]. Make one with [New].
type Recycler struct {
	options Options
	manager *volumemanager.Manager
}

var _ volume.PodRecycler = (*Recycler)(nil)

// New returns a recycler, which plugins are made with. It does nothing before it has a manager.
func New(options Options) *Recycler { return &Recycler{options: options} }

// Use says which manager makes the volumes of the pods. It is called once, before any volume is recycled: the manager is made
// with the plugins, and these with the recycler.
func (r *Recycler) Use(manager *volumemanager.Manager) { r.manager = manager }

// RecycleByPod implements [volume.PodRecycler]. The pod is on record in the store before anything of it is there, and until
// nothing of it is left: one that an earlier process has left is known by its name.
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
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpPatience)
	defer cancel()
	if err := errors.Join(err, r.remove(after, pod)); err != nil {
		return fmt.Errorf("pod %s: %w", store.NameOf(pod), err)
	}
	return nil
}

// podFor fills in the template.
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

// removeEarlier removes the pod of that name that an earlier process has left: what it has done is not known, and never counts.
// One that somebody else has made under that name stays, and is an error that matches store.ErrConflict.
func (r *Recycler) removeEarlier(ctx context.Context, pod *v1.Pod) error {
	earlier, err := store.Get[*v1.Pod](ctx, r.options.Store, pod.Namespace, pod.Name)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil
	case err != nil:
		return err
	case earlier.Annotations[annRecycles] != pod.Annotations[annRecycles]:
		return fmt.Errorf("it has no annotation %s and is somebody else's: delete it if it is not needed: %w", annRecycles, store.ErrConflict)
	}
	return r.remove(ctx, earlier)
}

// run runs the containers of a pod, one after the other, until all have succeeded or one has not.
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

// remove takes a pod away, no container of which is alive, with its volumes. Those of an earlier process have ended with it
// here; a runtime whose containers outlive the agent must be asked to end them first.
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
