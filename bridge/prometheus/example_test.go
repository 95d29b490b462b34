package prometheus_test

import (
	"context"
	"fmt"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/volumekit/volumekit/bridge/prometheus"
	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

// A node has two collectors: one observes operations, the other reads the manager when it is scraped.
func Example() {
	observer := prometheus.NewObserver()
	mounter := fake.NewMounter(fake.MounterOptions{})
	plugins := volume.NewVolumePluginMgr(fake.NewHost("node-1"))
	check(plugins.InitPlugins(context.Background(), fake.NewPlugin(fake.PluginOptions{Mounter: mounter})))
	manager, err := volumemanager.New(plugins, volumemanager.Options{Mounter: mounter, NoRecords: true, Observer: observer})
	check(err)

	registry := prom.NewRegistry() // promhttp.HandlerFor serves it
	registry.MustRegister(observer, prometheus.NewNode(manager, prometheus.NodeOptions{}))
	families, err := registry.Gather()
	check(err)
	for _, family := range families {
		if family.GetName() == "volumekit_orphans" {
			fmt.Println(family.GetName(), family.GetMetric()[0].GetGauge().GetValue())
		}
	}
	// Output: volumekit_orphans 0
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
