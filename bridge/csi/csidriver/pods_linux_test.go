package csidriver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/bridge/csi/internal/fakedriver"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volume/volumetest"
)

// object returns the CSIDriver of the fake.
func object(spec storagev1.CSIDriverSpec) *storagev1.CSIDriver {
	return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: fakedriver.Name}, Spec: spec}
}

// forBoth lists both kinds of volumes.
func forBoth() []storagev1.VolumeLifecycleMode {
	return []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral}
}

// inPod returns a pod, and a volume of its own.
func inPod(uid string) (*v1.Pod, *volume.Spec) {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "name-of-" + uid, Namespace: "space", UID: types.UID(uid)}, Spec: v1.PodSpec{ServiceAccountName: "robot"},
	}
	return pod, volume.NewSpecFromVolume(&v1.Volume{Name: "scratch", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{
		Driver: fakedriver.Name, VolumeAttributes: map[string]string{"size": "small"}, FSType: new("ext4"),
		NodePublishSecretRef: &v1.LocalObjectReference{Name: "publish"},
	}}})
}

// A volume of a pod's own is made when it is published and is gone when it is taken away, also by an agent that was started anew. It is
// neither attached nor staged.
func TestAnInlineVolumeLivesAsLongAsItsPod(t *testing.T) {
	n := newNode(t, fakedriver.Options{}, func(o *Options) {
		o.Object = object(storagev1.CSIDriverSpec{PodInfoOnMount: new(true), VolumeLifecycleModes: forBoth()})
		o.Secrets = secrets{"space/publish": "hunter2-hunter2"}
	})
	before := len(n.Volumes())
	files := map[string]string{}
	for _, uid := range []string{"pod-a", "pod-b"} {
		pod, spec := inPod(uid)
		attach, err := n.plugin.CanAttach(spec)
		require.NoError(t, err)
		stage, err := n.plugin.CanDeviceMount(spec)
		require.NoError(t, err)
		assert.False(t, attach || stage)
		m, err := n.plugin.NewMounter(spec, pod)
		require.NoError(t, err)
		for range 2 {
			require.NoError(t, m.SetUp(t.Context(), volume.MounterArgs{}))
		}
		request := n.Last("NodePublishVolume").(*csi.NodePublishVolumeRequest)
		assert.Equal(t, map[string]string{
			"size": "small", "csi.storage.k8s.io/ephemeral": "true", "csi.storage.k8s.io/pod.name": pod.Name,
			"csi.storage.k8s.io/pod.namespace": "space", "csi.storage.k8s.io/pod.uid": uid, "csi.storage.k8s.io/serviceAccount.name": "robot",
		}, request.GetVolumeContext())
		assert.Empty(t, request.GetStagingTargetPath())
		assert.Equal(t, "ext4", request.GetVolumeCapability().GetMount().GetFsType())
		assert.Equal(t, map[string]string{"key": "hunter2-hunter2"}, request.GetSecrets())
		files[uid] = filepath.Join(m.GetPath(), "file")
		require.NoError(t, os.WriteFile(files[uid], []byte(uid), 0o600))
	}
	assert.Zero(t, n.Count("NodeStageVolume"))
	assert.Zero(t, n.Count("ControllerPublishVolume"))
	assert.Len(t, n.Volumes(), before+2)
	n.restartAgent()
	for _, uid := range []string{"pod-a", "pod-b"} {
		content, err := os.ReadFile(files[uid])
		require.NoError(t, err)
		assert.Equal(t, uid, string(content), "each pod has its own")
		u, err := n.plugin.NewUnmounter("scratch", types.UID(uid))
		require.NoError(t, err)
		require.NoError(t, u.TearDown(t.Context()))
		assert.NoDirExists(t, filepath.Dir(files[uid]))
	}
	assert.Len(t, n.Volumes(), before)
	records, err := n.plugin.node.mountPoints.records.all(func(record) bool { return true })
	require.NoError(t, err)
	assert.Empty(t, records)
}

// Inline volumes keep the contract of a plugin.
func TestInlineVolumesKeepTheContract(t *testing.T) {
	mounttest.RequireMounts(t)
	driver := serve(t, fakedriver.Options{Node: []csi.NodeServiceCapability_RPC_Type{csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME}}).driver(t, func(o *Options) {
		o.Object = object(storagev1.CSIDriverSpec{AttachRequired: new(false), PodInfoOnMount: new(true), VolumeLifecycleModes: forBoth()})
	})
	volumetest.Run(t, volumetest.Config{
		MutableParameters: [2]map[string]string{{fakedriver.Attribute: "slow"}, {fakedriver.Attribute: "fast"}},
		NewPlugin:         func(testing.TB) volume.VolumePlugin { return driver.Plugin() },
		NewSpec:           volumetest.InlineSpec(fakedriver.Name), NewBlockSpec: func(testing.TB) *volume.Spec { return nil },
		NodeName: "fake-node", Lifetime: volumetest.LifetimeOfPod,
	})
}

// The author of a pod chooses the attributes of an inline volume: only a driver whose CSIDriver allows that gets them.
func TestVolumesOfAKindThatTheDriverDoesNotListAreRefused(t *testing.T) {
	pod, inline := inPod("pod-a")
	t.Run("no CSIDriver", func(t *testing.T) {
		n := newNode(t, fakedriver.Options{}, nil)
		_, err := n.plugin.NewMounter(inline, pod)
		require.ErrorIs(t, err, volume.ErrUnsupported)
	})
	t.Run("inline alone", func(t *testing.T) {
		n := newNode(t, fakedriver.Options{}, nil)
		n.driver.client.object.Store(object(storagev1.CSIDriverSpec{VolumeLifecycleModes: forBoth()[1:]}))
		_, err := n.plugin.NewMounter(n.spec, pod)
		require.ErrorIs(t, err, volume.ErrUnsupported)
		_, err = n.plugin.NewMounter(inline, pod)
		require.NoError(t, err)
	})
}

// A driver hears of pods what its CSIDriver asks for and no more, as that says at the time.
func TestADriverHearsOfPodsWhatItsObjectAsksFor(t *testing.T) {
	objects := store.NewMemory(store.MemoryOptions{})
	n := newNode(t, fakedriver.Options{}, func(o *Options) { o.Objects = StoredObjects(objects) })
	require.NoError(t, n.stage())
	heard := func() map[string]string {
		require.NoError(t, n.setUp(t.Context()))
		return n.Last("NodePublishVolume").(*csi.NodePublishVolumeRequest).GetVolumeContext()
	}
	own := n.spec.PersistentVolume.Spec.CSI.VolumeAttributes
	assert.Equal(t, own, heard(), "there is no CSIDriver")
	asks := object(storagev1.CSIDriverSpec{PodInfoOnMount: new(true), RequiresRepublish: new(true)})
	asks, err := store.Create(t.Context(), objects, asks)
	require.NoError(t, err)
	require.NoError(t, n.driver.Reread(t.Context()))
	withPod := heard()
	assert.Equal(t, "false", withPod["csi.storage.k8s.io/ephemeral"])
	assert.Equal(t, "pod-1", withPod["csi.storage.k8s.io/pod.uid"])
	assert.Len(t, withPod, len(own)+5)
	assert.True(t, n.plugin.RequiresRemount(n.spec))
	asks.Spec = storagev1.CSIDriverSpec{}
	_, err = store.Update(t.Context(), objects, asks)
	require.NoError(t, err)
	session, err := n.driver.client.session(t.Context())
	require.NoError(t, err)
	assert.True(t, n.plugin.RequiresRemount(n.spec), "it was not read again")
	n.restart()
	require.True(t, session.conn.(*grpc.ClientConn).WaitForStateChange(t.Context(), connectivity.Ready))
	require.NoError(t, n.driver.Connect(t.Context()))
	assert.False(t, n.plugin.RequiresRemount(n.spec), "it is read again with a new connection")
	assert.Equal(t, own, heard())
	n.expectGone()
}

// tokens gives each token once.
type tokens struct{ given int }

const ofToken = "eyJhbGciOiJSUzI1NiJ9"

func (k *tokens) PodToken(_ context.Context, pod *v1.Pod, request storagev1.TokenRequest) (string, time.Time, error) {
	if request.Audience == "" {
		return "", time.Time{}, errors.New("no audience")
	}
	k.given++
	return fmt.Sprintf("%s.%s.%d", ofToken, pod.UID, k.given), time.Unix(1_700_000_000, 0).UTC(), nil
}

// Tokens are asked for at each publication, and are nowhere but in the call.
func TestTokensAreNowhereButInCalls(t *testing.T) {
	var log bytes.Buffer
	spec := storagev1.CSIDriverSpec{TokenRequests: []storagev1.TokenRequest{{Audience: "vault"}, {Audience: "sts"}}}
	n := newNode(t, fakedriver.Options{}, func(o *Options) {
		o.Object, o.Tokens = object(spec), &tokens{}
		o.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	require.NoError(t, n.stage())
	n.Plan("NodePublishVolume", fakedriver.Fault{Code: codes.Internal, Message: "I know " + ofToken + ".pod-1.1 and " + ofToken + ".pod-1.2"})
	err := n.setUp(t.Context())
	require.Error(t, err)
	assert.NotContains(t, err.Error(), ofToken)
	require.NoError(t, n.setUp(t.Context()))
	request := n.Last("NodePublishVolume").(*csi.NodePublishVolumeRequest)
	var heard map[string]map[string]string
	require.NoError(t, json.Unmarshal([]byte(request.GetVolumeContext()["csi.storage.k8s.io/serviceAccount.tokens"]), &heard))
	assert.Equal(t, map[string]map[string]string{
		"vault": {"token": ofToken + ".pod-1.3", "expirationTimestamp": "2023-11-14T22:13:20Z"},
		"sts":   {"token": ofToken + ".pod-1.4", "expirationTimestamp": "2023-11-14T22:13:20Z"},
	}, heard)
	assert.Contains(t, log.String(), "NodePublishVolume")
	assert.NotContains(t, log.String(), ofToken)
	require.NoError(t, filepath.WalkDir(filepath.Join(n.root, "plugins"), func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		assert.NotContains(t, string(text), ofToken, path)
		return err
	}))

	spec.ServiceAccountTokenInSecrets = new(true)
	n.driver.client.object.Store(object(spec))
	require.NoError(t, n.setUp(t.Context()))
	request = n.Last("NodePublishVolume").(*csi.NodePublishVolumeRequest)
	assert.NotContains(t, request.GetVolumeContext(), "csi.storage.k8s.io/serviceAccount.tokens")
	assert.Contains(t, request.GetSecrets()["csi.storage.k8s.io/serviceAccount.tokens"], ofToken+".pod-1.6")
	n.expectGone()
}

// A token that cannot be had begins nothing.
func TestATokenThatIsMissingBeginsNothing(t *testing.T) {
	n := newNode(t, fakedriver.Options{}, func(o *Options) {
		o.Object = object(storagev1.CSIDriverSpec{TokenRequests: []storagev1.TokenRequest{{}}})
	})
	require.NoError(t, n.stage())
	require.ErrorIs(t, n.setUp(t.Context()), volume.ErrUnsupported, "nothing gives tokens")
	n.plugin.node.options.Tokens = &tokens{}
	require.ErrorIs(t, n.setUp(t.Context()), volume.ErrTransient)
	assert.Zero(t, n.Count("NodePublishVolume"))
	require.NoError(t, n.unstage())
}
