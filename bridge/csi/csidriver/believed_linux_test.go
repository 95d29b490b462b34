package csidriver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/bridge/csi/internal/fakedriver"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/volume"
)

// node is a node with a plugin of a fake driver and one volume.
type node struct {
	*served

	t      *testing.T
	root   string
	driver *Driver
	plugin *Plugin
	spec   *volume.Spec
}

func newNode(t *testing.T, options fakedriver.Options, change func(*Options)) *node {
	t.Helper()
	mounttest.RequireMounts(t)
	s := serve(t, options)
	n := &node{served: s, t: t, root: t.TempDir(), driver: s.driver(t, change)}
	n.restartAgent()
	n.spec = n.provision("pv-1", nil)
	return n
}

// restartAgent is a new value of the plugin, as after a kill.
func (n *node) restartAgent() {
	n.t.Helper()
	host, err := volume.NewHost(volume.HostOptions{RootDir: n.root, NodeName: "node-1"})
	require.NoError(n.t, err)
	n.plugin = n.driver.Plugin()
	require.NoError(n.t, n.plugin.Init(n.t.Context(), host))
}

func claim() *v1.PersistentVolumeClaim {
	return &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "claim", Namespace: "space", Annotations: map[string]string{"who": "me"}},
		Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources:   v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Mi")}},
		},
	}
}

func (n *node) tryProvision(name string, parameters map[string]string) (*v1.PersistentVolume, error) {
	n.t.Helper()
	provisioner, err := n.plugin.NewProvisioner(volume.VolumeOptions{PVName: name, PVC: claim(), Parameters: parameters})
	require.NoError(n.t, err)
	return provisioner.Provision(n.t.Context(), nil, nil)
}

func (n *node) provision(name string, parameters map[string]string) *volume.Spec {
	n.t.Helper()
	pv, err := n.tryProvision(name, parameters)
	require.NoError(n.t, err)
	return volume.NewSpecFromPersistentVolume(pv, false)
}

// stage attaches and stages the volume.
func (n *node) stage() error {
	n.t.Helper()
	attacher, err := n.plugin.NewAttacher()
	require.NoError(n.t, err)
	path, err := attacher.Attach(n.t.Context(), n.spec, "node-1")
	require.NoError(n.t, err)
	path, err = attacher.WaitForAttach(n.t.Context(), n.spec, path, nil)
	require.NoError(n.t, err)
	staging, err := attacher.GetDeviceMountPath(n.spec)
	require.NoError(n.t, err)
	return attacher.MountDevice(n.t.Context(), n.spec, path, staging, volume.DeviceMounterArgs{})
}

// stageAlone stages a volume that is not attached.
func (n *node) stageAlone() error {
	n.t.Helper()
	m, err := n.plugin.NewDeviceMounter()
	require.NoError(n.t, err)
	staging, err := m.GetDeviceMountPath(n.spec)
	require.NoError(n.t, err)
	return m.MountDevice(n.t.Context(), n.spec, "", staging, volume.DeviceMounterArgs{})
}

func (n *node) mounter() volume.Mounter {
	n.t.Helper()
	m, err := n.plugin.NewMounter(n.spec, &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "pod-1"}})
	require.NoError(n.t, err)
	return m
}

func (n *node) setUp(ctx context.Context) error {
	n.t.Helper()
	return n.mounter().SetUp(ctx, volume.MounterArgs{})
}

func (n *node) path() string { return n.mounter().GetPath() }

func (n *node) tearDown() error {
	n.t.Helper()
	u, err := n.plugin.NewUnmounter(n.spec.Name(), "pod-1")
	require.NoError(n.t, err)
	return u.TearDown(n.t.Context())
}

func (n *node) unstage() error {
	n.t.Helper()
	d, err := n.plugin.NewDetacher()
	require.NoError(n.t, err)
	staging, err := d.(volume.Attacher).GetDeviceMountPath(n.spec)
	require.NoError(n.t, err)
	return d.UnmountDevice(n.t.Context(), staging)
}

func (n *node) isMounted() bool {
	n.t.Helper()
	mounted, err := n.plugin.node.mountPoints.isMounted(n.t.Context(), n.path())
	require.NoError(n.t, err)
	return mounted
}

// expectGone takes the volume away and looks that nothing is left: no mount, no directory, no record.
func (n *node) expectGone() {
	n.t.Helper()
	require.NoError(n.t, n.tearDown())
	require.NoError(n.t, n.unstage())
	assert.NoDirExists(n.t, n.path())
	records, err := n.plugin.node.mountPoints.records.all(func(record) bool { return true })
	require.NoError(n.t, err)
	assert.Empty(n.t, records)
	for _, v := range n.Volumes() {
		assert.Empty(n.t, v.Published)
		assert.Empty(n.t, v.Staged)
	}
}

// A call that was cut off leaves the volume uncertain, and a publication that comes afterwards is taken away, also by a new value
// of the plugin.
func TestAPublicationThatCameTooLateIsTakenAway(t *testing.T) {
	n := newNode(t, fakedriver.Options{}, cutsOffAtOnce)
	require.NoError(t, n.stage())
	goesOn := make(chan struct{})
	n.Plan("NodePublishVolume", fakedriver.Fault{Hold: goesOn})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.setUp(ctx) }()
	require.Eventually(t, func() bool { return n.Count("NodePublishVolume") == 1 }, time.Minute, time.Millisecond)
	cancel()
	require.ErrorIs(t, <-ended, volume.ErrUncertain)
	close(goesOn)
	require.Eventually(t, n.isMounted, time.Minute, time.Millisecond)
	n.restartAgent()
	n.expectGone()
	assert.Equal(t, 1, n.Count("NodeUnpublishVolume"))
}

// waiting returns how many calls wait for an earlier one on their volume.
func (n *node) waiting() int {
	locks := &n.driver.client.locks
	locks.mu.Lock()
	defer locks.mu.Unlock()
	waiting := 0
	for _, lock := range locks.byKey {
		waiting += lock.users - 1
	}
	return waiting
}

// cutsOffAtOnce lets no call go on after the end of its context.
func cutsOffAtOnce(o *Options) { o.Grace = time.Nanosecond }

// The next call for a volume waits until a call that was cut off has ended: a driver that had not begun it would carry it out later.
func TestATeardownDoesNotOvertakeACallThatWasCutOff(t *testing.T) {
	n := newNode(t, fakedriver.Options{}, func(o *Options) { o.Grace = time.Minute })
	require.NoError(t, n.stage())
	goesOn := make(chan struct{})
	n.Plan("NodePublishVolume", fakedriver.Fault{Hold: goesOn})
	ctx, cancel := context.WithCancel(t.Context())
	published := make(chan error, 1)
	go func() { published <- n.setUp(ctx) }()
	require.Eventually(t, func() bool { return n.Count("NodePublishVolume") == 1 }, time.Minute, time.Millisecond)
	cancel()
	gone := make(chan error, 1)
	go func() { gone <- n.tearDown() }()
	require.Eventually(t, func() bool { return n.waiting() == 1 || n.Count("NodeUnpublishVolume") > 0 }, time.Minute, time.Millisecond)
	assert.Zero(t, n.Count("NodeUnpublishVolume"))
	close(goesOn)
	<-published // It is over before anything else is called; whether it noticed the end of its context is open.
	require.NoError(t, <-gone)
	n.expectGone()
}

// A call whose context has ended is not sent.
func TestACallAfterTheEndOfItsContextIsNotSent(t *testing.T) {
	n := newNode(t, fakedriver.Options{}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s, err := n.driver.client.session(t.Context())
	require.NoError(t, err)
	before := n.Total()
	_, err = call(ctx, s, "DeleteVolume", csi.NewControllerClient(s.conn).DeleteVolume, &csi.DeleteVolumeRequest{VolumeId: "vol-pv-1"})
	require.ErrorIs(t, err, volume.ErrTransient)
	require.NotErrorIs(t, err, volume.ErrUncertain)
	assert.Equal(t, before, n.Total())
}

func TestAPublicationWithoutAMountIsNoSuccess(t *testing.T) {
	n := newNode(t, fakedriver.Options{}, nil)
	require.NoError(t, n.stage())
	n.Plan("NodePublishVolume", fakedriver.Fault{NoEffect: true})
	err := n.setUp(t.Context())
	require.ErrorIs(t, err, ErrContradiction)
	require.ErrorIs(t, err, volume.ErrUncertain)
	require.NoError(t, n.setUp(t.Context()))
	n.expectGone()
}

func TestAVolumeThatIsStillMountedIsNotTakenAway(t *testing.T) {
	n := newNode(t, fakedriver.Options{}, nil)
	require.NoError(t, n.stage())
	require.NoError(t, n.setUp(t.Context()))
	n.Plan("NodeUnpublishVolume", fakedriver.Fault{NoEffect: true})
	err := n.tearDown()
	require.ErrorIs(t, err, ErrContradiction)
	require.ErrorIs(t, err, volume.ErrUncertain)
	assert.True(t, n.isMounted())

	n.Plan("NodeUnstageVolume", fakedriver.Fault{NoEffect: true})
	require.NoError(t, n.tearDown())
	require.ErrorIs(t, n.unstage(), ErrContradiction)
	n.expectGone()
}

// A final answer is believed only where nothing is mounted and nothing was begun before.
func TestAFinalAnswerIsBelievedOnlyWithoutATrace(t *testing.T) {
	refuse := fakedriver.Fault{Code: codes.InvalidArgument}
	t.Run("without a trace", func(t *testing.T) {
		n := newNode(t, fakedriver.Options{}, nil)
		require.NoError(t, n.stage())
		n.Plan("NodePublishVolume", refuse)
		err := n.setUp(t.Context())
		require.Error(t, err)
		require.NotErrorIs(t, err, volume.ErrUncertain)
		require.NotErrorIs(t, err, volume.ErrTransient)
		assert.NoDirExists(t, n.path())
		_, known, err := n.plugin.node.mountPoints.records.read(n.path())
		require.NoError(t, err)
		assert.False(t, known)
		n.expectGone()
		assert.Zero(t, n.Count("NodeUnpublishVolume"))
	})
	t.Run("with a mount", func(t *testing.T) {
		n := newNode(t, fakedriver.Options{}, nil)
		require.NoError(t, n.stage())
		n.Plan("NodePublishVolume", fakedriver.Fault{Code: codes.InvalidArgument, After: true})
		err := n.setUp(t.Context())
		require.ErrorIs(t, err, volume.ErrUncertain)
		require.ErrorIs(t, err, ErrContradiction)
		n.expectGone()
	})
	t.Run("after an attempt that may still be running", func(t *testing.T) {
		n := newNode(t, fakedriver.Options{}, nil)
		require.NoError(t, n.stage())
		n.Plan("NodePublishVolume", fakedriver.Fault{Code: codes.DeadlineExceeded}, refuse)
		require.ErrorIs(t, n.setUp(t.Context()), volume.ErrUncertain)
		n.restartAgent()
		require.ErrorIs(t, n.setUp(t.Context()), volume.ErrUncertain)
		n.expectGone()
		assert.Equal(t, 1, n.Count("NodeUnpublishVolume"))
	})
	t.Run("of staging", func(t *testing.T) {
		n := newNode(t, fakedriver.Options{}, nil)
		n.Plan("NodeStageVolume", refuse, fakedriver.Fault{Code: codes.InvalidArgument, After: true})
		require.NotErrorIs(t, n.stage(), volume.ErrUncertain)
		require.ErrorIs(t, n.stage(), ErrContradiction)
		n.expectGone()
	})
}

func TestAReadOnlyVolumeThatCanBeWrittenToIsNoSuccess(t *testing.T) {
	n := newNode(t, fakedriver.Options{}, nil)
	n.spec = volume.NewSpecFromPersistentVolume(n.spec.PersistentVolume, true)
	require.NoError(t, n.stage())
	n.Plan("NodePublishVolume", fakedriver.Fault{Edit: func(request proto.Message) { request.(*csi.NodePublishVolumeRequest).Readonly = false }})
	err := n.setUp(t.Context())
	require.ErrorIs(t, err, ErrContradiction)
	require.ErrorIs(t, err, volume.ErrUncertain)
	require.NoError(t, n.tearDown())
	require.NoError(t, n.setUp(t.Context()))
	require.Error(t, os.WriteFile(filepath.Join(n.path(), "file"), nil, 0o600))
	n.expectGone()
}

// What is not on record is not ours, and what cannot be read says nothing: neither is touched.
func TestWhatIsOnNoRecordIsLeftAlone(t *testing.T) {
	t.Run("a mount", func(t *testing.T) {
		n := newNode(t, fakedriver.Options{}, nil)
		require.NoError(t, mount.MountMemory(t.Context(), n.plugin.options.Mounter, n.path()))
		require.ErrorIs(t, n.tearDown(), mount.ErrForeign)
		assert.True(t, n.isMounted())
		require.NoError(t, mount.UnmountPath(t.Context(), n.plugin.options.Mounter, n.path(), mount.UnmountOptions{}))
	})
	for name, damage := range map[string]func(n *node, file string) error{
		"a damaged record": func(_ *node, file string) error { return os.WriteFile(file, []byte("{"), 0o600) },
		"a record of another path": func(n *node, file string) error {
			_, err := n.plugin.node.mountPoints.records.write(record{Path: "/other", VolumeID: "other", Kind: published})
			return errors.Join(err, os.Rename(n.plugin.node.mountPoints.records.file("/other"), file))
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, fakedriver.Options{}, nil)
			require.NoError(t, n.stage())
			require.NoError(t, n.setUp(t.Context()))
			file := n.plugin.node.mountPoints.records.file(n.path())
			good, err := os.ReadFile(file)
			require.NoError(t, err)
			require.NoError(t, damage(n, file))
			require.ErrorContains(t, n.tearDown(), "record")
			assert.True(t, n.isMounted())
			assert.Zero(t, n.Count("NodeUnpublishVolume"))
			require.NoError(t, os.WriteFile(file, good, 0o600))
			n.expectGone()
		})
	}
}

// A driver that is updated while volumes are in use goes on without a remount.
func TestADriverIsUpdatedUnderAVolumeInUse(t *testing.T) {
	n := newNode(t, fakedriver.Options{}, nil)
	require.NoError(t, n.stage())
	require.NoError(t, n.setUp(t.Context()))
	file := filepath.Join(n.path(), "file")
	require.NoError(t, os.WriteFile(file, []byte("content"), 0o600))
	n.stop()
	require.Eventually(t, func() bool { _, err := n.mounter().GetMetrics(t.Context()); return errors.Is(err, volume.ErrTransient) }, time.Minute, time.Millisecond)
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, "content", string(content))
	n.start()
	_, err = n.mounter().GetMetrics(t.Context())
	require.NoError(t, err)
	assert.Equal(t, 1, n.Count("NodePublishVolume"))
	n.expectGone()
}

// A driver that is busy with an earlier call is asked again, until the caller's time is over.
func TestABusyDriverIsAskedAgain(t *testing.T) {
	n := newNode(t, fakedriver.Options{}, nil)
	require.NoError(t, n.stage())
	n.Plan("NodePublishVolume", fakedriver.Fault{Code: codes.Aborted}, fakedriver.Fault{Code: codes.Aborted})
	require.NoError(t, n.setUp(t.Context()))
	assert.Equal(t, 3, n.Count("NodePublishVolume"))
	require.NoError(t, n.tearDown())

	n.Plan("NodePublishVolume", fakedriver.Fault{Code: codes.Aborted, Always: true})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.setUp(ctx) }()
	require.Eventually(t, func() bool { return n.Count("NodePublishVolume") > 4 }, time.Minute, time.Millisecond)
	cancel()
	err := <-ended
	require.ErrorIs(t, err, volume.ErrUncertain)
	require.ErrorIs(t, err, context.Canceled)
	n.RemoveFaults()
	n.expectGone()
}

// One call at a time changes a volume, also of several plugins that share a driver; others wait, and calls that only ask do not.
func TestOneCallAtATimeChangesAVolume(t *testing.T) {
	n := newNode(t, fakedriver.Options{}, nil)
	require.NoError(t, n.stage())
	require.NoError(t, n.setUp(t.Context()))
	goesOn := make(chan struct{})
	n.Plan("NodePublishVolume", fakedriver.Fault{Hold: goesOn})
	ended := make(chan error, 2)
	go func() { ended <- n.setUp(t.Context()) }()
	require.Eventually(t, func() bool { return n.Count("NodePublishVolume") == 2 }, time.Minute, time.Millisecond)
	n.restartAgent()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, n.setUp(ctx), volume.ErrTransient)
	go func() { ended <- n.setUp(t.Context()) }()
	_, err := n.mounter().GetMetrics(t.Context())
	require.NoError(t, err)
	assert.Equal(t, 2, n.Count("NodePublishVolume"))
	close(goesOn)
	require.NoError(t, <-ended)
	require.NoError(t, <-ended)
	assert.Empty(t, n.driver.client.locks.byKey)
	n.expectGone()
}

// What the driver's list does not hold is unknown, and so is everything where the list cannot be read to its end.
func TestWhatIsNotListedIsUnknown(t *testing.T) {
	n := newNode(t, fakedriver.Options{}, nil)
	attached, detached := n.spec, n.provision("pv-2", nil)
	n.provision("pv-3", nil)
	missing := volume.NewSpecFromPersistentVolume(n.spec.PersistentVolume.DeepCopy(), false)
	missing.PersistentVolume.Spec.CSI.VolumeHandle = "vol-missing"
	attacher, err := n.plugin.NewAttacher()
	require.NoError(t, err)
	_, err = attacher.Attach(t.Context(), attached, "node-1")
	require.NoError(t, err)
	specs := map[v1.UniqueVolumeName]*volume.Spec{"attached": attached, "detached": detached, "missing": missing}
	ask := func() (map[types.NodeName]map[v1.UniqueVolumeName]bool, error) {
		return n.plugin.BulkVerifyVolumes(t.Context(), map[types.NodeName]map[v1.UniqueVolumeName]*volume.Spec{"node-1": specs, "node-2": specs})
	}
	answer, err := ask()
	require.NoError(t, err)
	assert.Equal(t, map[v1.UniqueVolumeName]bool{"attached": true, "detached": false}, answer["node-1"])
	assert.Equal(t, map[v1.UniqueVolumeName]bool{"attached": false, "detached": false}, answer["node-2"])

	n.Plan("ListVolumes", fakedriver.Fault{}, fakedriver.Fault{Code: codes.Aborted})
	answer, err = ask()
	require.NoError(t, err, "the list is read again")
	assert.True(t, answer["node-1"]["attached"])

	n.Plan("ListVolumes", fakedriver.Fault{Always: true, Change: func(answer proto.Message) { answer.(*csi.ListVolumesResponse).NextToken = "0" }})
	_, err = ask()
	require.ErrorIs(t, err, errEndless)
	n.RemoveFaults()
	n.Plan("ListVolumes", fakedriver.Fault{Code: codes.Internal})
	answer, err = ask()
	require.Error(t, err)
	assert.Empty(t, answer)
}

// A driver that cannot list is asked for each volume. What it may leave out says nothing when it is missing.
func TestADriverThatCannotListIsAskedForEachVolume(t *testing.T) {
	n := newNode(t, fakedriver.Options{Controller: []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		csi.ControllerServiceCapability_RPC_GET_VOLUME,
	}}, nil)
	attached, detached := n.spec, n.provision("pv-2", nil)
	missing := volume.NewSpecFromPersistentVolume(n.spec.PersistentVolume.DeepCopy(), false)
	missing.PersistentVolume.Spec.CSI.VolumeHandle = "vol-missing"
	attacher, err := n.plugin.NewAttacher()
	require.NoError(t, err)
	_, err = attacher.Attach(t.Context(), attached, "node-1")
	require.NoError(t, err)
	specs := map[v1.UniqueVolumeName]*volume.Spec{"attached": attached, "detached": detached, "missing": missing}
	for node, want := range map[types.NodeName]bool{"node-1": true, "node-2": false} {
		answer, err := attacher.VolumesAreAttached(t.Context(), specs, node)
		require.NoError(t, err)
		assert.Equal(t, map[v1.UniqueVolumeName]bool{"attached": want}, answer, node)
	}
	n.Plan("ControllerGetVolume", fakedriver.Fault{Always: true, Code: codes.Internal})
	_, err = attacher.VolumesAreAttached(t.Context(), specs, "node-1")
	require.Error(t, err)
}

// A driver that does not find a volume does not say that it is detached.
func TestAVolumeThatIsNotFoundIsNotDetached(t *testing.T) {
	n := newNode(t, fakedriver.Options{}, nil)
	d, err := n.plugin.NewDetacher()
	require.NoError(t, err)
	n.Plan("ControllerUnpublishVolume", fakedriver.Fault{Code: codes.NotFound})
	require.ErrorIs(t, d.Detach(t.Context(), "vol-pv-1", "node-1"), volume.ErrUncertain)
	require.NoError(t, d.Detach(t.Context(), "vol-pv-1", "node-1"))
}

// What a driver made is believed only where it is what it was asked for.
func TestAVolumeThatIsNotWhatWasAskedForIsNoSuccess(t *testing.T) {
	for name, change := range map[string]func(*csi.Volume){
		"smaller":         func(v *csi.Volume) { v.CapacityBytes = 1 << 19 },
		"negative":        func(v *csi.Volume) { v.CapacityBytes = -1 },
		"without an id":   func(v *csi.Volume) { v.VolumeId = "" },
		"a control byte":  func(v *csi.Volume) { v.VolumeId = "a\x01" },
		"an overlong id":  func(v *csi.Volume) { v.VolumeId = strings.Repeat("a", 129) },
		"a large context": func(v *csi.Volume) { v.VolumeContext = map[string]string{"a": strings.Repeat("a", 5000)} },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, fakedriver.Options{}, nil)
			n.Plan("CreateVolume", fakedriver.Fault{Change: func(answer proto.Message) { change(answer.(*csi.CreateVolumeResponse).GetVolume()) }})
			_, err := n.tryProvision("pv-2", nil)
			require.ErrorIs(t, err, volume.ErrUncertain)
			require.ErrorIs(t, err, volume.ErrInvalid)
		})
	}
	t.Run("no copy", func(t *testing.T) {
		n := newNode(t, fakedriver.Options{}, nil)
		provisioner, err := n.plugin.NewProvisioner(volume.VolumeOptions{PVName: "pv-2", PVC: claim(), Source: n.spec.PersistentVolume})
		require.NoError(t, err)
		n.Plan("CreateVolume", fakedriver.Fault{Change: func(answer proto.Message) { answer.(*csi.CreateVolumeResponse).GetVolume().ContentSource = nil }})
		_, err = provisioner.Provision(t.Context(), nil, nil)
		require.ErrorIs(t, err, volume.ErrUncertain)
	})
}

// A driver that does not find the source of a copy has not made the copy: it returns one that is there. A source that the caller does not
// find says nothing.
func TestACopyWhoseSourceIsGoneMayBeThere(t *testing.T) {
	group := "snapshot.storage.k8s.io"
	ofKind := func(group *string, kind string) *v1.PersistentVolumeClaim {
		claim := claim()
		claim.Spec.DataSource = &v1.TypedLocalObjectReference{APIGroup: group, Kind: kind, Name: "source"}
		return claim
	}
	n := newNode(t, fakedriver.Options{}.WithSnapshots(), nil)
	provision := func(options volume.VolumeOptions) (*v1.PersistentVolume, error) {
		options.PVName = "pv-2"
		provisioner, err := n.plugin.NewProvisioner(options)
		require.NoError(t, err)
		return provisioner.Provision(t.Context(), nil, nil)
	}
	calls := n.Count("CreateVolume")
	for _, gone := range []*v1.PersistentVolumeClaim{ofKind(nil, "PersistentVolumeClaim"), ofKind(&group, "VolumeSnapshot")} {
		_, err := provision(volume.VolumeOptions{PVC: gone})
		require.ErrorIs(t, err, volume.ErrUncertain)
		require.NotErrorIs(t, err, volume.ErrInfeasible)
	}
	_, err := provision(volume.VolumeOptions{PVC: ofKind(&group, "Archive")})
	require.ErrorIs(t, err, volume.ErrInfeasible)
	assert.Equal(t, calls, n.Count("CreateVolume"), "no driver makes an empty volume for a copy")

	missing := n.spec.PersistentVolume.DeepCopy()
	missing.Spec.CSI.VolumeHandle = "vol-missing"
	for _, gone := range []volume.VolumeOptions{
		{PVC: ofKind(nil, "PersistentVolumeClaim"), Source: missing},
		{PVC: ofKind(&group, "VolumeSnapshot"), Snapshot: &volume.Snapshot{Handle: "snap-missing", ReadyToUse: true}},
	} {
		_, err = provision(gone)
		require.ErrorIs(t, err, volume.ErrInfeasible)
		require.NotErrorIs(t, err, volume.ErrUncertain)
	}
	n.Plan("CreateVolume", fakedriver.Fault{Code: codes.Unavailable, After: true})
	before := volume.VolumeOptions{PVC: ofKind(nil, "PersistentVolumeClaim"), Source: n.spec.PersistentVolume}
	_, err = provision(before)
	require.ErrorIs(t, err, volume.ErrUncertain)
	n.delete(n.spec)
	pv, err := provision(before)
	require.NoError(t, err)
	n.delete(volume.NewSpecFromPersistentVolume(pv, false))
	_, err = provision(before)
	require.ErrorIs(t, err, volume.ErrInfeasible)
	n.Plan("CreateVolume", fakedriver.Fault{Code: codes.NotFound})
	_, err = provision(volume.VolumeOptions{PVC: claim()})
	require.NotErrorIs(t, err, volume.ErrInfeasible, "it is not said what was not found")
}

// delete deletes a volume.
func (n *node) delete(spec *volume.Spec) {
	n.t.Helper()
	deleter, err := n.plugin.NewDeleter(spec)
	require.NoError(n.t, err)
	require.NoError(n.t, deleter.Delete(n.t.Context()))
}

// secrets is a getter that knows one secret by each name.
type secrets map[string]string

func (s secrets) Secret(_ context.Context, namespace, name string) (*v1.Secret, error) {
	value, ok := s[namespace+"/"+name]
	if !ok {
		return nil, fmt.Errorf("no secret %s/%s", namespace, name)
	}
	return &v1.Secret{Data: map[string][]byte{"key": []byte(value)}}, nil
}

// Secrets reach the driver in the call that they are for, and nothing else: neither logs nor records nor errors, also where the
// driver says them.
func TestSecretsAreNowhereButInCalls(t *testing.T) {
	known, parameters := secrets{}, map[string]string{fakedriver.Parameter: "blue"}
	for _, purpose := range []string{provisionerSecret, controllerPublishSecret, nodeStageSecret, nodePublishSecret, controllerExpandSecret, nodeExpandSecret} {
		parameters[parameterPrefix+purpose+secretNameEnd] = "${pvc.name}-" + purpose
		parameters[parameterPrefix+purpose+secretSpaceEnd] = "${pvc.namespace}"
		known["space/claim-"+purpose] = "hunter2-of-" + purpose
	}
	var log bytes.Buffer
	n := newNode(t, fakedriver.Options{}, func(o *Options) {
		o.Secrets, o.Logger = known, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	n.spec = n.provision("pv-2", parameters)
	assert.Equal(t, map[string]string{fakedriver.Parameter: "blue"}, n.Last("CreateVolume").(*csi.CreateVolumeRequest).GetParameters())
	require.NoError(t, n.stage())
	for _, method := range []string{"NodePublishVolume", "NodeExpandVolume", "ControllerExpandVolume", "DeleteVolume", "ControllerUnpublishVolume"} {
		n.Plan(method, fakedriver.Fault{Code: codes.Internal, Message: "secrets: hunter2-of-provisioner hunter2-of-controller-publish hunter2-of-node-publish hunter2-of-controller-expand hunter2-of-node-expand"})
	}
	spoken := func(err error, own string) {
		t.Helper()
		require.Error(t, err)
		assert.NotContains(t, err.Error(), "hunter2-of-"+own)
	}
	spoken(n.setUp(t.Context()), nodePublishSecret)
	require.NoError(t, n.setUp(t.Context()))
	_, err := n.plugin.NodeExpand(t.Context(), volume.NodeResizeOptions{VolumeSpec: n.spec, DeviceMountPath: n.path(), NewSize: resource.MustParse("1Mi")})
	spoken(err, nodeExpandSecret)
	_, err = n.plugin.ExpandVolumeDevice(t.Context(), n.spec, resource.MustParse("2Mi"), resource.MustParse("1Mi"))
	spoken(err, controllerExpandSecret)
	require.NoError(t, filepath.WalkDir(n.root, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		assert.NotContains(t, string(text), "hunter2", path)
		return err
	}))
	n.expectGone()
	d, err := n.plugin.NewDetacher()
	require.NoError(t, err)
	spoken(d.Detach(t.Context(), "vol-pv-2", "node-1"), controllerPublishSecret)
	require.NoError(t, d.Detach(t.Context(), "vol-pv-2", "node-1"))
	deleter, err := n.plugin.NewDeleter(n.spec)
	require.NoError(t, err)
	spoken(deleter.Delete(t.Context()), provisionerSecret)
	require.NoError(t, deleter.Delete(t.Context()))
	assert.NotContains(t, log.String(), "hunter2")
	assert.Contains(t, log.String(), "NodePublishVolume")

	for method, purpose := range map[string]string{
		"CreateVolume": provisionerSecret, "DeleteVolume": provisionerSecret, "ControllerPublishVolume": controllerPublishSecret, "ControllerUnpublishVolume": controllerPublishSecret,
		"NodeStageVolume": nodeStageSecret, "NodePublishVolume": nodePublishSecret, "ControllerExpandVolume": controllerExpandSecret, "NodeExpandVolume": nodeExpandSecret,
	} {
		request, ok := n.Last(method).(interface{ GetSecrets() map[string]string })
		require.True(t, ok, method)
		assert.Equal(t, map[string]string{"key": "hunter2-of-" + purpose}, request.GetSecrets(), method)
	}
}

// A secret that cannot be had begins nothing.
func TestASecretThatIsMissingBeginsNothing(t *testing.T) {
	n := newNode(t, fakedriver.Options{}, func(o *Options) { o.Secrets = secrets{} })
	n.spec.PersistentVolume.Spec.CSI.NodeStageSecretRef = &v1.SecretReference{Name: "none", Namespace: "space"}
	require.ErrorIs(t, n.stage(), volume.ErrTransient)
	assert.Zero(t, n.Count("NodeStageVolume"))
}

// A driver that says nothing holds up its own volumes and no others.
func TestASilentDriverHoldsUpItsOwnVolumesAlone(t *testing.T) {
	silent, well := newNode(t, fakedriver.Options{}, cutsOffAtOnce), newNode(t, fakedriver.Options{}, nil)
	require.NoError(t, silent.stage())
	speaks := make(chan struct{})
	silent.Plan("NodePublishVolume", fakedriver.Fault{Hold: speaks})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- silent.setUp(ctx) }()
	require.Eventually(t, func() bool { return silent.Count("NodePublishVolume") == 1 }, time.Minute, time.Millisecond)
	require.NoError(t, well.stage())
	require.NoError(t, well.setUp(t.Context()))
	well.expectGone()
	cancel()
	require.ErrorIs(t, <-ended, volume.ErrUncertain)
	close(speaks)
	require.Eventually(t, silent.isMounted, time.Minute, time.Millisecond)
	silent.expectGone()
}
