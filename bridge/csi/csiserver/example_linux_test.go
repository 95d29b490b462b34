package csiserver_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/volumekit/volumekit/bridge/csi/csiserver"
	"github.com/volumekit/volumekit/fake"
)

// A plugin is served as a CSI driver, which Kubernetes' sidecars or any other client of CSI can call.
func Example() {
	dir, err := os.MkdirTemp("", "csi")
	check(err)
	defer func() { check(os.RemoveAll(dir)) }()
	socket := filepath.Join(dir, "s", "csi.sock")
	plugin := fake.NewPlugin(fake.PluginOptions{Mounter: fake.NewMounter(fake.MounterOptions{})})
	server, err := csiserver.New(plugin, csiserver.Options{
		Socket: socket, RootDir: dir + "/root", StateDir: dir + "/state", RuntimeDir: dir + "/run", NodeName: "node-1",
	})
	check(err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()

	connection, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(err)
	info, err := csi.NewIdentityClient(connection).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
	check(err)
	node, err := csi.NewNodeClient(connection).NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	check(err)
	fmt.Println(info.GetName(), node.GetNodeId())
	check(connection.Close())
	stop()
	check(<-ended)
	// Output: fake.example.com node-1
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
