package csidriver

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/bridge/csi/internal/fakedriver"
	"github.com/volumekit/volumekit/store"
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

// countedLists counts the lists that a store is asked for, and fails them on demand.
type countedLists struct {
	store.Store

	lists int
	err   error
}

func (c *countedLists) List(ctx context.Context, kind schema.GroupVersionKind, namespace string) (store.List, error) {
	c.lists++
	if c.err != nil {
		return store.List{}, c.err
	}
	return c.Store.List(ctx, kind, namespace)
}

// Before the first verification, the secret of a Detach comes from the stored PersistentVolume.
func TestADetachBeforeTheFirstVerificationHasItsSecret(t *testing.T) {
	objects := &countedLists{Store: store.NewMemory(store.MemoryOptions{})}
	n := newNode(t, fakedriver.Options{}, func(o *Options) {
		o.Secrets, o.Volumes = secrets{"space/attach": "hunter2"}, StoredVolumes(objects)
	})
	n.spec.PersistentVolume.Spec.CSI.ControllerPublishSecretRef = &v1.SecretReference{Namespace: "space", Name: "attach"}
	other := n.spec.PersistentVolume.DeepCopy()
	other.Name, other.Spec.CSI.Driver = "a", "other.example.com"
	other.Spec.CSI.ControllerPublishSecretRef.Name = "other"
	for _, pv := range []*v1.PersistentVolume{other, n.spec.PersistentVolume} {
		_, err := store.Create(t.Context(), objects, pv)
		require.NoError(t, err)
	}
	handle := n.spec.PersistentVolume.Spec.CSI.VolumeHandle
	attacher, err := n.plugin.NewAttacher()
	require.NoError(t, err)
	_, err = attacher.Attach(t.Context(), n.spec, "node-1")
	require.NoError(t, err)
	n.restartAgent()
	detacher, err := n.plugin.NewDetacher()
	require.NoError(t, err)
	objects.err = errors.New("the store is away")
	require.ErrorIs(t, detacher.Detach(t.Context(), handle, "node-1"), volume.ErrTransient)
	assert.Zero(t, n.Count("ControllerUnpublishVolume"))
	objects.err = nil
	require.NoError(t, detacher.Detach(t.Context(), handle, "node-1"))
	assert.Equal(t, map[string]string{"key": "hunter2"}, n.Last("ControllerUnpublishVolume").(*csi.ControllerUnpublishVolumeRequest).GetSecrets())

	before := objects.lists
	n.spec.PersistentVolume.Spec.CSI.ControllerPublishSecretRef = nil
	_, err = attacher.Attach(t.Context(), n.spec, "node-1")
	require.NoError(t, err)
	n.restartAgent()
	attacher, err = n.plugin.NewAttacher()
	require.NoError(t, err)
	_, err = attacher.VolumesAreAttached(t.Context(), map[v1.UniqueVolumeName]*volume.Spec{"name": n.spec}, "node-1")
	require.NoError(t, err)
	require.NoError(t, attacher.(volume.Detacher).Detach(t.Context(), handle, "node-1"))
	assert.Equal(t, before, objects.lists, "the verification has read the volume")
}

// A driver that refuses a Detach may have missed its secret.
func TestADetachWithoutAKnownSecretSaysSo(t *testing.T) {
	n := newNode(t, fakedriver.Options{}, nil)
	detacher, err := n.plugin.NewDetacher()
	require.NoError(t, err)
	n.Plan("ControllerUnpublishVolume", fakedriver.Fault{Code: codes.Unauthenticated})
	err = detacher.Detach(t.Context(), n.spec.PersistentVolume.Spec.CSI.VolumeHandle, "node-1")
	require.ErrorContains(t, err, "Options.Volumes")
	require.True(t, isCode(err, codes.Unauthenticated))
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

// changingNodes are the driver's ids of nodes, which change.
type changingNodes map[types.NodeName]string

func (c changingNodes) DriverNode(_ context.Context, driver string, node types.NodeName) (storagev1.CSINodeDriver, error) {
	return storagev1.CSINodeDriver{Name: driver, NodeID: c[node]}, nil
}

// A volume is detached from the node to which it was attached, also if that is gone or has another id by now.
func TestADetachHasTheNodeOfItsAttach(t *testing.T) {
	for name, later := range map[string]string{"the node is gone": "", "the node has another id": "id-2"} {
		t.Run(name, func(t *testing.T) {
			nodes := changingNodes{"node-2": "id-1"}
			n := newNode(t, fakedriver.Options{}, func(o *Options) { o.Nodes, o.Secrets = nodes, secrets{"space/attach": "hunter2"} })
			n.spec.PersistentVolume.Spec.CSI.ControllerPublishSecretRef = &v1.SecretReference{Namespace: "space", Name: "attach"}
			attacher, err := n.plugin.NewAttacher()
			require.NoError(t, err)
			_, err = attacher.Attach(t.Context(), n.spec, "node-2")
			require.NoError(t, err)
			n.restartAgent()
			attacher, err = n.plugin.NewAttacher()
			require.NoError(t, err)
			specs := map[v1.UniqueVolumeName]*volume.Spec{"name": n.spec}
			attached, err := attacher.VolumesAreAttached(t.Context(), specs, "node-2")
			require.NoError(t, err)
			assert.Equal(t, map[v1.UniqueVolumeName]bool{"name": true}, attached)
			nodes["node-2"] = later
			attached, err = attacher.VolumesAreAttached(t.Context(), specs, "node-2")
			require.NoError(t, err)
			assert.Equal(t, map[v1.UniqueVolumeName]bool{"name": true}, attached)
			detacher, err := n.plugin.NewDetacher()
			require.NoError(t, err)
			require.NoError(t, detacher.Detach(t.Context(), n.spec.PersistentVolume.Spec.CSI.VolumeHandle, "node-2"))
			assert.Equal(t, "id-1", n.Last("ControllerUnpublishVolume").(*csi.ControllerUnpublishVolumeRequest).GetNodeId())
			for _, v := range n.Volumes() {
				assert.Empty(t, v.Nodes)
			}
		})
	}
}

// changingObject is the CSIDriver of a store, which is edited, deleted and made again.
type changingObject struct{ object *storagev1.CSIDriver }

func (c *changingObject) CSIDriver(context.Context, string) (*storagev1.CSIDriver, error) {
	return c.object, nil
}

// Volumes of an initialised plugin stay attached, or not attached, whatever happens to the CSIDriver: a volume in use would be detached, or
// published without its publish context.
func TestAttachRequiredIsThatOfTheStart(t *testing.T) {
	required := func(value bool) *storagev1.CSIDriver {
		return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: fakedriver.Name}, Spec: storagev1.CSIDriverSpec{AttachRequired: &value}}
	}
	for name, c := range map[string]struct {
		start   *storagev1.CSIDriver
		later   []*storagev1.CSIDriver
		attach  bool
		service Services
	}{
		"required":                 {required(true), []*storagev1.CSIDriver{nil, required(false)}, true, Node},
		"not required":             {required(false), []*storagev1.CSIDriver{nil, required(true)}, false, AllServices},
		"required by a capability": {nil, []*storagev1.CSIDriver{required(false)}, true, AllServices},
	} {
		t.Run(name, func(t *testing.T) {
			objects := &changingObject{object: c.start}
			d := serve(t, withoutStaging())
			driver := d.driver(t, func(o *Options) { o.Objects, o.Services = objects, c.service })
			n := &node{served: d, t: t, root: t.TempDir(), driver: driver}
			n.restartAgent()
			spec := volume.NewSpecFromPersistentVolume(&v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{
				CSI: &v1.CSIPersistentVolumeSource{Driver: fakedriver.Name, VolumeHandle: "vol-1"},
			}}}, false)
			for _, object := range append([]*storagev1.CSIDriver{c.start}, c.later...) {
				objects.object = object
				require.NoError(t, driver.Reread(t.Context()))
				attaches, err := n.plugin.CanAttach(spec)
				require.NoError(t, err)
				assert.Equal(t, c.attach, attaches)
				assert.Equal(t, c.attach, volume.CapabilitiesOf(n.plugin).Has(volume.CapAttach))
			}
		})
	}
}

// An Init that has failed for want of a CSIDriver decides nothing.
func TestAnInitAfterTheObjectWasMade(t *testing.T) {
	objects := &changingObject{}
	driver := serve(t, withoutStaging()).driver(t, func(o *Options) { o.Objects, o.Services = objects, Node })
	host, err := volume.NewHost(volume.HostOptions{RootDir: t.TempDir(), NodeName: "node-1"})
	require.NoError(t, err)
	plugin := driver.Plugin()
	require.ErrorIs(t, plugin.Init(t.Context(), host), volume.ErrInvalid)
	objects.object = &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: fakedriver.Name}}
	require.NoError(t, driver.Reread(t.Context()))
	require.NoError(t, plugin.Init(t.Context(), host))
	assert.True(t, volume.CapabilitiesOf(plugin).Has(volume.CapAttach))
}

// A plugin whose connection was closed still knows what its volumes need.
func TestAClosedDriverStillStages(t *testing.T) {
	n := newNode(t, fakedriver.Options{}, nil)
	require.NoError(t, n.driver.Close())
	require.NoError(t, n.driver.Close())
	stages, err := n.plugin.CanDeviceMount(n.spec)
	require.NoError(t, err)
	assert.True(t, stages)
	require.ErrorIs(t, n.setUp(t.Context()), volume.ErrTransient)
}

// verified returns what the plugin says of the volume on node-2, in a new process.
func (n *node) verified() (attached, said bool) {
	n.t.Helper()
	n.restartAgent()
	attacher, err := n.plugin.NewAttacher()
	require.NoError(n.t, err)
	answer, err := attacher.VolumesAreAttached(n.t.Context(), map[v1.UniqueVolumeName]*volume.Spec{"name": n.spec}, "node-2")
	require.NoError(n.t, err)
	attached, said = answer["name"]
	return attached, said
}

// A list that shows a volume on a node of which nothing is known does not say that the volume is not attached: the node may have had that id
// before, or the driver lies.
func TestAVolumeOnAnUnknownNodeIsUnknown(t *testing.T) {
	nodes := changingNodes{"node-2": "id-1"}
	n := newNode(t, fakedriver.Options{}, func(o *Options) { o.Nodes = nodes })
	attacher, err := n.plugin.NewAttacher()
	require.NoError(t, err)
	_, err = attacher.Attach(t.Context(), n.spec, "node-2")
	require.NoError(t, err)
	nodes["node-2"] = "id-2"
	_, said := n.verified()
	assert.False(t, said)
	nodes["node-2"] = "id-1"
	attached, _ := n.verified()
	assert.True(t, attached)
	attacher, err = n.plugin.NewAttacher()
	require.NoError(t, err)
	require.NoError(t, attacher.(volume.Detacher).Detach(t.Context(), n.spec.PersistentVolume.Spec.CSI.VolumeHandle, "node-2"))
	attached, said = n.verified()
	assert.False(t, attached)
	assert.True(t, said, "it is on no node")

	_, err = n.plugin.attach(t, n.spec, "node-1")
	require.NoError(t, err)
	answer, err := n.plugin.BulkVerifyVolumes(t.Context(), map[types.NodeName]map[v1.UniqueVolumeName]*volume.Spec{
		"node-1": {"other": n.provision("pv-2", nil)}, "node-2": {"name": n.spec},
	})
	require.NoError(t, err)
	attached, said = answer["node-2"]["name"]
	assert.False(t, attached)
	assert.True(t, said, "it is on another node that is known")
}

// attach attaches a volume.
func (p *Plugin) attach(t *testing.T, spec *volume.Spec, node types.NodeName) (string, error) {
	t.Helper()
	attacher, err := p.NewAttacher()
	require.NoError(t, err)
	return attacher.Attach(t.Context(), spec, node)
}

// An entry of a list without a status says nothing of nodes.
func TestAListWithoutAStatusSaysNothing(t *testing.T) {
	n := newNode(t, fakedriver.Options{}, func(o *Options) { o.Nodes = changingNodes{"node-2": "id-1"} })
	_, err := n.plugin.attach(t, n.spec, "node-2")
	require.NoError(t, err)
	n.Plan("ListVolumes", fakedriver.Fault{Change: func(answer proto.Message) {
		for _, entry := range answer.(*csi.ListVolumesResponse).GetEntries() {
			entry.Status = nil
		}
	}})
	_, said := n.verified()
	assert.False(t, said)
	attached, _ := n.verified()
	assert.True(t, attached)
}

// A driver may drop PUBLISH_UNPUBLISH_VOLUME in an update. Volumes that it has attached are detached all the same.
func TestAVolumeIsDetachedByADriverThatAttachesNoMore(t *testing.T) {
	required := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: fakedriver.Name}}
	n := newNode(t, fakedriver.Options{}, func(o *Options) { o.Object = required })
	_, err := n.plugin.attach(t, n.spec, "node-1")
	require.NoError(t, err)
	n.Update(func(o *fakedriver.Options) { o.Controller = withoutAttach().Controller })
	n.restart()
	require.Eventually(t, func() bool {
		return n.driver.Connect(t.Context()) == nil && !n.plugin.client.known().controller[csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME]
	}, time.Minute, time.Millisecond)
	detacher, err := n.plugin.NewDetacher()
	require.NoError(t, err)
	handle := n.spec.PersistentVolume.Spec.CSI.VolumeHandle
	n.Plan("ControllerUnpublishVolume", fakedriver.Fault{Code: codes.Unimplemented})
	err = detacher.Detach(t.Context(), handle, "node-1")
	require.ErrorIs(t, err, volume.ErrUnsupported)
	require.ErrorContains(t, err, handle)
	require.NoError(t, detacher.Detach(t.Context(), handle, "node-1"))
	for _, v := range n.Volumes() {
		assert.Empty(t, v.Nodes)
	}
	before := n.Count("ControllerUnpublishVolume")
	_, err = n.plugin.attach(t, n.spec, "node-1")
	require.NoError(t, err)
	require.NoError(t, detacher.Detach(t.Context(), handle, "node-1"), "it was not attached by a call")
	assert.Equal(t, before, n.Count("ControllerUnpublishVolume"))
}

// A volume that is attached to a node with its earlier id is not attached with the new one too: Detach would know only one of them.
func TestAnAttachmentKeepsTheIDOfItsNode(t *testing.T) {
	nodes := changingNodes{"node-2": "id-1"}
	n := newNode(t, fakedriver.Options{}, func(o *Options) { o.Nodes = nodes })
	n.Plan("ControllerPublishVolume", fakedriver.Fault{Code: codes.InvalidArgument})
	_, err := n.plugin.attach(t, n.spec, "node-2")
	require.True(t, isCode(err, codes.InvalidArgument))
	nodes["node-2"] = "id-2"
	_, err = n.plugin.attach(t, n.spec, "node-2")
	require.NoError(t, err, "the refused call has attached nothing")
	nodes["node-2"] = "id-3"
	_, err = n.plugin.attach(t, n.spec, "node-2")
	require.ErrorIs(t, err, volume.ErrInUse)
	require.ErrorIs(t, err, volume.ErrTransient)
	assert.Equal(t, 2, n.Count("ControllerPublishVolume"))
	detacher, err := n.plugin.NewDetacher()
	require.NoError(t, err)
	require.NoError(t, detacher.Detach(t.Context(), n.spec.PersistentVolume.Spec.CSI.VolumeHandle, "node-2"))
	assert.Empty(t, n.Volumes()[0].Nodes)
	_, err = n.plugin.attach(t, n.spec, "node-2")
	require.NoError(t, err)
	assert.Equal(t, []string{"id-3"}, n.Volumes()[0].Nodes)

	n.Plan("ControllerPublishVolume", fakedriver.Fault{Code: codes.InvalidArgument})
	_, err = n.plugin.attach(t, n.spec, "node-2")
	require.True(t, isCode(err, codes.InvalidArgument))
	nodes["node-2"] = "id-4"
	_, err = n.plugin.attach(t, n.spec, "node-2")
	require.ErrorIs(t, err, volume.ErrInUse, "a refusal says nothing of an earlier call")
}

// The driver itself took a volume off a node, which has another id since. The list says so, and the volume is attached with the new id.
func TestAnEarlierIDIsForgottenWithTheAttachment(t *testing.T) {
	nodes := changingNodes{"node-2": "id-1"}
	n := newNode(t, fakedriver.Options{}, func(o *Options) { o.Nodes = nodes })
	_, err := n.plugin.attach(t, n.spec, "node-2")
	require.NoError(t, err)
	s, err := n.plugin.client.session(t.Context())
	require.NoError(t, err)
	_, err = csi.NewControllerClient(s.conn).ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{
		VolumeId: n.spec.PersistentVolume.Spec.CSI.VolumeHandle, NodeId: "id-1",
	})
	require.NoError(t, err)
	nodes["node-2"] = "id-2"
	_, err = n.plugin.attach(t, n.spec, "node-2")
	require.ErrorIs(t, err, volume.ErrInUse, "it is not known yet")
	answer, err := n.plugin.BulkVerifyVolumes(t.Context(), map[types.NodeName]map[v1.UniqueVolumeName]*volume.Spec{"node-2": {"name": n.spec}})
	require.NoError(t, err)
	assert.Equal(t, map[v1.UniqueVolumeName]bool{"name": false}, answer["node-2"])
	_, err = n.plugin.attach(t, n.spec, "node-2")
	require.NoError(t, err)
	assert.Equal(t, []string{"id-2"}, n.Volumes()[0].Nodes)
}
