package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// awaitReady waits until the volumes of the added pods are ready, and then starts the containers.
func (a *agent) awaitReady(ctx context.Context, pods []*v1.Pod) error {
	for _, pod := range pods {
		err := a.waitReporting(ctx, func(ctx context.Context) error { return a.manager.WaitForAttachAndMount(ctx, pod) })
		if err != nil {
			return err
		}
		a.out.say("pod %s is ready", nameOf(pod))
		if err := a.startContainers(ctx, pod); err != nil {
			return err
		}
	}
	return nil
}

// startContainers prepares the mounts and devices of each container of a pod. It may be called again, also after the agent was killed:
// the result is the same.
func (a *agent) startContainers(ctx context.Context, pod *v1.Pod) error {
	for _, name := range containersOf(pod) {
		volumes, err := a.manager.ContainerMounts(ctx, pod, name)
		if err != nil {
			return err
		}
		// Here a runtime would start the container unless it runs already. docs/embedding.md shows how to convert these mounts and
		// devices to those of OCI and CRI.
		for _, m := range volumes.Mounts {
			a.out.say("  %s: %s is %s, read-only: %t", name, m.Target, m.Source, m.ReadOnly)
		}
		for _, d := range volumes.Devices {
			a.out.say("  %s: %s is the device %d:%d, %s", name, d.Target, d.Major, d.Minor, d.Source)
		}
	}
	return nil
}

// remove ends a pod, and begins the removal of its volumes.
func (a *agent) remove(ctx context.Context, pod *v1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, a.options.reportAfter)
	defer cancel()
	for _, name := range containersOf(pod) {
		// Here the runtime would stop the container. After it has ended for good, the manager removes the mounts of this container.
		// If it cannot yet, it does so with the pod's volumes.
		if err := a.manager.ReleaseContainer(ctx, pod.UID, name); err != nil {
			a.out.say("error: %v", err)
		}
	}
	// This is the promise that no process of the pod is alive.
	return a.manager.RemovePod(pod.UID)
}

// containersOf returns the names of a pod's containers, in the order in which they start.
func containersOf(pod *v1.Pod) []string {
	var names []string
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		names = append(names, c.Name)
	}
	return names
}

// awaitGone waits until nothing is left of the removed pods, and then deletes them from the database. If the agent is killed before,
// the next one still finds them there.
func (a *agent) awaitGone(ctx context.Context, pods []*v1.Pod) error {
	for _, pod := range pods {
		err := a.waitReporting(ctx, func(ctx context.Context) error { return a.manager.WaitForUnmount(ctx, pod) })
		if err != nil {
			return err
		}
		if err := store.Delete(ctx, a.database, pod); err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		a.out.say("pod %s is gone", nameOf(pod))
	}
	return nil
}

// waitReporting calls wait until it succeeds or cannot succeed any more. If one call takes longer than options.reportAfter, it prints the
// reason, and again if the reason changes.
func (a *agent) waitReporting(ctx context.Context, wait func(context.Context) error) error {
	said := ""
	for {
		err := func() error {
			ctx, cancel := context.WithTimeout(ctx, a.options.reportAfter)
			defer cancel()
			return wait(ctx)
		}()
		var notReady *volume.NotReadyError
		if !errors.As(err, &notReady) || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		if reasons := reasonsOf(notReady); reasons != said {
			a.out.say("waiting: %v", err)
			said = reasons
		}
	}
}

// reasonsOf returns why volumes are not ready, without the parts that change with every try.
func reasonsOf(notReady *volume.NotReadyError) string {
	var reasons []string
	for _, v := range notReady.Volumes {
		reasons = append(reasons, fmt.Sprintf("%s is %s: %v", v.OuterName, v.Phase, v.Err))
	}
	return strings.Join(reasons, "; ")
}
