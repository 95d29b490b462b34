package nfs_test

import (
	"context"
	"fmt"
	"net/netip"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/plugins/nfs"
	"github.com/volumekit/volumekit/volume"
)

// addresses resolves the one server of the example.
type addresses struct{}

func (addresses) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("192.0.2.1")}, nil
}

// A pod's volume is an export of a server. The mounter is one in memory; leave Options empty on a node.
func ExampleNew() {
	ctx := context.Background()
	world := fake.NewMounter(fake.MounterOptions{})
	plugin := nfs.New(nfs.Options{Mounter: world, Resolver: addresses{}})
	if err := volume.NewVolumePluginMgr(fake.NewHost("")).InitPlugins(ctx, plugin); err != nil {
		fmt.Println(err)
		return
	}
	spec := volume.NewSpecFromVolume(&v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{
		NFS: &v1.NFSVolumeSource{Server: "files.example.com", Path: "/export/data"},
	}})
	mounter, err := plugin.NewMounter(spec, &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "pod-1"}})
	if err == nil {
		err = mounter.SetUp(ctx, volume.MounterArgs{})
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	at, err := world.Lookup(ctx, mounter.GetPath())
	fmt.Println(at.FSType, at.Source, err)
	// Output: nfs files.example.com:/export/data <nil>
}
