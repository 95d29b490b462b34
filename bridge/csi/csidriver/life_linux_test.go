package csidriver

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/bridge/csi/internal/fakedriver"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// inZones is a driver whose volumes are of use in one zone.
func inZones() fakedriver.Options {
	return fakedriver.Options{
		Topology: map[string]string{"zone": "a"},
		Services: []csi.PluginCapability_Service_Type{
			csi.PluginCapability_Service_CONTROLLER_SERVICE, csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS,
		},
	}
}

// A PersistentVolume is what Kubernetes' external-provisioner makes, so that either can read what the other made.
func TestAProvisionedVolumeIsThatOfExternalProvisioner(t *testing.T) {
	n := newNode(t, inZones(), func(o *Options) { o.Secrets = secrets{"space/me-claim-pv-2": "hunter2-hunter2"} })
	options := volume.VolumeOptions{
		PVName: "pv-2", PVC: claim(), PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimDelete, MountOptions: []string{"noatime"},
		Parameters: map[string]string{
			"csi.storage.k8s.io/fstype":                              "xfs",
			"csi.storage.k8s.io/provisioner-secret-name":             "${pvc.annotations['who']}-${pvc.name}-${pv.name}",
			"csi.storage.k8s.io/provisioner-secret-namespace":        "${pvc.namespace}",
			"csi.storage.k8s.io/node-stage-secret-name":              "stage",
			"csi.storage.k8s.io/node-stage-secret-namespace":         "system",
			"csi.storage.k8s.io/node-publish-secret-name":            "publish",
			"csi.storage.k8s.io/node-publish-secret-namespace":       "system",
			"csi.storage.k8s.io/controller-publish-secret-name":      "attach",
			"csi.storage.k8s.io/controller-expand-secret-name":       "expand",
			"csi.storage.k8s.io/node-expand-secret-name":             "node-expand",
			"csi.storage.k8s.io/node-expand-secret-namespace":        "system",
			"csi.storage.k8s.io/controller-expand-secret-namespace":  "system",
			"csi.storage.k8s.io/controller-publish-secret-namespace": "system",
			"csi.storage.k8s.io/controller-modify-secret-name":       "modify",
			"csi.storage.k8s.io/controller-modify-secret-namespace":  "system",
			fakedriver.Parameter:                                     "blue",
		},
	}
	provisioner, err := n.plugin.NewProvisioner(options)
	require.NoError(t, err)
	pv, err := provisioner.Provision(t.Context(), nil, nil)
	require.NoError(t, err)
	ref := func(name string) *v1.SecretReference { return &v1.SecretReference{Name: name, Namespace: "system"} }
	assert.Equal(t, &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-2", Annotations: map[string]string{
			"pv.kubernetes.io/provisioned-by":                            fakedriver.Name,
			"volume.kubernetes.io/provisioner-deletion-secret-name":      "me-claim-pv-2",
			"volume.kubernetes.io/provisioner-deletion-secret-namespace": "space",
			"volume.kubernetes.io/controller-modify-secret-name":         "modify",
			"volume.kubernetes.io/controller-modify-secret-namespace":    "system",
		}},
		Spec: v1.PersistentVolumeSpec{
			Capacity:                      v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(1<<20, resource.BinarySI)},
			AccessModes:                   []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimDelete,
			MountOptions:                  []string{"noatime"},
			NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
				MatchExpressions: []v1.NodeSelectorRequirement{{Key: "zone", Operator: v1.NodeSelectorOpIn, Values: []string{"a"}}},
			}}}},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
				Driver: fakedriver.Name, VolumeHandle: "vol-pv-2", FSType: "xfs", VolumeAttributes: map[string]string{"made-of": "pv-2"},
				ControllerPublishSecretRef: ref("attach"), NodeStageSecretRef: ref("stage"), NodePublishSecretRef: ref("publish"),
				ControllerExpandSecretRef: ref("expand"), NodeExpandSecretRef: ref("node-expand"),
			}},
		},
	}, pv)
	request := n.Last("CreateVolume").(*csi.CreateVolumeRequest)
	assert.Equal(t, map[string]string{fakedriver.Parameter: "blue"}, request.GetParameters())
	assert.Equal(t, []string{"noatime"}, request.GetVolumeCapabilities()[0].GetMount().GetMountFlags())
	assert.Equal(t, "xfs", request.GetVolumeCapabilities()[0].GetMount().GetFsType())
	assert.Equal(t, csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER, request.GetVolumeCapabilities()[0].GetAccessMode().GetMode())
}

// A PersistentVolume that external-provisioner made is mounted as it is.
func TestAVolumeOfExternalProvisionerIsMountedAsItIs(t *testing.T) {
	n := newNode(t, fakedriver.Options{}, nil)
	pv := n.spec.PersistentVolume.DeepCopy()
	pv.Name = "pvc-5b0d0a6e-7f0c-4b39-8d3e-3f1c9d3b7c11"
	pv.Spec.CSI.VolumeAttributes = map[string]string{"storage.kubernetes.io/csiProvisionerIdentity": "1700000000000-8081-fake", "share": "x"}
	pv.Spec.CSI.FSType = "ext4"
	pv.Spec.MountOptions = []string{"noatime"}
	n.spec = volume.NewSpecFromPersistentVolume(pv, false)
	require.NoError(t, n.stage())
	require.NoError(t, n.setUp(t.Context()))
	attach, stage := n.Last("ControllerPublishVolume").(*csi.ControllerPublishVolumeRequest), n.Last("NodeStageVolume").(*csi.NodeStageVolumeRequest)
	publish := n.Last("NodePublishVolume").(*csi.NodePublishVolumeRequest)
	for _, got := range []map[string]string{attach.GetVolumeContext(), stage.GetVolumeContext(), publish.GetVolumeContext()} {
		assert.Equal(t, pv.Spec.CSI.VolumeAttributes, got)
	}
	assert.Equal(t, "fake-node", attach.GetNodeId(), "the driver's id, not the name of the node")
	returned := map[string]string{"lun": "8", "node": "fake-node"}
	assert.Equal(t, returned, stage.GetPublishContext())
	assert.Equal(t, returned, publish.GetPublishContext())
	assert.Equal(t, stage.GetStagingTargetPath(), publish.GetStagingTargetPath())
	assert.True(t, proto.Equal(stage.GetVolumeCapability(), publish.GetVolumeCapability()))
	assert.Equal(t, "ext4", stage.GetVolumeCapability().GetMount().GetFsType())
	n.expectGone()
}

func TestWhereANewVolumeIsMade(t *testing.T) {
	n := newNode(t, inZones(), nil)
	zones := func(values ...string) []v1.TopologySelectorTerm {
		return []v1.TopologySelectorTerm{{MatchLabelExpressions: []v1.TopologySelectorLabelRequirement{{Key: "zone", Values: values}}}}
	}
	node := func(zone string) *v1.Node {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-2", Labels: map[string]string{"zone": zone, "other": "x"}}}
	}
	for name, c := range map[string]struct {
		node                 *v1.Node
		allowed              []v1.TopologySelectorTerm
		requisite, preferred []string
		is                   error
	}{
		"anywhere":                  {},
		"where the class allows":    {nil, zones("a", "b"), []string{"a", "b"}, nil, nil},
		"where the node is":         {node("b"), nil, []string{"b"}, []string{"b"}, nil},
		"both, the node's first":    {node("b"), zones("a", "b"), []string{"a", "b"}, []string{"b", "a"}, nil},
		"not where the node is":     {node("c"), zones("a", "b"), nil, nil, volume.ErrInfeasible},
		"a node that does not tell": {&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-2"}}, nil, nil, nil, volume.ErrTransient},
	} {
		t.Run(name, func(t *testing.T) {
			provisioner, err := n.plugin.NewProvisioner(volume.VolumeOptions{PVName: "pv-2", PVC: claim()})
			require.NoError(t, err)
			before := n.Count("CreateVolume")
			_, err = provisioner.Provision(t.Context(), c.node, c.allowed)
			if c.is != nil {
				require.ErrorIs(t, err, c.is)
				assert.Equal(t, before, n.Count("CreateVolume"))
				return
			}
			require.NoError(t, err)
			asked := n.Last("CreateVolume").(*csi.CreateVolumeRequest).GetAccessibilityRequirements()
			assert.Equal(t, c.requisite, zonesOf(asked.GetRequisite()))
			assert.Equal(t, c.preferred, zonesOf(asked.GetPreferred()))
		})
	}
}

func zonesOf(topologies []*csi.Topology) []string {
	var zones []string
	for _, topology := range topologies {
		zones = append(zones, topology.GetSegments()["zone"])
	}
	return zones
}

func TestClassParametersThatAreNotKnownAreRefused(t *testing.T) {
	n := newNode(t, fakedriver.Options{}, nil)
	for name, parameters := range map[string]map[string]string{
		"of Kubernetes":               {"csi.storage.k8s.io/colour": "blue"},
		"of a secret":                 {"csi.storage.k8s.io/colour-secret-name": "a", "csi.storage.k8s.io/colour-secret-namespace": "b"},
		"a name alone":                {"csi.storage.k8s.io/provisioner-secret-name": "a"},
		"a namespace of the claim's":  {"csi.storage.k8s.io/provisioner-secret-name": "a", "csi.storage.k8s.io/provisioner-secret-namespace": "${pvc.name}"},
		"an annotation that is not":   {"csi.storage.k8s.io/provisioner-secret-name": "${pvc.annotations['x']}", "csi.storage.k8s.io/provisioner-secret-namespace": "b"},
		"two filesystems":             {"csi.storage.k8s.io/fstype": "xfs", "fstype": "ext4"},
		"a template that has no name": {"csi.storage.k8s.io/provisioner-secret-name": "${}", "csi.storage.k8s.io/provisioner-secret-namespace": "b"},
	} {
		_, err := n.plugin.NewProvisioner(volume.VolumeOptions{PVName: "pv-2", PVC: claim(), Parameters: parameters})
		require.ErrorIs(t, err, volume.ErrInvalid, name)
	}
	_, err := n.tryProvision("pv-2", map[string]string{"unknown": "x"})
	require.True(t, isCode(err, codes.InvalidArgument), "the driver knows its own: %v", err)
}

func TestModification(t *testing.T) {
	n := newNode(t, fakedriver.Options{}, nil)
	require.NoError(t, n.plugin.ModifyVolume(t.Context(), n.spec, nil))
	assert.Zero(t, n.Count("ControllerModifyVolume"), "a class without parameters asks for nothing")
	require.NoError(t, n.plugin.ModifyVolume(t.Context(), n.spec, map[string]string{fakedriver.Attribute: "fast"}))
	request := n.Last("ControllerModifyVolume").(*csi.ControllerModifyVolumeRequest)
	assert.Equal(t, n.spec.PersistentVolume.Spec.CSI.VolumeHandle, request.GetVolumeId())
	assert.Equal(t, map[string]string{fakedriver.Attribute: "fast"}, request.GetMutableParameters())
	assert.ErrorIs(t, n.plugin.ModifyVolume(t.Context(), n.spec, map[string]string{"colour": "red"}), volume.ErrInfeasible)
	n.Plan("ControllerModifyVolume", fakedriver.Fault{Code: codes.Unavailable})
	assert.ErrorIs(t, n.plugin.ModifyVolume(t.Context(), n.spec, map[string]string{fakedriver.Attribute: "slow"}), volume.ErrUncertain)
	plain := newNode(t, fakedriver.Options{Controller: []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME}}, nil)
	assert.False(t, plain.plugin.Capabilities().Has(volume.CapModify))
}

// The secret of a modification is that of the annotations, if they name one whole, and else that of expansions.
func TestTheSecretOfAModification(t *testing.T) {
	for name, c := range map[string]struct {
		name, namespace, want string
	}{
		"annotations": {"modify", "system", "hunter2-modify"},
		"no name":     {"", "system", "hunter2-expand"},
		"no place":    {"modify", "", "hunter2-expand"},
		"none":        {"", "", "hunter2-expand"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, fakedriver.Options{}, func(o *Options) {
				o.Secrets = secrets{"system/modify": "hunter2-modify", "system/expand": "hunter2-expand"}
			})
			pv := n.spec.PersistentVolume.DeepCopy()
			pv.Annotations = map[string]string{annModifySecretName: c.name, annModifySecretNamespace: c.namespace}
			pv.Spec.CSI.ControllerExpandSecretRef = &v1.SecretReference{Name: "expand", Namespace: "system"}
			require.NoError(t, n.plugin.ModifyVolume(t.Context(), volume.NewSpecFromPersistentVolume(pv, false), map[string]string{fakedriver.Attribute: "fast"}))
			assert.Equal(t, map[string]string{"key": c.want}, n.Last("ControllerModifyVolume").(*csi.ControllerModifyVolumeRequest).GetSecrets())
		})
	}
}

func TestExpansion(t *testing.T) {
	one, two := resource.MustParse("1Mi"), resource.MustParse("2Mi")
	grow := func(n *node) (resource.Quantity, error) {
		return n.plugin.ExpandVolumeDevice(t.Context(), n.spec, two, one)
	}
	t.Run("by the controller and on the node", func(t *testing.T) {
		n := newNode(t, fakedriver.Options{}, nil)
		got, err := grow(n)
		require.NoError(t, err)
		assert.Zero(t, got.Cmp(two))
		done, err := n.plugin.NodeExpand(t.Context(), volume.NodeResizeOptions{
			VolumeSpec: n.spec, DeviceMountPath: "/mounted", DeviceStagePath: "/staged", NewSize: two,
		})
		require.NoError(t, err)
		assert.True(t, done)
		request := n.Last("NodeExpandVolume").(*csi.NodeExpandVolumeRequest)
		assert.Equal(t, "/mounted", request.GetVolumePath())
		assert.Equal(t, "/staged", request.GetStagingTargetPath())
		assert.Equal(t, two.Value(), request.GetCapacityRange().GetRequiredBytes())
	})
	t.Run("on the node alone", func(t *testing.T) {
		n := newNode(t, fakedriver.Options{Controller: []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME}}, nil)
		got, err := grow(n)
		require.NoError(t, err)
		assert.Zero(t, got.Cmp(two))
		assert.Zero(t, n.Count("ControllerExpandVolume"))
	})
	t.Run("not as far as it was asked for", func(t *testing.T) {
		n := newNode(t, fakedriver.Options{}, nil)
		n.Plan("ControllerExpandVolume", fakedriver.Fault{Change: func(answer proto.Message) { answer.(*csi.ControllerExpandVolumeResponse).CapacityBytes = 1 }})
		_, err := grow(n)
		require.ErrorIs(t, err, volume.ErrUncertain)
	})
	t.Run("refused", func(t *testing.T) {
		n := newNode(t, fakedriver.Options{}, nil)
		n.Plan("ControllerExpandVolume", fakedriver.Fault{Code: codes.FailedPrecondition}, fakedriver.Fault{Code: codes.OutOfRange})
		_, err := grow(n)
		require.ErrorIs(t, err, volume.ErrInUse)
		_, err = grow(n)
		require.ErrorIs(t, err, volume.ErrInfeasible)
		_, err = n.plugin.ExpandVolumeDevice(t.Context(), n.spec, one, two)
		require.ErrorIs(t, err, volume.ErrInvalid)
	})
}

func TestStatisticsAndHealth(t *testing.T) {
	n := newNode(t, fakedriver.Options{}, nil)
	require.NoError(t, n.stage())
	require.NoError(t, n.setUp(t.Context()))
	m, err := n.mounter().GetMetrics(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 1<<20, m.Capacity.Value())
	assert.EqualValues(t, 99, m.InodesFree.Value())

	usage := func(change func(*csi.NodeGetVolumeStatsResponse)) {
		n.Plan("NodeGetVolumeStats", fakedriver.Fault{Change: func(answer proto.Message) { change(answer.(*csi.NodeGetVolumeStatsResponse)) }})
	}
	usage(func(r *csi.NodeGetVolumeStatsResponse) { r.Usage[0].Used = -1 })
	_, err = n.mounter().GetMetrics(t.Context())
	require.ErrorIs(t, err, volume.ErrInvalid)
	usage(func(r *csi.NodeGetVolumeStatsResponse) { r.Usage[0].Used = 1 << 40 })
	_, err = n.mounter().GetMetrics(t.Context())
	require.ErrorIs(t, err, volume.ErrInvalid)
	usage(func(r *csi.NodeGetVolumeStatsResponse) { r.Usage = []*csi.VolumeUsage{{Unit: 99, Total: 1}} })
	_, err = n.mounter().GetMetrics(t.Context())
	require.ErrorIs(t, err, volume.ErrUnsupported, "a unit of a newer specification says nothing")

	reporter := n.mounter().(volume.HealthReporter)
	conditions, err := reporter.GetHealth(t.Context())
	require.NoError(t, err)
	assert.Empty(t, conditions)
	n.Plan("NodeGetVolumeHealth", fakedriver.Fault{Change: func(answer proto.Message) {
		answer.(*csi.NodeGetVolumeHealthResponse).VolumeHealth.HealthStatuses = []*csi.VolumeHealth_VolumeHealthEntry{
			{Status: csi.VolumeHealthErrorType_DEGRADED, Reason: "Slow"}, {Status: csi.VolumeHealthErrorType_DATA_LOSS, Reason: "Lost"}, {Status: 99, Reason: "New"},
		}
	}})
	conditions, err = reporter.GetHealth(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []volume.HealthCondition{
		{Status: volume.HealthDegraded, Reason: "Slow"}, {Status: volume.HealthAbnormal, Reason: "Lost"}, {Status: volume.HealthUnknown, Reason: "New"},
	}, conditions)
	n.expectGone()

}

// What a driver says of its capacity is passed on, unknown told apart from zero.
func TestCapacityOfADriver(t *testing.T) {
	n := newNode(t, inZones(), nil)
	require.True(t, n.plugin.Capabilities().Has(volume.CapCapacity))
	options := volume.CapacityOptions{
		Parameters: map[string]string{fakedriver.Parameter: "blue", "csi.storage.k8s.io/provisioner-secret-name": "${pvc.name}"},
		Segment:    map[string]string{"zone": "a"},
	}
	capacity, err := n.plugin.GetCapacity(t.Context(), options)
	require.NoError(t, err)
	assert.EqualValues(t, 1<<40, capacity.Available.Value())
	assert.Nil(t, capacity.MaximumVolumeSize)
	assert.Nil(t, capacity.MinimumVolumeSize)
	request := n.Last("GetCapacity").(*csi.GetCapacityRequest)
	assert.Equal(t, map[string]string{fakedriver.Parameter: "blue"}, request.GetParameters())
	assert.Equal(t, options.Segment, request.GetAccessibleTopology().GetSegments())

	says := func(change func(*csi.GetCapacityResponse)) {
		n.Plan("GetCapacity", fakedriver.Fault{Change: func(answer proto.Message) { change(answer.(*csi.GetCapacityResponse)) }})
		capacity, err = n.plugin.GetCapacity(t.Context(), volume.CapacityOptions{})
	}
	says(func(r *csi.GetCapacityResponse) {
		r.AvailableCapacity, r.MaximumVolumeSize, r.MinimumVolumeSize = 0, wrapperspb.Int64(0), wrapperspb.Int64(7)
	})
	require.NoError(t, err)
	assert.Nil(t, n.Last("GetCapacity").(*csi.GetCapacityRequest).GetAccessibleTopology())
	assert.Zero(t, capacity.Available.Value())
	require.NotNil(t, capacity.MaximumVolumeSize, "zero is not unknown")
	assert.Zero(t, capacity.MaximumVolumeSize.Value())
	assert.EqualValues(t, 7, capacity.MinimumVolumeSize.Value())
	says(func(r *csi.GetCapacityResponse) { r.AvailableCapacity = -1 })
	require.ErrorIs(t, err, volume.ErrInvalid)
	says(func(r *csi.GetCapacityResponse) { r.MaximumVolumeSize = wrapperspb.Int64(-1) })
	require.ErrorIs(t, err, volume.ErrInvalid)

	plain := newNode(t, fakedriver.Options{}, nil)
	_, err = plain.plugin.GetCapacity(t.Context(), options)
	require.ErrorIs(t, err, volume.ErrUnsupported, "a driver without topologies has no segments")
}

// What a driver says of its node is found in the store by a plugin elsewhere.
func TestANodeIsRegistered(t *testing.T) {
	options := inZones()
	options.MaxVolumes = 7
	s, d := store.NewMemory(store.MemoryOptions{}), serve(t, options)
	_, err := store.Create(t.Context(), s, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: map[string]string{"a": "b"}}})
	require.NoError(t, err)
	other := storagev1.CSINodeDriver{Name: "other.example.com", NodeID: "other"}
	_, err = store.Create(t.Context(), s, &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{other, {Name: fakedriver.Name, NodeID: "old"}}},
	})
	require.NoError(t, err)
	driver := d.driver(t, nil)
	for range 2 {
		require.NoError(t, driver.Register(t.Context(), s, "node-1"))
	}
	require.NoError(t, driver.Register(t.Context(), s, "without-a-node"))
	count := int32(7)
	want := storagev1.CSINodeDriver{
		Name: fakedriver.Name, NodeID: "fake-node", TopologyKeys: []string{"zone"}, Allocatable: &storagev1.VolumeNodeResources{Count: &count},
	}
	object, err := store.Get[*storagev1.CSINode](t.Context(), s, "", "node-1")
	require.NoError(t, err)
	assert.Equal(t, []storagev1.CSINodeDriver{other, want}, object.Spec.Drivers)
	node, err := store.Get[*v1.Node](t.Context(), s, "", "node-1")
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"a": "b", "zone": "a"}, node.Labels)

	known, err := StoredNodes(s).DriverNode(t.Context(), fakedriver.Name, "node-1")
	require.NoError(t, err)
	assert.Equal(t, want, known)
	_, err = StoredNodes(s).DriverNode(t.Context(), "absent.example.com", "node-1")
	require.ErrorContains(t, err, "registered")
	limits, err := driver.Plugin().GetVolumeLimits(t.Context())
	require.NoError(t, err)
	assert.Equal(t, map[string]int64{"attachable-volumes-csi-" + fakedriver.Name: 7}, limits)
}

// busyStore never takes a write: another one always comes first.
type busyStore struct{ store.Store }

func (busyStore) Update(context.Context, runtime.Object) (runtime.Object, error) {
	return nil, store.ErrConflict
}

func (busyStore) Create(context.Context, runtime.Object) (runtime.Object, error) {
	return nil, store.ErrAlreadyExists
}

// The caller gets the error of a store that never takes the registration.
func TestARegistrationThatCannotBeWrittenIsAnError(t *testing.T) {
	s, driver := store.NewMemory(store.MemoryOptions{}), serve(t, inZones()).driver(t, nil)
	require.ErrorIs(t, driver.Register(t.Context(), busyStore{s}, "node-1"), store.ErrConflict, "a CSINode that is not read and exists")
	require.NoError(t, driver.Register(t.Context(), s, "node-1"))
	_, err := store.Create(t.Context(), s, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}})
	require.NoError(t, err)
	require.ErrorIs(t, driver.Register(t.Context(), busyStore{s}, "node-1"), store.ErrConflict)
}

// A plugin of a node alone takes from the CSIDriver whether volumes are attached, and does not guess.
func TestANodesPluginIsToldWhetherVolumesAreAttached(t *testing.T) {
	d := serve(t, fakedriver.Options{})
	host, err := volume.NewHost(volume.HostOptions{RootDir: filepath.Join(t.TempDir(), "root"), NodeName: "node-1"})
	require.NoError(t, err)
	onNode := func(o *Options) { o.Services = Node }
	require.ErrorIs(t, d.driver(t, onNode).Plugin().Init(t.Context(), host), volume.ErrInvalid)
	for _, required := range []bool{true, false} {
		p := d.driver(t, func(o *Options) {
			onNode(o)
			o.Object = &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: fakedriver.Name}, Spec: storagev1.CSIDriverSpec{AttachRequired: &required}}
		}).Plugin()
		require.NoError(t, p.Init(t.Context(), host))
		assert.Equal(t, required, volume.CapabilitiesOf(p).Has(volume.CapAttach))
	}
	assert.Zero(t, d.Count("ControllerGetCapabilities"))
}

func TestAPublishContextTravelsAsAPath(t *testing.T) {
	for _, publish := range []map[string]string{{}, {"..": "."}, {"a": "b"}, {"device path": "/dev/disk/by-id/ä=&;%\n", "": "", "empty": ""}} {
		path := devicePathOf(publish)
		assert.True(t, filepath.IsAbs(path))
		assert.Equal(t, filepath.Clean(path), path, "the manager keeps no other path on record")
		assert.Equal(t, path, devicePathOf(publish))
		got, ok := PublishContext(path)
		assert.True(t, ok)
		assert.Equal(t, publish, got)
	}
	for _, path := range []string{"", "/dev/sda", contextRoot + "/%zz", contextRoot + "/a;b"} {
		_, ok := PublishContext(path)
		assert.False(t, ok, path)
	}
}

func TestNamesOfVolumes(t *testing.T) {
	for handle, name := range map[string]string{"vol-1": "vol-1", "a/b^c": "a/b^c", "pods/x": "=pods/x", "=x": "==x"} {
		assert.Equal(t, name, nameOfHandle(handle))
		assert.Equal(t, handle, handleOfName(name))
	}
}

func TestAccessModes(t *testing.T) {
	knows := facts{node: map[nodeCall]bool{csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER: true}}
	for _, c := range []struct {
		modes    []v1.PersistentVolumeAccessMode
		readOnly bool
		of       facts
		want     csi.VolumeCapability_AccessMode_Mode
		is       error
	}{
		{[]v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, false, facts{}, csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, nil},
		{[]v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, false, knows, csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER, nil},
		{[]v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}, false, knows, csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, nil},
		{[]v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}, false, facts{}, 0, volume.ErrUnsupported},
		{[]v1.PersistentVolumeAccessMode{v1.ReadOnlyMany}, false, facts{}, csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, nil},
		{[]v1.PersistentVolumeAccessMode{v1.ReadOnlyMany, v1.ReadWriteOnce}, true, facts{}, csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, nil},
		{[]v1.PersistentVolumeAccessMode{v1.ReadOnlyMany, v1.ReadWriteOnce}, false, facts{}, csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, nil},
		{[]v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadWriteMany}, false, facts{}, csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, nil},
		{nil, false, facts{}, 0, volume.ErrInvalid},
	} {
		got, err := use{modes: c.modes, readOnly: c.readOnly}.mode(c.of)
		assert.ErrorIs(t, err, c.is, "%v", c.modes)
		assert.Equal(t, c.want, got, "%v", c.modes)
	}
}

// A pod's volume costs two calls of the driver, one up and one down, and four where it is staged; nothing is asked again.
func TestAPodsVolumeCostsTwoCalls(t *testing.T) {
	for calls, options := range map[int]fakedriver.Options{
		2: {Node: []csi.NodeServiceCapability_RPC_Type{csi.NodeServiceCapability_RPC_GET_VOLUME_STATS}, Controller: []csi.ControllerServiceCapability_RPC_Type{
			csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		}},
		4: {Controller: []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME}},
	} {
		n := newNode(t, options, nil)
		before := n.Total()
		for range 20 {
			if n.plugin.client.stages() {
				require.NoError(t, n.stageAlone())
			}
			require.NoError(t, n.setUp(t.Context()))
			n.expectGone()
		}
		assert.Equal(t, 20*calls, n.Total()-before)
	}
}
