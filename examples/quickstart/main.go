package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"io"
	"os"

	"github.com/volumekit/volumekit/examples/internal/container"
	"github.com/volumekit/volumekit/examples/internal/manifest"
	"github.com/volumekit/volumekit/examples/internal/sandbox"
	"github.com/volumekit/volumekit/examples/internal/show"
)

// The built-in manifests.
var (
	//go:embed manifests/pod.yaml
	builtinPod string
	//go:embed manifests/storage.yaml
	builtinStorage string
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run is the program: it returns the exit code.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	o, err := parseOptions(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	out := show.NewOutput(o.documents, stdout, stderr)
	if err != nil {
		return out.Fail(err)
	}
	ctx, stop := sandbox.UntilSignal()
	defer stop()
	inside, code, err := sandbox.Enter() // runs the program again, in a private mount namespace
	switch {
	case err != nil:
		return out.Fail(err)
	case !inside:
		return code
	}
	if err := runManifests(ctx, o, stdin, out); err != nil {
		return out.Fail(err)
	}
	return 0
}

// runManifests loads the manifests, refuses faulty ones, runs an agent with the rest, and proves that nothing is left.
func runManifests(ctx context.Context, o options, stdin io.Reader, out *show.Output) error {
	objects, err := manifest.Load(o.file, stdin, builtinPod+"---\n"+builtinStorage)
	if err != nil {
		return err
	}
	root, err := makeRoot(o)
	if err != nil {
		return err
	}
	agent, err := newAgent(ctx, root, out)
	if err == nil {
		err = objects.Check(agent.plugins)
	}
	if err != nil {
		return show.Join(err, root.Remove())
	}
	planned(out, root, objects.Prune(sandbox.Missing))

	kept, err := live(ctx, o, agent, objects)
	return show.Join(err, prove(context.WithoutCancel(ctx), root, kept, out))
}

// live is the part in which volumes are mounted: it starts the agent, adds the pods, shows and uses their volumes, and
// unmounts them in any case. It returns the volumes that their reclaim policy keeps.
func live(ctx context.Context, o options, agent *agent, objects *manifest.Set) (kept []string, err error) {
	ending := context.WithoutCancel(ctx)
	endPage, err := agent.serve(ctx, o.http)
	if err != nil {
		return nil, err
	}
	defer endPage()
	err = agent.create(ctx, objects)
	agent.start(ending)
	if err == nil {
		err = look(ctx, o, agent)
	}
	err = show.CutShort(ctx, err)
	stuck := agent.tearDown(ending, o.timeout)
	if stuck == nil {
		stuck = agent.deletePods(ending)
	}
	if stuck != nil {
		return nil, show.Join(err, stuck, agent.stop(ending)) // Claims of existing pods would stay, too.
	}
	kept, reclaimErr := agent.deleteClaims(ending, o.timeout)
	return kept, show.Join(err, reclaimErr, agent.stop(ending))
}

// look sets the pods up, shows their volumes, and writes and reads through every path, as their containers would.
func look(ctx context.Context, o options, agent *agent) error {
	volumes, err := agent.setUp(ctx, o.timeout)
	if err != nil {
		return err
	}
	ready(agent.out, volumes, agent.root)
	containers := &container.Containers{Manager: agent.manager, Mounter: agent.mounter, Dir: agent.root.Dir(containersDir)}
	err = containers.Mount(ctx, agent.pods)
	if err == nil {
		err = used(agent.out, containers.Use())
	}
	if err == nil && o.keep {
		kept(agent.out, agent.root, containers.Dir)
		<-ctx.Done()
	}
	return show.Join(err, containers.Unmount(context.WithoutCancel(ctx)))
}
