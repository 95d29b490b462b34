package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/store"
)

// tend keeps a pod running until live ends, and then removes it. If the agent ends first, with ctx, the pod stays as it is.
func (a *agent) tend(ctx, live context.Context, pod *v1.Pod) {
	a.keep(live, pod)
	if ctx.Err() != nil {
		return
	}
	a.retry(ctx, pod, func() error { return a.remove(ctx, pod) })
	a.mu.Lock()
	delete(a.pods, pod.UID)
	a.mu.Unlock()
	a.log.Info("pod is gone", "pod", store.NameOf(pod))
	select {
	case a.ended <- struct{}{}:
	default: // The channel has a token already.
	}
}

// keep runs the init containers, one after the other, and then the containers. It returns when ctx ends.
func (a *agent) keep(ctx context.Context, pod *v1.Pod) {
	for i := range pod.Spec.InitContainers {
		a.retry(ctx, pod, func() error { return a.runInit(ctx, pod, &pod.Spec.InitContainers[i]) })
	}
	var containers sync.WaitGroup
	for i := range pod.Spec.Containers {
		containers.Go(func() {
			a.retry(ctx, pod, func() error { return a.runContainer(ctx, pod, &pod.Spec.Containers[i]) })
		})
	}
	containers.Wait()
	<-ctx.Done()
}

// retry calls step until it succeeds or ctx ends, and logs why it failed. The pauses double up to a minute.
func (a *agent) retry(ctx context.Context, pod *v1.Pod, step func() error) {
	for pause := a.options.retry; ctx.Err() == nil; pause = min(2*pause, time.Minute) {
		err := step()
		if err == nil || ctx.Err() != nil {
			return
		}
		a.log.Warn("trying again", "pod", store.NameOf(pod), "after", pause, "error", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// runInit returns nil when an init container has succeeded, also if it did so before this agent started.
func (a *agent) runInit(ctx context.Context, pod *v1.Pod, c *v1.Container) error {
	code, err := a.await(ctx, pod, c)
	if err != nil || code == 0 {
		return err
	}
	return errors.Join(fmt.Errorf("init container %q has ended with %d", c.Name, code), a.runtime.remove(ctx, containerID(pod, c)))
}

// runContainer returns when a container has ended: nil if it must not be restarted, otherwise an error that says why it must.
func (a *agent) runContainer(ctx context.Context, pod *v1.Pod, c *v1.Container) error {
	code, err := a.await(ctx, pod, c)
	if err != nil {
		return err
	}
	switch policy := pod.Spec.RestartPolicy; {
	case policy == v1.RestartPolicyNever, policy == v1.RestartPolicyOnFailure && code == 0:
		a.log.Info("container has ended", "pod", store.NameOf(pod), "container", c.Name, "code", code)
		return nil
	}
	return errors.Join(fmt.Errorf("container %q has ended with %d", c.Name, code), a.runtime.remove(ctx, containerID(pod, c)))
}

// await returns the exit code of a container. It starts the container unless containerd has it.
func (a *agent) await(ctx context.Context, pod *v1.Pod, c *v1.Container) (uint32, error) {
	task, err := a.runtime.find(ctx, containerID(pod, c))
	if err != nil {
		return 0, err
	}
	if task == nil {
		begun := time.Now()
		if err := a.manager.WaitForAttachAndMount(ctx, pod); err != nil {
			return 0, err
		}
		volumes, err := a.manager.ContainerMounts(ctx, pod, c.Name)
		if err != nil {
			return 0, err
		}
		waited := time.Since(begun)
		groups := a.manager.GetExtraSupplementalGroupsForPod(pod)
		if task, err = a.runtime.start(ctx, containerStart{pod: pod, container: c, volumes: volumes, groups: groups}); err != nil {
			return 0, err
		}
		a.log.Info("container is started", "pod", store.NameOf(pod), "container", c.Name, "volumes", waited, "all", time.Since(begun))
	}
	return a.runtime.wait(ctx, task)
}

// remove ends a pod. RemovePod is the promise that no process of the pod is alive. It deletes the pod's object last: until then the
// object protects the pod's claims, and the next agent knows that it must clean up.
func (a *agent) remove(ctx context.Context, pod *v1.Pod) error {
	grace := 30 * time.Second
	if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
		grace = time.Duration(*s) * time.Second
	}
	var stops sync.WaitGroup
	all := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	errs := make([]error, len(all))
	for i := range all {
		stops.Go(func() { errs[i] = a.runtime.stop(ctx, containerID(pod, &all[i]), grace) })
	}
	stops.Wait()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("the volumes stay until the containers are known to be gone: %w", err)
	}
	if err := a.manager.RemovePod(pod.UID); err != nil {
		return err
	}
	if err := a.manager.WaitForUnmount(ctx, pod); err != nil {
		return err
	}
	if err := store.Delete(ctx, a.objects, pod); err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	return nil
}
