package volumetest

import (
	"context"
	"testing"

	"github.com/volumekit/volumekit/volume"
)

// nearsighted is a plugin for which a disk is gone where another node has it.
type nearsighted struct{ *plantedPlugin }

func (n *nearsighted) NewDeleter(spec *volume.Spec) (volume.Deleter, error) {
	made, err := n.plantedPlugin.NewDeleter(spec)
	isElsewhere := volume.CheckNodeAffinityByName(spec.PersistentVolume, n.host.GetNodeName()) != nil
	if isElsewhere {
		made = deletesNothing{made}
	}
	return made, err
}

type deletesNothing struct{ volume.Deleter }

func (deletesNothing) Delete(context.Context) error { return nil }

func missingElsewhere(t testing.TB) Config {
	t.Helper()
	config := plantedConfig(t, provisioned, "")
	newPlugin := config.NewPlugin
	config.NewPlugin = func(t testing.TB) volume.VolumePlugin {
		planted, _ := newPlugin(t).(*plantedPlugin)
		return &nearsighted{planted}
	}
	return config
}
