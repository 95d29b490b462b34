package volumemanager

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/volume"
)

// askedPlugin counts how often it is asked whether a volume must be attached.
type askedPlugin struct {
	*fake.Plugin
	asked atomic.Int32
}

func (p *askedPlugin) CanAttach(spec *volume.Spec) (bool, error) {
	p.asked.Add(1)
	return p.Plugin.CanAttach(spec)
}

// TestAPluginIsAskedOnceAboutAVolumeThatIsAdded: for its name, and for all that the desired state keeps of it.
func TestAPluginIsAskedOnceAboutAVolumeThatIsAdded(t *testing.T) {
	w := newWorld(t, Options{})
	w.claim("data")
	w.prepare()
	plugin := &askedPlugin{Plugin: w.plugin}
	w.plugins = volume.NewVolumePluginMgr(w.plugins.Host())
	require.NoError(t, w.plugins.InitPlugins(t.Context(), plugin))
	m, err := New(w.plugins, w.options)
	require.NoError(t, err)
	require.NoError(t, m.AddPod(t.Context(), podOf("web", "data")))
	assert.EqualValues(t, 1, plugin.asked.Load())
	wanted := m.desired.GetVolumesToMount()
	require.Len(t, wanted, 1)
	assert.True(t, wanted[0].PluginIsAttachable)
}
