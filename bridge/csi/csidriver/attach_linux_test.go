package csidriver

import (
	"context"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/bridge/csi/internal/fakedriver"
	"github.com/volumekit/volumekit/volume"
)

// Detach gets only the handle. After a restart the secret comes from the verification of the attachment.
func TestADetachAfterARestartHasItsSecret(t *testing.T) {
	n := newNode(t, fakedriver.Options{}, func(o *Options) { o.Secrets = secrets{"space/attach": "hunter2"} })
	n.spec.PersistentVolume.Spec.CSI.ControllerPublishSecretRef = &v1.SecretReference{Namespace: "space", Name: "attach"}
	attacher, err := n.plugin.NewAttacher()
	require.NoError(t, err)
	_, err = attacher.Attach(t.Context(), n.spec, "node-1")
	require.NoError(t, err)
	n.restartAgent()
	attacher, err = n.plugin.NewAttacher()
	require.NoError(t, err)
	_, err = attacher.VolumesAreAttached(t.Context(), map[v1.UniqueVolumeName]*volume.Spec{"name": n.spec}, "node-1")
	require.NoError(t, err)
	detacher, err := n.plugin.NewDetacher()
	require.NoError(t, err)
	require.NoError(t, detacher.Detach(t.Context(), n.spec.PersistentVolume.Spec.CSI.VolumeHandle, "node-1"))
	request := n.Last("ControllerUnpublishVolume").(*csi.ControllerUnpublishVolumeRequest)
	assert.Equal(t, map[string]string{"key": "hunter2"}, request.GetSecrets())
}

// otherNodes knows a driver's id of each node.
type otherNodes struct{}

func (otherNodes) DriverNode(_ context.Context, driver string, node types.NodeName) (storagev1.CSINodeDriver, error) {
	return storagev1.CSINodeDriver{Name: driver, NodeID: "id-of-" + string(node)}, nil
}

// A volume that is detached from another node keeps its publish context of this node.
func TestADetachFromAnotherNodeKeepsThePublishContext(t *testing.T) {
	n := newNode(t, withoutStaging(), func(o *Options) { o.Nodes = otherNodes{} })
	attacher, err := n.plugin.NewAttacher()
	require.NoError(t, err)
	path, err := attacher.Attach(t.Context(), n.spec, "node-1")
	require.NoError(t, err)
	_, err = attacher.WaitForAttach(t.Context(), n.spec, path, nil)
	require.NoError(t, err)
	detacher, err := n.plugin.NewDetacher()
	require.NoError(t, err)
	require.NoError(t, detacher.Detach(t.Context(), n.spec.PersistentVolume.Spec.CSI.VolumeHandle, "node-2"))
	require.NoError(t, n.setUp(t.Context()))
	require.NoError(t, n.tearDown())
	require.NoError(t, detacher.Detach(t.Context(), n.spec.PersistentVolume.Spec.CSI.VolumeHandle, "node-1"))
	require.ErrorIs(t, n.setUp(t.Context()), ErrNotAttached)
}
