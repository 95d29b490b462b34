package main

import (
	"context"
	"fmt"
	"os"
	"strings"
)

// This file holds what the program says at each stage of the story, in text and, with -json, as one document each.

// plan says where everything will be made and what is left out.
func (o *output) plan(root rootDir, out []leftOut) {
	o.say("everything is made under %s, in a mount namespace of its own", root.path)
	for _, l := range out {
		o.say("%s", l)
	}
	o.say("")
	o.report(struct {
		Stage   string    `json:"stage"`
		Root    string    `json:"root"`
		LeftOut []leftOut `json:"leftOut"`
	}{"planned", root.path, append([]leftOut{}, out...)})
}

// ready shows the volumes of pods that are ready.
func (o *output) ready(pods []*readyPod, root rootDir) {
	o.say("\n%s\n", table(pods, root.path))
	rows := []row{}
	for _, pod := range pods {
		rows = append(rows, pod.volumes...)
	}
	o.report(struct {
		Stage   string `json:"stage"`
		Volumes []row  `json:"volumes"`
	}{"ready", rows})
}

// used shows what containers found when they used their volumes. What they found wrong is the error.
func (o *output) used(findings []finding) error {
	var errs []error
	for _, f := range findings {
		what := f.Did
		if f.Error != "" {
			what = f.Error
			errs = append(errs, fmt.Errorf("container %q of pod %q, volume %q at %s: %s",
				f.Container, f.Pod, f.Volume, f.MountPath, f.Error))
		}
		o.say("  container %-10s %-14s %s", f.Container, f.MountPath, what)
	}
	o.say("")
	o.report(struct {
		Stage    string    `json:"stage"`
		Findings []finding `json:"findings"`
	}{"used", findings})
	return join(errs...)
}

// kept says how to look at what is mounted.
func (o *output) kept(root rootDir, containers string) {
	o.say("everything stays until Ctrl-C (or SIGTERM to process %d); look at it from another terminal:", os.Getpid())
	o.say("  %s", howToEnter())
	o.say("  ls %s/*/*/*", containers)
	o.report(struct {
		Stage      string `json:"stage"`
		PID        int    `json:"pid"`
		Enter      string `json:"enter"`
		Root       string `json:"root"`
		Containers string `json:"containers"`
	}{"kept", os.Getpid(), howToEnter(), root.path, containers})
}

// prove removes the empty directories that the run made, and shows what is left, which should be nothing but the
// volumes that their reclaim policy keeps.
func prove(ctx context.Context, root rootDir, kept []string, out *output) error {
	left, err := findLeftovers(ctx, root.path)
	if err != nil {
		return err
	}
	if len(kept) > 0 && left.onlyFiles() {
		out.say("\nkept, because the reclaim policy of %s is not Delete:%s", strings.Join(kept, ", "), left)
		out.report(gone{"gone", kept, left})
		return nil
	}
	if !left.empty() {
		return &leftoverError{left: left, root: root.path}
	}
	if err := root.remove(); err != nil {
		return err
	}
	out.say("\nnothing is left: no mount, no loop device, no file and no directory under %s", root.path)
	out.report(gone{"gone", []string{}, left})
	return nil
}

// gone is the last document of a run that went well.
type gone struct {
	Stage string    `json:"stage"`
	Kept  []string  `json:"kept"`
	Left  leftovers `json:"left"`
}
