package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/bridge/inspect"
	"github.com/volumekit/volumekit/controller/expand"
	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/plugins/emptydir"
	"github.com/volumekit/volumekit/plugins/hostpath"
	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

// agent is the agent of one node and, since it is the only one, the cluster's controller too.
type agent struct {
	options  options
	out      *output
	database *database
	claims   *persistentvolume.Controller
	sizes    *expand.Controller
	manager  *volumemanager.Manager
	history  *inspect.History // what was done for each volume, for the pages
	complete sync.Once        // the pods of the manifests were added for the first time
}

// newAgent puts an agent together. It mounts nothing and starts nothing.
func newAgent(ctx context.Context, o options, out *output) (*agent, error) {
	// It logs what no event of a pod or volume can report, such as damaged records.
	logger := slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelWarn}))
	plugins, mounter, err := newPlugins(ctx, o, out, logger)
	if err != nil {
		return nil, err
	}
	a := &agent{options: o, out: out, history: inspect.NewHistory(inspect.HistoryOptions{})}
	// The controller's decisions, such as which claim has which volume, must survive the agent.
	if a.database, err = openDatabase(ctx, filepath.Join(o.root, "objects")); err != nil {
		return nil, err
	}
	backoff := operationexecutor.Backoff{Initial: o.retry}
	events := operationexecutor.NewEventPrinter(out)
	// It expands the volumes of claims that request more.
	a.sizes = expand.New(plugins, a.database, expand.Options{Events: events, Logger: logger, Backoff: backoff})
	// With these directories, a manager that starts after a crash knows every mount, device and attachment that its predecessor
	// made or was about to make.
	a.manager, err = volumemanager.New(plugins, volumemanager.Options{
		Store: a.database, RuntimeDir: filepath.Join(o.run, "volumes"), StateDir: filepath.Join(o.root, "attachments"),
		Mounter: mounter, DeviceUse: loop.DeviceUse{}, Loops: loop.New(loop.Options{}), Recorder: events, Logger: logger,
		Backoff: backoff, Observer: a.history,
	})
	if err != nil {
		a.database.close()
		return nil, err
	}
	// It binds claims to volumes, provisions volumes for claims that find none, and deletes the volumes of deleted claims as soon as
	// the manager has unmounted them.
	a.claims = persistentvolume.New(plugins, a.database, persistentvolume.Options{
		NodeName: types.NodeName(o.node), Mounts: a.manager, Events: events, InitialBackoff: o.retry,
	})
	return a, nil
}

// newPlugins returns the plugins of this agent: add your own here.
func newPlugins(ctx context.Context, o options, out *output, logger *slog.Logger) (*volume.VolumePluginMgr, *mount.Mounter, error) {
	host, err := volume.NewHost(volume.HostOptions{RootDir: o.root, NodeName: types.NodeName(o.node)})
	if err != nil {
		return nil, nil, err
	}
	mounter := mount.New(mount.Options{})
	plugins := volume.NewVolumePluginMgr(host)
	err = plugins.InitPlugins(ctx,
		hostpath.New(hostpath.Options{Protected: []string{o.run}}),
		emptydir.New(emptydir.Options{Mounter: mounter}),
		loopblock.New(loopblock.Options{Mounter: mounter, Events: operationexecutor.NewEventPrinter(out), Logger: logger}),
	)
	return plugins, mounter, err
}

// stopTimeout is how long a stopping agent waits for its running operations.
const stopTimeout = 10 * time.Second

// runManager runs the manager until ctx ends, and then stops it. The next agent completes operations that take longer than
// stopTimeout.
func (a *agent) runManager(ctx context.Context) error {
	running := context.WithoutCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- a.manager.Run(running) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	stopping, cancel := context.WithTimeout(running, stopTimeout)
	defer cancel()
	if err := a.manager.Stop(stopping); err != nil {
		a.out.say("not all could be taken away: %v", err)
	}
	return <-ended
}

// start runs the controllers and the manager until the returned context ends: with ctx, when one of them fails, or when the database
// can write no more. ended waits for them and returns the reason.
func (a *agent) start(ctx context.Context) (running context.Context, ended func() error) {
	ctx, cancel := context.WithCancelCause(ctx)
	var parts sync.WaitGroup
	var errs [5]error
	keep := func(i int, name string, part func(context.Context) error) {
		parts.Go(func() {
			if err := part(ctx); err != nil {
				errs[i] = fmt.Errorf("%s: %w", name, err)
			}
			cancel(errs[i]) // None of them is of use without the others.
		})
	}
	keep(0, "claims", a.claims.Run)
	keep(1, "sizes", a.sizes.Run)
	keep(2, "volumes", a.runManager)
	keep(3, "database", a.database.run)
	keep(4, "pages", a.servePages)
	return ctx, func() error {
		parts.Wait()
		return errors.Join(errs[:]...)
	}
}
