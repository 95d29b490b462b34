package fake

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/volume"
)

// capacityOf returns the available bytes and the largest volume, -1 for unknown.
func capacityOf(t *testing.T, p *Plugin) (available, largest int64) {
	t.Helper()
	capacity, err := p.GetCapacity(t.Context(), volume.CapacityOptions{})
	require.NoError(t, err)
	return valueOf(capacity.Available), valueOf(capacity.MaximumVolumeSize)
}

func valueOf(q *resource.Quantity) int64 {
	if q == nil {
		return -1
	}
	return q.Value()
}

func TestCapacityIsWhatVolumesLeave(t *testing.T) {
	for name, row := range map[string]struct {
		options            PluginOptions
		available, largest int64
	}{
		"nothing is known":     {PluginOptions{}, -1, -1},
		"the largest volume":   {PluginOptions{MaxSize: 5}, -1, 5},
		"all together":         {PluginOptions{Capacity: 50}, 40, 40},
		"both":                 {PluginOptions{Capacity: 50, MaxSize: 30}, 40, 30},
		"full":                 {PluginOptions{Capacity: 10}, 0, 0},
		"more than there is":   {PluginOptions{Capacity: 5}, 0, 0},
		"less than one volume": {PluginOptions{Capacity: 15, MaxSize: 30}, 5, 5},
	} {
		t.Run(name, func(t *testing.T) {
			p := NewPlugin(row.options)
			require.NoError(t, p.Backend().Create("a", 10))
			available, largest := capacityOf(t, p)
			assert.Equal(t, row.available, available)
			assert.Equal(t, row.largest, largest)
		})
	}
}

func TestNoMoreIsMadeThanThereIsRoomFor(t *testing.T) {
	p := NewPlugin(PluginOptions{Capacity: 100})
	provision := func(name, size string) error {
		claim := &v1.PersistentVolumeClaim{Spec: v1.PersistentVolumeClaimSpec{
			Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)}},
		}}
		provisioner, err := p.NewProvisioner(volume.VolumeOptions{PVName: name, PVC: claim})
		require.NoError(t, err)
		_, err = provisioner.Provision(t.Context(), nil, nil)
		return err
	}
	require.NoError(t, provision("a", "60"))
	require.ErrorIs(t, provision("b", "41"), syscall.ENOSPC)
	require.NoError(t, provision("b", "40"))
	require.NoError(t, provision("a", "60"), "a volume that exists needs no room")
	_, err := p.GetCapacity(t.Context(), volume.CapacityOptions{Parameters: map[string]string{"x": "y"}})
	require.ErrorIs(t, err, volume.ErrInvalid)
}
