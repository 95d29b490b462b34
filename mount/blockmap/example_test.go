package blockmap_test

import (
	"context"
	"fmt"

	"github.com/volumekit/volumekit/mount/blockmap"
)

// A pod gets a raw device, and gives it back. It has no Output, because it needs root and a device that is free.
func ExampleMapper() {
	ctx := context.Background()
	mapper := blockmap.New(blockmap.Options{})
	mapping := blockmap.Mapping{
		DevicePath:    "/dev/vdb",
		GlobalMapPath: "/var/lib/agent/plugins/example.com~disk/volumeDevices/disk-1",
		PodMapDir:     "/var/lib/agent/pods/a1b2/volumeDevices/example.com~disk", LinkName: "disk-1",
		PodUID: "a1b2",
	}
	if err := mapper.MapDevice(ctx, mapping); err != nil {
		fmt.Println(err)
		return
	}
	pods, err := mapper.MappedPods(ctx, mapping.GlobalMapPath)
	fmt.Println(pods, err)
	if err := mapper.UnmapDevice(ctx, mapping); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(mapper.RemoveMapPath(ctx, mapping.GlobalMapPath))
}
