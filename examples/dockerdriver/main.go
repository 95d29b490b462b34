// Command dockerdriver serves the plugin loop-block to Docker. Its volumes are image files of this machine, each with a
// hard size limit. Copy it, and replace loop-block with your own plugin. docs/docker.md shows its use.
//
// It runs as root beside dockerd. After SIGTERM it waits for its running calls, then stops; kill -9 loses nothing. In
// both cases volumes in use stay mounted.
package main

import (
	"context"
	"flag"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/bridge/docker/dockerserver"
	"github.com/volumekit/volumekit/plugins/loopblock"
)

func main() {
	hostname, _ := os.Hostname() // otherwise -node is required
	node := flag.String("node", hostname, "`name` of this machine")
	socket := flag.String("socket", "/run/docker/plugins/loop-block.sock", "`path` of the socket; its name is that of the driver")
	root := flag.String("root", "/var/lib/loop-block", "`directory` of images and mounts")
	run := flag.String("run", "/run/loop-block", "`directory` on a tmpfs, of what ends with the boot")
	flag.Parse()

	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	server, err := dockerserver.New(loopblock.New(loopblock.Options{Logger: logger}), dockerserver.Options{
		Socket: *socket, RootDir: *root, StateDir: *root + "/state", RuntimeDir: *run, NodeName: types.NodeName(*node), Logger: logger,
	})
	if err == nil {
		err = server.Run(ctx)
	}
	if err != nil {
		logger.Error("the driver has failed", "error", err)
		os.Exit(1)
	}
}
