package volumemanager

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
)

// Each field of a mount and a device is there for both runtimes, as docs/embedding.md has it.
func TestVolumesInTheWordsOfRuntimes(t *testing.T) {
	volumes := ContainerVolumes{
		Mounts: []ContainerMount{
			{Source: "/s/a", Target: "/a", Propagation: v1.MountPropagationNone},
			{Source: "/s/b", Target: "/b", Propagation: v1.MountPropagationHostToContainer, ReadOnly: true, Relabel: true},
			{Source: "/s/c", Target: "/c", Propagation: v1.MountPropagationBidirectional, ReadOnly: true, RecursiveReadOnly: true},
			{Source: "/s/e", Target: "/e", Propagation: v1.MountPropagationNone, IDMappings: mount.IDMappings{
				UIDs: []mount.IDMapping{{ContainerID: 1, HostID: 2, Size: 3}}, GIDs: []mount.IDMapping{{ContainerID: 4, HostID: 5, Size: 6}},
			}},
		},
		Devices: []ContainerDevice{{Source: "/s/d", Target: "/dev/d", Permissions: "rm", Major: 7, Minor: 300}},
	}
	oci := volumes.OCI()
	assert.Equal(t, []OCIMount{
		{Destination: "/a", Type: "bind", Source: "/s/a", Options: []string{"rbind", "rprivate", "rw"}},
		{Destination: "/b", Type: "bind", Source: "/s/b", Options: []string{"rbind", "rslave", "ro"}},
		{Destination: "/c", Type: "bind", Source: "/s/c", Options: []string{"rbind", "rshared", "rro"}},
		{
			Destination: "/e", Type: "bind", Source: "/s/e", Options: []string{"rbind", "rprivate", "rw", "ridmap"},
			UIDMappings: []OCIIDMapping{{ContainerID: 1, HostID: 2, Size: 3}}, GIDMappings: []OCIIDMapping{{ContainerID: 4, HostID: 5, Size: 6}},
		},
	}, oci.Mounts)
	mapped, err := json.Marshal(oci.Mounts[3])
	require.NoError(t, err)
	assert.JSONEq(t, `{"destination": "/e", "type": "bind", "source": "/s/e", "options": ["rbind", "rprivate", "rw", "ridmap"],
		"uidMappings": [{"containerID": 1, "hostID": 2, "size": 3}], "gidMappings": [{"containerID": 4, "hostID": 5, "size": 6}]}`, string(mapped))
	// As the schema of the OCI runtime specification has it (config-linux.md).
	devices, err := json.Marshal(oci.Devices)
	require.NoError(t, err)
	assert.JSONEq(t, `[{"path": "/dev/d", "type": "b", "major": 7, "minor": 300}]`, string(devices))
	rules, err := json.Marshal(oci.DeviceRules)
	require.NoError(t, err)
	assert.JSONEq(t, `[{"allow": true, "type": "b", "major": 7, "minor": 300, "access": "rm"}]`, string(rules))

	cri := volumes.CRI()
	assert.Equal(t, []CRIMount{
		{ContainerPath: "/a", HostPath: "/s/a", Propagation: CRIPropagationPrivate},
		{ContainerPath: "/b", HostPath: "/s/b", Readonly: true, SelinuxRelabel: true, Propagation: CRIPropagationHostToContainer},
		{ContainerPath: "/c", HostPath: "/s/c", Readonly: true, RecursiveReadOnly: true, Propagation: CRIPropagationBidirectional},
		{
			ContainerPath: "/e", HostPath: "/s/e", Propagation: CRIPropagationPrivate,
			UIDMappings: []CRIIDMapping{{ContainerID: 1, HostID: 2, Length: 3}}, GIDMappings: []CRIIDMapping{{ContainerID: 4, HostID: 5, Length: 6}},
		},
	}, cri.Mounts)
	assert.Equal(t, []CRIDevice{{ContainerPath: "/dev/d", HostPath: "/s/d", Permissions: "rm"}}, cri.Devices)
	names := map[CRIPropagation]string{0: "PROPAGATION_PRIVATE", 1: "PROPAGATION_HOST_TO_CONTAINER", 2: "PROPAGATION_BIDIRECTIONAL"}
	for number, name := range names {
		assert.Equal(t, name, number.String())
	}
}
