package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// keepUp reads the manifests and makes the node what they say, until they change or ctx ends. What fails is tried again.
func (a *agent) keepUp(ctx context.Context, changed <-chan os.Signal) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for a.sync(ctx) != nil && ctx.Err() == nil {
			pause(ctx, a.options.retry)
		}
	}()
	select {
	case <-changed:
	case <-ctx.Done():
	}
	cancel()
	<-done
}

// sync makes the node what the manifests say, once, and returns when it is. An error was printed.
func (a *agent) sync(ctx context.Context) error {
	err := a.syncAll(ctx)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		a.out.say("error: %v", err)
	default:
		a.out.say("everything is as the manifests say")
	}
	return err
}

func (a *agent) syncAll(ctx context.Context) error {
	wanted, err := readManifests(a.options.manifests)
	if err != nil {
		return fmt.Errorf("the manifests cannot be read, so nothing is changed: %w", err)
	}
	objects, err := a.record(ctx, wanted)
	if err != nil {
		return err
	}
	if err := a.update(ctx, objects); err != nil {
		return err
	}
	// What is going goes first, and claims after their pods.
	if err := a.awaitGone(ctx, objects.goingPods); err != nil {
		return err
	}
	if len(objects.pods) == 0 {
		if err := a.waitReporting(ctx, a.manager.WaitForNodeEmpty); err != nil {
			return err
		}
	}
	return errors.Join(
		a.deleteObjects(ctx, objects.going), a.awaitReady(ctx, objects.pods), a.awaitSizes(ctx),
	)
}

// update gives the manager all pods, before the agent waits for any of them: a pod that is not ready delays no
// other. The manager does the work in its own goroutines.
func (a *agent) update(ctx context.Context, o objects) error {
	for _, pod := range o.goingPods {
		if err := a.remove(ctx, pod); err != nil {
			return err
		}
	}
	var errs []error
	for _, pod := range o.pods {
		// An error is a mistake in the pod: a retry would fail, too, and the pod is not added. A claim that is not bound yet is
		// no error.
		if err := a.manager.AddPod(ctx, pod); err != nil {
			errs = append(errs, fmt.Errorf("pod %s: %w", nameOf(pod), err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	// Now the manager knows every pod that may have been on this node before the agent started. Until PodsComplete, it removes
	// nothing that it found at its start. Call it only when your agent has read all of its pods.
	a.complete.Do(a.manager.PodsComplete)
	return nil
}

// pause waits for a time, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
