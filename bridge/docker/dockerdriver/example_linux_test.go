package dockerdriver_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/bridge/docker/dockerdriver"
	"github.com/volumekit/volumekit/bridge/docker/dockerserver"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/volume"
)

// A Docker volume driver creates a volume. The driver here is a dockerserver; it may be any other.
func Example() {
	dir, err := os.MkdirTemp("", "d")
	check(err)
	defer func() { check(os.RemoveAll(dir)) }()
	socket := filepath.Join(dir, "s", "d.sock")
	served := fake.NewPlugin(fake.PluginOptions{Mounter: fake.NewMounter(fake.MounterOptions{})})
	server, err := dockerserver.New(served, dockerserver.Options{
		Socket: socket, RootDir: dir + "/root", StateDir: dir + "/state", RuntimeDir: dir + "/run", NodeName: "node-1",
	})
	check(err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	for { // until it serves
		if _, err := os.Stat(socket); err == nil {
			break
		}
		runtime.Gosched()
	}

	plugin, err := dockerdriver.New(dockerdriver.Options{Name: "example.com/images", Socket: socket, Roots: []string{dir + "/root"}})
	check(err)
	host, err := volume.NewHost(volume.HostOptions{RootDir: filepath.Join(dir, "agent"), NodeName: "node-1"})
	check(err)
	plugins := volume.NewVolumePluginMgr(host)
	check(plugins.InitPlugins(ctx, plugin))
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data"}}
	claim.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	provisioner, err := plugin.NewProvisioner(volume.VolumeOptions{PVName: "pvc-1", PVC: claim})
	check(err)
	pv, err := provisioner.Provision(ctx, nil, nil)
	check(err)
	fmt.Println(pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle)
	deleter, err := plugin.NewDeleter(volume.NewSpecFromPersistentVolume(pv, false))
	check(err)
	check(deleter.Delete(ctx))
	stop()
	check(<-ended)
	// Output: images.example.com pvc-1
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
