package main

import (
	"context"
	"errors"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// awaitReady waits until the volumes of pods that were added are there.
func (a *agent) awaitReady(ctx context.Context, pods []*v1.Pod) error {
	for _, pod := range pods {
		err := a.patiently(ctx, func(ctx context.Context) error { return a.manager.WaitForAttachAndMount(ctx, pod) })
		if err != nil {
			return err
		}
		a.out.say("pod %s is ready", nameOf(pod))
		a.show(pod)
	}
	return nil
}

// show prints what the containers of a pod would be started with.
func (a *agent) show(pod *v1.Pod) {
	// Here the containers of the pod would be started, each with the mounts and devices that it asks for.
	volumes := a.manager.GetMountedVolumesForPod(volume.GetUniquePodName(pod))
	for _, name := range slices.Sorted(maps.Keys(volumes)) {
		v := volumes[name]
		if v.DevicePath != "" {
			a.out.say("  %s: device %s of %s", name, v.DevicePath, v.Plugin)
			continue
		}
		a.out.say("  %s: directory %s of %s, read-only: %t", name, v.Path, v.Plugin, v.ReadOnly)
	}
}

// awaitGone waits until nothing is left of pods that were removed, and then takes them from the database: an agent that
// is killed before knows after its restart that they were there.
func (a *agent) awaitGone(ctx context.Context, pods []*v1.Pod) error {
	for _, pod := range pods {
		err := a.patiently(ctx, func(ctx context.Context) error { return a.manager.WaitForUnmount(ctx, pod) })
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

// patiently waits for something, and says each time that the patience is at an end why it is not there. It returns only
// when it is, or when nothing more can come of it.
func (a *agent) patiently(ctx context.Context, wait func(context.Context) error) error {
	for {
		err := func() error {
			ctx, cancel := context.WithTimeout(ctx, a.options.patience)
			defer cancel()
			return wait(ctx)
		}()
		var notReady *volume.NotReadyError
		if !errors.As(err, &notReady) || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		a.out.say("waiting: %v", err)
	}
}
