// Command csidriver serves the plugin loop-block as a CSI driver, for Kubernetes, Nomad and other clients of CSI. Its
// volumes are image files of this node. Copy it, and replace loop-block with your own plugin.
//
// It runs on each node, as root. docs/csi.md has the manifests, and says which directories its container must share
// with the host. After SIGTERM it waits for its running calls, then stops; kill -9 loses nothing.
package main

import (
	"context"
	"flag"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/bridge/csi/csiserver"
	"github.com/volumekit/volumekit/plugins/loopblock"
)

func main() {
	hostname, _ := os.Hostname() // otherwise -node is required
	node := flag.String("node", hostname, "`name` of this node, as the orchestrator has it")
	socket := flag.String("socket", strings.TrimPrefix(os.Getenv("CSI_ENDPOINT"), "unix://"), "`path` of the socket; by default that of CSI_ENDPOINT")
	root := flag.String("root", "/var/lib/loop-block", "`directory` of images and mounts, which the host must see")
	run := flag.String("run", "/run/loop-block", "`directory` on a tmpfs, of what ends with the boot")
	flag.Parse()

	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	server, err := csiserver.New(loopblock.New(loopblock.Options{Logger: logger}), csiserver.Options{
		Socket: *socket, RootDir: *root, StateDir: *root + "/state", RuntimeDir: *run, NodeName: types.NodeName(*node),
		Attach: csiserver.AttachOnNode, Topology: map[string]string{"topology." + loopblock.Driver + "/node": *node},
		Logger: logger,
	})
	if err == nil {
		err = server.Run(ctx)
	}
	if err != nil {
		logger.Error("the driver has failed", "error", err)
		os.Exit(1)
	}
}
