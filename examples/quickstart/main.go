package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"os"
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run is the program: it returns the exit code.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	o, err := parseOptions(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	out := newOutput(o, stdout, stderr)
	if err != nil {
		return out.fail(err)
	}
	ctx, stop := untilSignal()
	defer stop()
	inside, code, err := enterNamespace()
	switch {
	case err != nil:
		return out.fail(err)
	case !inside:
		return code
	}
	if err := tell(ctx, o, stdin, out); err != nil {
		return out.fail(err)
	}
	return 0
}

// tell is the story: load the manifests, refuse what cannot work, run an agent on the rest, and prove that nothing is
// left.
func tell(ctx context.Context, o options, stdin io.Reader, out *output) error {
	objects, err := loadManifests(o, stdin)
	if err != nil {
		return err
	}
	root, err := makeRoot(o)
	if err != nil {
		return err
	}
	agent, err := newAgent(ctx, root, out)
	if err == nil {
		err = objects.check(agent.plugins)
	}
	if err != nil {
		return join(err, root.remove())
	}
	out.plan(root, objects.prune(missing))

	kept, err := live(ctx, o, agent, objects)
	return join(err, prove(context.WithoutCancel(ctx), root, kept, out))
}

// live is the part of the story in which volumes are mounted: start the agent, add the pods, look at their volumes, use
// them, and take them away, whatever happened. It returns the volumes that their reclaim policy keeps.
func live(ctx context.Context, o options, agent *agent, objects *manifests) (kept []string, err error) {
	ending := context.WithoutCancel(ctx)
	err = agent.create(ctx, objects)
	agent.start(ending)
	if err == nil {
		err = look(ctx, o, agent)
	}
	err = cutShort(ctx, err)
	stuck := agent.tearDown(ending, o.timeout)
	if stuck == nil {
		stuck = agent.deletePods(ending)
	}
	if stuck != nil {
		return nil, join(err, stuck, agent.stop(ending)) // Claims of pods that are there would stay, too.
	}
	kept, reclaimErr := agent.deleteClaims(ending, o.timeout)
	return kept, join(err, reclaimErr, agent.stop(ending))
}

// look sets the pods up, shows their volumes, and writes and reads through every path, as their containers would.
func look(ctx context.Context, o options, agent *agent) error {
	pods, err := agent.setUp(ctx, o.timeout)
	if err != nil {
		return err
	}
	agent.out.ready(pods, agent.root)
	containers := &containers{manager: agent.manager, mounter: agent.mounter, dir: agent.root.dir(containersDir)}
	err = containers.mount(ctx, pods)
	if err == nil {
		err = agent.out.used(containers.use())
	}
	if err == nil && o.keep {
		agent.out.kept(agent.root, containers.dir)
		<-ctx.Done()
	}
	return join(err, containers.unmount(context.WithoutCancel(ctx)))
}
