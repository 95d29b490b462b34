package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/volumekit/volumekit/examples/internal/container"
	"github.com/volumekit/volumekit/examples/internal/manifest"
	"github.com/volumekit/volumekit/examples/internal/sandbox"
	"github.com/volumekit/volumekit/examples/internal/show"
)

// This file prints each stage, as text and, with -json, as one document each.

// planned prints the root directory and the volumes that are left out.
func planned(out *show.Output, root sandbox.Root, leftOut []manifest.LeftOut) {
	out.Say("everything is made under %s, in a mount namespace of its own", root.Path)
	for _, l := range leftOut {
		out.Say("%s", l)
	}
	out.Say("")
	out.Report("planned", "root", root.Path, "leftOut", append([]manifest.LeftOut{}, leftOut...))
}

// ready prints the volumes of ready pods.
func ready(out *show.Output, volumes []show.Row, root sandbox.Root) {
	out.Say("\n%s\n", show.Table(volumes, root.Path))
	out.Report("ready", "volumes", volumes)
}

// used prints what containers found when they used their volumes. Failures are the error.
func used(out *show.Output, findings []container.Finding) error {
	var errs []error
	for _, f := range findings {
		what := f.Did
		if f.Error != "" {
			what = f.Error
			errs = append(errs, fmt.Errorf("container %q of pod %q, volume %q at %s: %s", f.Container, f.Pod, f.Volume, f.MountPath, f.Error))
		}
		out.Say("  container %-10s %-14s %s", f.Container, f.MountPath, what)
	}
	out.Say("")
	out.Report("used", "findings", findings)
	return show.Join(errs...)
}

// kept says how to look at the mounts.
func kept(out *show.Output, root sandbox.Root, containers string) {
	out.Say("everything stays until Ctrl-C (or SIGTERM to process %d); look at it from another terminal:", os.Getpid())
	out.Say("  %s", sandbox.HowToEnter())
	out.Say("  ls %s/*/*/*", containers)
	out.Report("kept", "pid", os.Getpid(), "enter", sandbox.HowToEnter(), "root", root.Path, "containers", containers)
}

// prove removes the empty directories of the run, and prints what is left: only the volumes that their reclaim policy
// keeps.
func prove(ctx context.Context, root sandbox.Root, kept []string, out *show.Output) error {
	left, err := sandbox.FindLeftovers(ctx, root.Path)
	if err != nil {
		return err
	}
	if len(kept) > 0 && left.OnlyFiles() {
		out.Say("\nkept, because the reclaim policy of %s is not Delete:%s", strings.Join(kept, ", "), left)
		out.Report("gone", "kept", kept, "left", left)
		return nil
	}
	if !left.Empty() {
		return &sandbox.LeftoverError{Left: left, Root: root.Path}
	}
	if err := root.Remove(); err != nil {
		return err
	}
	out.Say("\nnothing is left: no mount, no loop device, no file and no directory under %s", root.Path)
	out.Report("gone", "kept", []string{}, "left", left)
	return nil
}
