package loopblock_test

import (
	"context"
	"fmt"

	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/volume"
)

// The plugin is registered, and found by the volumes that name its driver.
func ExampleNew() {
	host, err := volume.NewHost(volume.HostOptions{RootDir: "/var/lib/agent", NodeName: "node-1"})
	if err != nil {
		fmt.Println(err)
		return
	}
	plugins := volume.NewVolumePluginMgr(host)
	if err := plugins.InitPlugins(context.Background(), loopblock.New(loopblock.Options{MaxVolumes: 100})); err != nil {
		fmt.Println(err)
		return
	}
	plugin, err := plugins.FindProvisionablePluginByName(loopblock.Name)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(plugin.GetPluginName(), "serves volumes of the driver", loopblock.Driver)
	// Output: volumekit.io/loop-block serves volumes of the driver loop-block.volumekit.io
}
