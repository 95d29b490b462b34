package volume

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
)

func TestHostPaths(t *testing.T) {
	host, err := NewHost(HostOptions{RootDir: "/var/lib/x/../example/", NodeName: "node-1"})
	require.NoError(t, err)
	assert.Equal(t, types.NodeName("node-1"), host.GetNodeName())
	assert.Equal(t, "/var/lib/example/pods", host.GetPodsDir())
	for _, plugin := range []string{"kubernetes.io/nfs", "kubernetes.io~nfs"} {
		assert.Equal(t, "/var/lib/example/plugins/kubernetes.io/nfs", host.GetPluginDir(plugin))
		assert.Equal(t, "/var/lib/example/plugins/kubernetes.io/nfs/volumeDevices", host.GetVolumeDevicePluginDir(plugin))
		assert.Equal(t, "/var/lib/example/pods/7f3c/volumes/kubernetes.io~nfs/pv-1",
			host.GetPodVolumeDir("7f3c", plugin, "pv-1"))
		assert.Equal(t, "/var/lib/example/pods/7f3c/plugins/kubernetes.io~nfs", host.GetPodPluginDir("7f3c", plugin))
		assert.Equal(t, "/var/lib/example/pods/7f3c/volumeDevices/kubernetes.io~nfs",
			host.GetPodVolumeDeviceDir("7f3c", plugin))
	}
}

func TestNewHostRefuses(t *testing.T) {
	for name, options := range map[string]HostOptions{
		"no root":          {NodeName: "node-1"},
		"relative root":    {RootDir: "var/lib", NodeName: "node-1"},
		"the root itself":  {RootDir: "/", NodeName: "node-1"},
		"root in disguise": {RootDir: "/var/..", NodeName: "node-1"},
		"no node":          {RootDir: "/var/lib/example"},
		"slash in node":    {RootDir: "/var/lib/example", NodeName: "a/b"},
	} {
		t.Run(name, func(t *testing.T) {
			host, err := NewHost(options)
			require.ErrorIs(t, err, ErrInvalid)
			assert.Nil(t, host)
		})
	}
}
