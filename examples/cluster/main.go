package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/bridge/inspect"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// options are the flags of every role.
type options struct {
	name    string // of the process
	dir     string // its own directory
	shared  string // the directory of the images
	etcd    string // the members' addresses for clients
	cluster string // the members' names and addresses for each other
	client  string // a member's address for clients
	segment string // the topology segment of a node
	csi     bool   // volumes are served through CSI
	http    string // the address of a process's page; of the demo the first one
	tick    time.Duration
}

// role is one of the kinds of process that this program can run as.
type role struct {
	be    func(context.Context, options, *output) error
	needs []string // the required flags
}

// roles are the roles of this program by name. The role without a name is the demo.
var roles = map[string]role{
	"":           {be: runDemo},
	"member":     {be: startMember, needs: []string{"name", "dir", "cluster", "client"}},
	"controller": {be: startController, needs: []string{"name", "dir", "shared", "etcd"}},
	"scheduler":  {be: startScheduler, needs: []string{"name", "etcd"}},
	"node":       {be: startNode, needs: []string{"name", "dir", "shared", "etcd"}},
	"agent":      {be: startAgent, needs: []string{"name", "dir", "shared", "etcd"}},
}

// run is the program. It returns the exit code: 0 after success or a signal, 1 after a failure, 2 for wrong arguments.
func run(args []string, stdout, stderr io.Writer) int {
	name := ""
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		name, args = args[0], args[1:]
	}
	role, known := roles[name]
	if !known {
		fmt.Fprintf(stderr, "cluster: there is no role %q: run it without arguments, or see doc.go for its roles\n", name)
		return 2
	}
	o, err := parse(args, role.needs, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "cluster: run it without arguments, or see doc.go for its roles:", err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := role.be(ctx, o, newOutput(stdout)); err != nil && ctx.Err() == nil {
		fmt.Fprintln(stderr, "cluster:", err)
		return 1
	}
	return 0
}

// parse reads the flags. Those in needs are required.
func parse(args, needs []string, stderr io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("cluster", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.name, "name", "", "`name` of the process")
	flags.StringVar(&o.dir, "dir", "", "`directory` of its own; the demo makes a new one in it")
	flags.StringVar(&o.shared, "shared", "", "`directory` of the images, which all nodes share")
	flags.StringVar(&o.etcd, "etcd", "", "`addresses` of etcd, with commas between them")
	flags.StringVar(&o.cluster, "cluster", "", "`members` of etcd, name=address with commas between them")
	flags.StringVar(&o.client, "client", "", "`address` of a member for clients")
	flags.StringVar(&o.segment, "segment", diskSegment, "topology `segment` of the node")
	flags.BoolVar(&o.csi, "csi", false, "serve the volumes through CSI")
	flags.StringVar(&o.http, "http", "", "`address` of a page that shows volumes; the demo gives each process the next port")
	flags.DurationVar(&o.tick, "tick", 20*time.Millisecond, "`time` between two lines that a pod writes")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("%q is no flag", flags.Arg(0))
	}
	for _, name := range needs {
		if flags.Lookup(name).Value.String() == "" {
			return o, fmt.Errorf("give it -%s", strings.Join(needs, ", -"))
		}
	}
	return o, nil
}

func startMember(ctx context.Context, o options, _ *output) error {
	return runMember(ctx, memberOptions{name: o.name, dir: o.dir, cluster: o.cluster, client: o.client})
}

func startController(ctx context.Context, o options, out *output) error {
	s, closeStore, err := openStore(ctx, strings.Split(o.etcd, ","))
	if err != nil {
		return err
	}
	c := &controller{options: o, store: s, out: out}
	err = runAll(ctx, c.run, c.page.followLeases(s), func(ctx context.Context) error {
		return servePage(ctx, o.http, inspect.NewCluster(c.page.sources), out)
	})
	return errors.Join(err, closeStore())
}

func startScheduler(ctx context.Context, o options, out *output) error {
	s, closeStore, err := openStore(ctx, strings.Split(o.etcd, ","))
	if err != nil {
		return err
	}
	out.say("places pods")
	return errors.Join(newScheduler(s, out).run(ctx), closeStore())
}

func startNode(ctx context.Context, o options, out *output) error {
	return holdNode(ctx, runDir(o), os.Args[2:], out)
}

func startAgent(ctx context.Context, o options, out *output) error {
	s, closeStore, err := openStore(ctx, strings.Split(o.etcd, ","))
	if err != nil {
		return err
	}
	node, mounter := types.NodeName(o.name), mount.New(mount.Options{})
	err = withPlugin(ctx, o, newDisks(o.shared, node, s, mounter), nodeService(o), func(ctx context.Context, disks volume.VolumePlugin) error {
		a, err := newAgent(ctx, agentOptions{
			node: node, segment: o.segment, root: filepath.Join(o.dir, "root"), run: runDir(o), mounter: mounter, disks: disks, tick: o.tick, http: o.http,
		}, s, out)
		if err != nil {
			return err
		}
		return a.run(ctx)
	})
	return errors.Join(err, closeStore())
}

// runDir returns the path at which a node has its tmpfs, in its mount namespace.
func runDir(o options) string { return filepath.Join(o.dir, "run") }
