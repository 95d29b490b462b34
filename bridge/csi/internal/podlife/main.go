// Command podlife is both ends of a socket, for the tests that kill them: a CSI driver, and the agent of a node that
// uses the driver's volumes. Both keep their state below one directory, so the next process continues.
//
//	podlife driver DIR         serves loop-block at DIR/csi.sock until SIGTERM
//	podlife agent DIR STAGE [DRIVER]
//	                           brings the node to a stage of the life of a pod, and ends; what is mounted stays. The driver at DIR/csi.sock
//	                           has that name, or that of loop-block
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/volumekit/volumekit/bridge/csi/csiserver"
	"github.com/volumekit/volumekit/plugins/loopblock"
)

// nodeName is the name of the node, and the driver's id of it.
const nodeName = "node-1"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "podlife:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM) //nolint:forbidigo // The program begins here.
	defer stop()
	switch {
	case len(args) == 2 && args[0] == "driver":
		return serve(ctx, args[1])
	case len(args) == 3 && args[0] == "agent":
		return liveTo(ctx, args[1], Stage(args[2]), loopblock.Driver)
	case len(args) == 4 && args[0] == "agent":
		return liveTo(ctx, args[1], Stage(args[2]), args[3])
	}
	return fmt.Errorf("run it as %q or %q, not with %q", "driver DIR", "agent DIR STAGE [DRIVER]", args)
}

func socketOf(dir string) string { return filepath.Join(dir, "csi.sock") }

func logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

func serve(ctx context.Context, dir string) error {
	server, err := csiserver.New(loopblock.New(loopblock.Options{}), csiserver.Options{
		Socket: socketOf(dir), RootDir: filepath.Join(dir, "driver"), StateDir: filepath.Join(dir, "driver-state"),
		RuntimeDir: filepath.Join(dir, "driver-run"), NodeName: nodeName, Logger: logger(),
	})
	if err != nil {
		return err
	}
	return server.Run(ctx)
}
