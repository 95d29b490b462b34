// Command containerd is an agent that runs the containers of pods under containerd, with volumes of every kind. Copy it, and put
// your own source of pods in the place of the directory of manifests.
//
//	main.go      flags and signals
//	agent.go     puts plugins, store, volume manager and containerd together, and follows the manifests
//	pods.go      the life of a pod: volumes, init containers, containers, restarts, the end
//	runtime.go   the life of a container: what containerd is asked for
//	spec.go      the specification that a container is started with, and what it gets of its volumes
//	idmap.go     id-mapped mounts, for pods with a user namespace (hostUsers: false)
//
// Containers run on while no agent runs, also after kill -9. The next agent finds them in containerd, and their volumes by the
// records of the volume manager. It starts no container twice and remounts nothing.
//
// The example sets up no network: each container has a network namespace of its own, without an interface. It pulls no images.
// docs/containerd.md shows it step by step. It runs on Linux, as root.
package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

func main() { os.Exit(run(os.Args[1:], os.Stderr)) }

// options are the flags.
type options struct {
	manifests  string        // the directory of what is wanted
	root       string        // the directory of volumes and of what must survive a reboot
	run        string        // the directory of what must not survive a reboot; a tmpfs
	node       string        // the name of this node
	containerd string        // the socket of containerd
	namespace  string        // the namespace in containerd, which this agent has for itself
	firstUser  uint          // the user of the host that is root in pods with a user namespace
	retry      time.Duration // how long until a failed step is tried again, for the first time
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("containerd-agent", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.manifests, "manifests", "", "`directory` of pods, claims and other objects that are wanted; read again at SIGHUP")
	flags.StringVar(&o.root, "root", "/var/lib/containerd-agent", "`directory` of volumes and of what must survive a reboot")
	flags.StringVar(&o.run, "run", "/run/containerd-agent", "`directory` on a tmpfs, of what must not survive a reboot")
	flags.StringVar(&o.node, "node", "node", "`name` of this node")
	flags.StringVar(&o.containerd, "containerd", "/run/containerd/containerd.sock", "`socket` of containerd")
	flags.StringVar(&o.namespace, "namespace", "volumekit", "`namespace` in containerd, which no other program uses")
	flags.UintVar(&o.firstUser, "first-user", 1<<20, "`uid` and gid of the host that is root in pods with hostUsers: false")
	flags.DurationVar(&o.retry, "retry", time.Second, "how long until a failed step is tried again, for the first time")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if o.manifests == "" || flags.NArg() > 0 {
		return o, errors.New("give -manifests, and no arguments")
	}
	for _, dir := range []*string{&o.manifests, &o.root, &o.run, &o.containerd} {
		var err error
		if *dir, err = filepath.Abs(*dir); err != nil {
			return o, err
		}
	}
	return o, nil
}

// run is the program. It returns the exit code: 0 when a signal ended it, 1 when something else did, 2 when the flags are wrong.
func run(args []string, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	changed := make(chan os.Signal, 1) // A signal that comes while the manifests are read stays in the channel.
	signal.Notify(changed, syscall.SIGHUP)
	logger := slog.New(slog.NewTextHandler(stderr, nil))
	o, err := parse(args, stderr)
	if err != nil {
		logger.Error("the flags are wrong", "error", err)
		return 2
	}
	a, err := newAgent(ctx, o, logger)
	if err == nil {
		logger.Info("the agent begins", "manifests", o.manifests, "containerd", o.containerd)
		err = errors.Join(a.serve(ctx, changed), a.close())
	}
	if err != nil {
		logger.Error("the agent has failed", "error", err)
		return 1
	}
	return 0
}
