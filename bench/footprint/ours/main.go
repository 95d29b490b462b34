// Command ours links our volume manager, with the plugins that come with it, as a program that embeds it does, and prints what
// the kernel says of its memory at the start.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/plugins/emptydir"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Print(string(status))
}

func run() error {
	host, err := volume.NewHost(volume.HostOptions{RootDir: "/nowhere", NodeName: "node"})
	if err != nil {
		return err
	}
	mounter := mount.New(mount.Options{})
	plugins := volume.NewVolumePluginMgr(host)
	if err := plugins.InitPlugins(context.Background(), emptydir.New(emptydir.Options{Mounter: mounter})); err != nil {
		return err
	}
	m, err := volumemanager.New(plugins, volumemanager.Options{Mounter: mounter, NoRecords: true})
	if err != nil {
		return err
	}
	if len(os.Args) > 9 { // never: it links all that runs
		return m.Run(context.Background())
	}
	return nil
}
