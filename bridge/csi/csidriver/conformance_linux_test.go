package csidriver

import (
	"context"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/bridge/csi/internal/fakedriver"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volume/volumetest"
)

// nodeNames calls every node by its name.
type nodeNames struct{}

func (nodeNames) DriverNode(_ context.Context, driver string, node types.NodeName) (storagev1.CSINodeDriver, error) {
	return storagev1.CSINodeDriver{Name: driver, NodeID: string(node), TopologyKeys: []string{"zone"}}, nil
}

// driver returns a connected driver.
func (s *served) driver(t testing.TB, change func(*Options)) *Driver {
	t.Helper()
	options := Options{Socket: s.socket, Driver: fakedriver.Name, Nodes: nodeNames{}, Owners: owners(t)}
	if change != nil {
		change(&options)
	}
	d, err := New(options)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, d.Close()) })
	require.NoError(t, d.Connect(t.Context()))
	return d
}

// The fake driver behind a socket keeps the contract of a plugin.
func TestConformance(t *testing.T) {
	mounttest.RequireMounts(t)
	// No volume of the fake has a filesystem of its own that could grow.
	without := []csi.NodeServiceCapability_RPC_Type{csi.NodeServiceCapability_RPC_GET_VOLUME_STATS}
	stages := append(slices.Clone(without), csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
	for name, c := range map[string]struct {
		options fakedriver.Options
		require volume.Capabilities
	}{
		"attached and staged": {fakedriver.Options{Node: stages}, volume.CapAttach | volume.CapDeviceMount | volume.CapExpand | volume.CapBulkVerify},
		"with snapshots": {
			fakedriver.Options{Node: stages}.WithSnapshots().WithoutGroups(), volume.CapSnapshot | volume.CapListSnapshots,
		},
		"attached alone": {fakedriver.Options{Node: without}, volume.CapAttach},
		"neither": {fakedriver.Options{Node: without, Controller: []csi.ControllerServiceCapability_RPC_Type{
			csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		}}, volume.CapProvision},
	} {
		t.Run(name, func(t *testing.T) {
			driver := serve(t, c.options).driver(t, nil)
			volumetest.Run(t, volumetest.Config{
				MutableParameters: [2]map[string]string{{fakedriver.Attribute: "slow"}, {fakedriver.Attribute: "fast"}},
				NewPlugin:         func(testing.TB) volume.VolumePlugin { return driver.Plugin() },
				Require:           c.require | volume.CapProvision | volume.CapDelete | volume.CapPersistent,
				NodeName:          "fake-node", Shared: true, Lifetime: volumetest.LifetimeOfStorage,
				NewBlockSpec: func(testing.TB) *volume.Spec { return nil },
			})
		})
	}
}
