package csidriver_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/bridge/csi/csidriver"
	"github.com/volumekit/volumekit/bridge/csi/csiserver"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/volume"
)

// A plugin is served on a socket, and the socket is a plugin again. In the place of csiserver any CSI driver may serve.
func Example() {
	dir, err := os.MkdirTemp("", "csi")
	check(err)
	defer func() { check(os.RemoveAll(dir)) }()
	socket := filepath.Join(dir, "csi.sock")
	plugin := fake.NewPlugin(fake.PluginOptions{Mounter: fake.NewMounter(fake.MounterOptions{})})
	server, err := csiserver.New(plugin, csiserver.Options{
		Socket: socket, RootDir: filepath.Join(dir, "root"), StateDir: filepath.Join(dir, "state"), RuntimeDir: filepath.Join(dir, "run"), NodeName: "node-1",
	})
	check(err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()

	driver, err := csidriver.New(csidriver.Options{Socket: socket, Driver: "fake.example.com"})
	check(err)
	for driver.Connect(ctx) != nil { // until it serves
		runtime.Gosched()
	}
	host, err := volume.NewHost(volume.HostOptions{RootDir: filepath.Join(dir, "agent"), NodeName: "node-1"})
	check(err)
	plugins := volume.NewVolumePluginMgr(host)
	check(plugins.InitPlugins(ctx, driver.Plugin()))

	claim := &v1.PersistentVolumeClaim{}
	claim.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	claim.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	provisioner, err := driver.Plugin().NewProvisioner(volume.VolumeOptions{PVName: "pvc-1", PVC: claim})
	check(err)
	pv, err := provisioner.Provision(ctx, nil, nil)
	check(err)
	fmt.Println(pv.Spec.CSI.Driver, pv.Spec.Capacity.Storage())

	check(driver.Close())
	cancel()
	check(<-done)
	// Output: fake.example.com 1Gi
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
