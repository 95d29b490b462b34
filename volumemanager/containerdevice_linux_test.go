package volumemanager

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount/blockmap"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// runManager returns a running manager of the volume of a block node, to which the claim "disk" is bound.
func (n *blockNode) runManager(access v1.PersistentVolumeAccessMode) *Manager {
	n.t.Helper()
	objects := store.NewMemory(store.MemoryOptions{})
	claim := claimOfName("disk")
	claim.Spec.VolumeMode = ptr(v1.PersistentVolumeBlock)
	claim.Spec.VolumeName, claim.Status.Phase = "disk", v1.ClaimBound
	created, err := objects.Create(n.t.Context(), claim)
	require.NoError(n.t, err)
	pv := n.spec.PersistentVolume.DeepCopy()
	pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{access}
	pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "default", Name: "disk", UID: created.(*v1.PersistentVolumeClaim).UID}
	_, err = objects.Create(n.t.Context(), pv)
	require.NoError(n.t, err)
	host, err := volume.NewHost(volume.HostOptions{RootDir: n.root, NodeName: testNode})
	require.NoError(n.t, err)
	plugins := volume.NewVolumePluginMgr(host)
	require.NoError(n.t, plugins.InitPlugins(n.t.Context(), loopblock.New(loopblock.Options{Loops: n.loops})))
	m, err := New(plugins, Options{
		Store: objects, DeviceUse: loop.DeviceUse{}, Resync: -1, WaitTimeout: time.Minute, NoRecords: true,
		BlockMapper: NewDeviceMapper(blockmap.New(blockmap.Options{Mounter: n.mounter, Loops: n.loops})),
	})
	require.NoError(n.t, err)
	ctx, cancel := context.WithCancel(n.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	n.t.Cleanup(func() {
		cancel()
		require.NoError(n.t, <-ended)
	})
	return m
}

func TestAContainerGetsABlockVolumeAsADevice(t *testing.T) {
	for name, test := range map[string]struct {
		volume      string
		access      v1.PersistentVolumeAccessMode
		permissions string
	}{
		"for writing":                     {"disk", v1.ReadWriteOnce, "rwm"},
		"a pod that reads":                {"disk:ro", v1.ReadOnlyMany, "rm"},
		"a volume that no pod may change": {"disk", v1.ReadOnlyMany, "rm"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newBlockNode(t)
			m := n.runManager(test.access)
			m.PodsComplete()
			pod := podOf("web", test.volume)
			c := &pod.Spec.Containers[0]
			c.VolumeMounts, c.VolumeDevices = nil, []v1.VolumeDevice{{Name: pod.Spec.Volumes[0].Name, DevicePath: "/dev//xvda"}}
			require.NoError(t, m.AddPod(t.Context(), pod))
			require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))

			volumes, err := m.ContainerMounts(t.Context(), pod, "main")
			require.NoError(t, err)
			assert.Empty(t, volumes.Mounts)
			device := n.devices(t.Context())[0]
			assert.Equal(t, []ContainerDevice{{
				Name: pod.Spec.Volumes[0].Name, Source: n.bind(pod), Target: "/dev/xvda", Permissions: test.permissions,
				Major: device.Major, Minor: device.Minor,
			}}, volumes.Devices)
			if test.permissions == "rwm" {
				writeDevice(t, volumes.Devices[0].Source, "written!")
				assert.Equal(t, "written!", readDevice(t, device.Path))
			}

			require.NoError(t, m.ReleaseContainer(t.Context(), pod.UID, "main"))
			unmountForeign(t, n.bind(pod))
			again, err := m.ContainerMounts(t.Context(), pod, "main")
			var notReady *volume.NotReadyError
			switch {
			case err == nil: // The manager has seen it and has bound the device again.
				assert.Equal(t, volumes, again)
			case errors.As(err, &notReady): // The manager has seen it and binds the device.
				assert.Empty(t, again)
			default:
				require.ErrorIs(t, err, blockmap.ErrNotDevice, "the manager has not seen it yet")
			}
			require.NoError(t, m.RemovePod(pod.UID))
			require.NoError(t, m.WaitForNodeEmpty(t.Context()))
			n.nothingIsLeft()
		})
	}
}
