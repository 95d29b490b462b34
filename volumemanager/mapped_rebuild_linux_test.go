package volumemanager

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/blockmap"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/plugins/local"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// silentLocal is the plugin of local volumes, which does not tell any more what volume it is that was found.
type silentLocal struct{ *local.Plugin }

func (silentLocal) ConstructBlockVolumeSpec(types.UID, string, string) (*volume.Spec, error) {
	return nil, errors.New("it is not known what volume that is")
}

// localBlockNode is a node with a disk that a pod has as a device.
type localBlockNode struct {
	*pluginsNode

	loops *loop.Manager
	disk  loop.Device
}

func newLocalBlockNode(t *testing.T) *localBlockNode {
	t.Helper()
	mounttest.RequireRoot(t)
	n := &localBlockNode{pluginsNode: newPluginsNode(t), loops: loop.New(loop.Options{})}
	n.disk = attachNew(t, n.loops, filepath.Join(t.TempDir(), "disk"), "a disk")
	n.options.Mounter, n.options.Loops = mount.New(mount.Options{}), n.loops
	mode := v1.PersistentVolumeBlock
	pv := &v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{
		VolumeMode: &mode, PersistentVolumeSource: v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: n.disk.Path}},
		NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
			MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{string(testNode)}}},
		}}}},
	}}
	claim := claimOfName("raw")
	claim.Spec.VolumeName, claim.Spec.VolumeMode, claim.Status.Phase = "pv-raw", &mode, v1.ClaimBound
	n.create(claim)
	created, err := store.Get[*v1.PersistentVolumeClaim](t.Context(), n.claims, "default", "raw")
	require.NoError(t, err)
	pv.Name, pv.Spec.AccessModes = "pv-raw", claim.Spec.AccessModes
	pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "default", Name: "raw", UID: created.UID}
	n.create(pv)
	return n
}

func (n *localBlockNode) bindPath(pod *v1.Pod) string {
	return filepath.Join(n.plugins.Host().GetVolumeDevicePluginDir(local.Name), "pv-raw", string(pod.UID))
}

func (n *localBlockNode) link(pod *v1.Pod) string {
	return filepath.Join(n.plugins.Host().GetPodVolumeDeviceDir(pod.UID, local.Name), "pv-raw")
}

// locks returns how many loop devices lock the disk.
func (n *localBlockNode) locks() (count int) {
	all, err := n.loops.Devices(n.t.Context())
	require.NoError(n.t, err)
	for _, d := range all {
		if d.Holds(n.disk) {
			count++
		}
	}
	return count
}

func (n *localBlockNode) isGone(pod *v1.Pod) {
	n.t.Helper()
	assert.Zero(n.t, idAt(n.t, n.bindPath(pod)))
	assert.NoFileExists(n.t, n.link(pod))
	assert.NoDirExists(n.t, filepath.Dir(n.bindPath(pod)))
	assert.Zero(n.t, n.locks())
}

func (n *localBlockNode) mapper() DeviceMapper {
	return NewDeviceMapper(blockmap.New(blockmap.Options{}))
}

func (n *localBlockNode) mapping(pod *v1.Pod) operationexecutor.DeviceMapping {
	return operationexecutor.DeviceMapping{
		GlobalMapPath: filepath.Dir(n.bindPath(pod)), PodMapDir: filepath.Dir(n.link(pod)), LinkName: "pv-raw", PodUID: pod.UID,
	}
}

// loseRecords has a pod use the disk, and the records lost after that.
func (n *localBlockNode) loseRecords() *v1.Pod {
	n.t.Helper()
	pod := blockPodOf("web", "raw")
	n.leave(n.t, pod)
	require.Equal(n.t, 1, n.locks())
	require.NoError(n.t, os.RemoveAll(n.options.RuntimeDir))
	require.NoError(n.t, os.RemoveAll(n.options.StateDir))
	return pod
}

func TestALocalBlockVolumeIsRebuiltWhenRecordsAreLost(t *testing.T) {
	n := newLocalBlockNode(t)
	pod := n.loseRecords()
	m, stop := n.start(t)
	defer stop()
	looked(t, m)
	assert.Equal(t, 1, m.Status().Rebuilt)
	assert.Empty(t, m.Status().Orphans)
	require.NoError(t, m.RemovePod(pod.UID))
	m.PodsComplete()
	require.NoError(t, m.WaitForUnmount(t.Context(), pod))
	require.NoError(t, m.WaitForNodeEmpty(t.Context()))
	n.isGone(pod)
}

// TestWhatCannotBeRebuiltIsNotGone: no wait reports that a pod's volume is gone while its bind, lock and link are there.
func TestWhatCannotBeRebuiltIsNotGone(t *testing.T) {
	for _, policy := range []OrphanPolicy{OrphansAreReported, OrphansAreRemoved} {
		n := newLocalBlockNode(t)
		pod := n.loseRecords()
		n.plugins = volume.NewVolumePluginMgr(n.plugins.Host())
		require.NoError(t, n.plugins.InitPlugins(t.Context(), silentLocal{local.New(local.Options{})}))
		n.options.Orphans, n.options.WaitTimeout = policy, time.Hour // It is woken, and does not look again at its end.
		m, stop := n.start(t)
		looked(t, m)
		require.NoError(t, m.RemovePod(pod.UID))
		require.NotEmpty(t, m.Status().Orphans)
		for _, wait := range []func(context.Context) error{m.WaitForNodeEmpty, func(ctx context.Context) error { return m.WaitForUnmount(ctx, pod) }} {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			err := wait(ctx)
			var notReady *volume.NotReadyError
			require.ErrorAs(t, err, &notReady)
			require.NotEmpty(t, notReady.Volumes)
			assert.ErrorContains(t, notReady.Volumes[0].Err, string(pod.UID))
		}
		m.PodsComplete()
		waited := make(chan error, 1)
		go func() { waited <- m.WaitForUnmount(t.Context(), pod) }()
		if policy == OrphansAreReported { // A person does it.
			for !isAwaited(m, pod) {
				runtime.Gosched()
			}
			require.NoError(t, n.mapper().UnmapDevice(t.Context(), n.mapping(pod)))
			require.NoError(t, os.Remove(filepath.Dir(n.bindPath(pod))))
		}
		require.NoError(t, <-waited)
		require.NoError(t, m.WaitForNodeEmpty(t.Context()))
		n.isGone(pod)
		stop()
	}
}

// isAwaited reports whether a caller waits for a change of the pod.
func isAwaited(m *Manager, pod *v1.Pod) bool {
	return m.changes.IsAwaited(volume.GetUniquePodName(pod))
}

// TestAVolumeWhoseStagingCannotBeRebuiltStaysInUse: a controller must not detach it.
func TestAVolumeWhoseStagingCannotBeRebuiltStaysInUse(t *testing.T) {
	n := newLocalBlockNode(t)
	pod := n.loseRecords()
	n.plugins = volume.NewVolumePluginMgr(n.plugins.Host())
	require.NoError(t, n.plugins.InitPlugins(t.Context(), silentLocal{local.New(local.Options{})}))
	const earlier = v1.UniqueVolumeName("example.com/disk/earlier")
	node, err := store.Get[*v1.Node](t.Context(), n.claims, "", string(testNode))
	require.NoError(t, err)
	node.Status.VolumesInUse = []v1.UniqueVolumeName{earlier}
	_, err = n.claims.Update(t.Context(), node)
	require.NoError(t, err)
	n.options.AttachedBy = AttachedByController
	m, stop := n.start(t)
	looked(t, m)
	m.PodsComplete()
	inUse := func() []v1.UniqueVolumeName {
		list, err := m.nodeStatus.List(t.Context())
		require.NoError(t, err)
		return list
	}
	assert.Contains(t, inUse(), earlier)
	require.NoError(t, n.mapper().UnmapDevice(t.Context(), n.mapping(pod)))
	assert.NotContains(t, inUse(), earlier)
	stop()
}
