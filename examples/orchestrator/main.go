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
	"syscall"
	"time"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// options are the flags.
type options struct {
	manifests   string        // the directory of manifests
	root        string        // the directory of volumes, images and the records that survive a reboot
	run         string        // the directory of the records that end with the boot; a tmpfs
	node        string        // the name of this node
	reportAfter time.Duration // after which time the agent prints why something is not ready
	retry       time.Duration // the first back-off after a failure
	http        string        // the address of the pages of the node and the cluster; empty for none
}

// parse reads the flags.
func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("orchestrator", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.manifests, "manifests", "", "`directory` of the pods, claims, classes and volumes that are wanted")
	flags.StringVar(&o.root, "root", "/var/lib/orchestrator", "`directory` of volumes and of what must survive a reboot")
	flags.StringVar(&o.run, "run", "/run/orchestrator", "`directory` on a tmpfs, of what must not survive a reboot")
	flags.StringVar(&o.node, "node", "node", "`name` of this node")
	flags.DurationVar(&o.reportAfter, "report-after", 10*time.Second, "after which time the agent prints why something is not ready")
	flags.DurationVar(&o.retry, "retry", 500*time.Millisecond, "how long until what failed is tried again, for the first time")
	flags.StringVar(&o.http, "http", "", "`ADDRESS` of the pages /node/ and /cluster/, such as 127.0.0.1:8080; every program that reaches it can read them")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if o.manifests == "" || flags.NArg() > 0 {
		return o, errors.New("give -manifests, and no arguments")
	}
	for _, dir := range []*string{&o.manifests, &o.root, &o.run} {
		var err error
		if *dir, err = filepath.Abs(*dir); err != nil {
			return o, err
		}
	}
	return o, nil
}

// run is the program. It returns the exit code: 0 after a signal, 2 for wrong flags, and 1 for any other failure.
func run(args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "orchestrator:", err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A signal that arrives during a read of the manifests stays in the channel, and leads to another read.
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGHUP)
	defer signal.Stop(changed)
	if err := serve(ctx, o, changed, newOutput(stdout)); err != nil {
		fmt.Fprintln(stderr, "orchestrator:", err)
		return 1
	}
	return 0
}

// serve runs the agent until ctx ends, or a part of it fails. Mounts stay.
func serve(ctx context.Context, o options, changed <-chan os.Signal, out *output) error {
	a, err := newAgent(ctx, o, out)
	if err != nil {
		return err
	}
	defer a.database.close()
	ctx, ended := a.start(ctx)
	for ctx.Err() == nil {
		a.keepUp(ctx, changed)
	}
	return ended()
}
