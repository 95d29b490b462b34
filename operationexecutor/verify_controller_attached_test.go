package operationexecutor_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/cache"
	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
)

// cachedNodes is a NodeReader that knows what the last status said.
type cachedNodes struct {
	*nodeReader
	last map[v1.UniqueVolumeName]string
	seen bool
}

func (c *cachedNodes) LastVolumesAttached(types.NodeName) (map[v1.UniqueVolumeName]string, bool) {
	return c.last, c.seen
}

func (w *world) verifyController(v operationexecutor.VolumeToMount) (*operationexecutor.Operation, error) {
	return w.executor.VerifyControllerAttachedVolume(w.t.Context(), v, node, w.actual)
}

// reportedWorld is a world in which the node's status says that "data" is attached, and the volume to mount there.
func reportedWorld(t *testing.T, claims *claimStatus) (*world, operationexecutor.VolumeToMount, *cachedNodes) {
	nodes := &cachedNodes{}
	w := newWorld(t, setup{attachable: true, stageable: true, generator: func(o *operationexecutor.GeneratorOptions) {
		nodes.nodeReader = o.NodeReader.(*nodeReader)
		o.NodeReader = nodes
		if claims != nil {
			o.Claims = claims
		}
	}})
	nodes.history = w.history
	nodes.attached = map[v1.UniqueVolumeName]string{volumeName("data"): "/dev/fresh"}
	nodes.last, nodes.seen = map[v1.UniqueVolumeName]string{volumeName("data"): "/dev/stale"}, true
	v := w.toMount("data", "p")
	v.ReportedInUse = true
	return w, v, nodes
}

func TestWhatTheControlPlaneAttachedIsTakenOver(t *testing.T) {
	claims := newClaimStatus(claimOf("data", "10Gi", "8Gi"))
	w, v, _ := reportedWorld(t, claims)
	v.VolumeSpec = claimedSpec("data", "10Gi")
	w.succeeded(w.verifyController(v))
	row, ok := w.actual.GetAttachedVolume(volumeName("data"))
	require.True(t, ok)
	assert.Equal(t, cache.Attached, row.AttachState)
	assert.Equal(t, "/dev/fresh", row.DevicePath, "the path is that of the status as it is, not as it was seen last")
	size := w.actual.GetClaimSize(volumeName("data"))
	assert.Equal(t, "8Gi", size.String(), "the size is that of the claim's status, not that of the PersistentVolume")
	assert.Equal(t, []string{"VolumesAttached node-1"}, w.history.all())

	claims.err = errBroken
	w.succeeded(w.verifyController(v)) // The size is known: the claim is not read again.
}

func TestAVolumeThatNeedsNoAttachingIsTakenAsAttached(t *testing.T) {
	w, v, nodes := reportedWorld(t, newClaimStatus(claimOf("data", "10Gi", "8Gi")))
	v.VolumeSpec, v.PluginIsAttachable, v.ReportedInUse = claimedSpec("data", "10Gi"), false, false
	nodes.err = errBroken
	w.succeeded(w.verifyController(v))
	assert.True(t, w.actual.VolumeExists(volumeName("data")))
	size := w.actual.GetClaimSize(volumeName("data"))
	assert.Equal(t, "8Gi", size.String())
}

// TestWhatIsNotReportedYetIsRefusedBeforeTheStart: it costs no read, no goroutine and no back-off, however often it is tried.
func TestWhatIsNotReportedYetIsRefusedBeforeTheStart(t *testing.T) {
	for name, test := range map[string]struct {
		miss func(v *operationexecutor.VolumeToMount, n *cachedNodes)
		want error
	}{
		"not attached": {func(_ *operationexecutor.VolumeToMount, n *cachedNodes) { n.last = nil }, operationexecutor.ErrNotReportedAttached},
		"not in use":   {func(v *operationexecutor.VolumeToMount, _ *cachedNodes) { v.ReportedInUse = false }, operationexecutor.ErrNotReportedInUse},
	} {
		t.Run(name, func(t *testing.T) {
			w, v, nodes := reportedWorld(t, nil)
			full, last := v, nodes.last
			test.miss(&v, nodes)
			for range 3 {
				op, err := w.verifyController(v)
				assert.Nil(t, op)
				var missing *operationexecutor.MountPreconditionError
				require.ErrorAs(t, err, &missing)
				require.ErrorIs(t, err, test.want)
				assert.Equal(t, operationexecutor.MountPreconditionError{Volume: volumeName("data"), Node: node, Err: test.want}, *missing)
			}
			assert.Empty(t, w.history.all())
			nodes.last = last
			w.succeeded(w.verifyController(full))
		})
	}
}

// TestTheNodeItselfIsAskedLast: an older status does not attach a volume, and a missing status changes nothing.
func TestTheNodeItselfIsAskedLast(t *testing.T) {
	w, v, nodes := reportedWorld(t, nil)
	nodes.attached = nil
	op := w.ended(w.verifyController(v))
	require.ErrorIs(t, op.Err(), operationexecutor.ErrNotReportedAttached)
	assert.Equal(t, operationexecutor.Transient, op.Result().Class)
	assert.False(t, w.actual.VolumeExists(volumeName("data")))

	nodes.err = errBroken
	require.ErrorIs(t, w.failed(w.verifyController(v)), errBroken)

	nodes.err, nodes.last, nodes.seen = nil, nil, false
	nodes.attached = map[v1.UniqueVolumeName]string{volumeName("data"): ""}
	w.succeeded(w.verifyController(v))
}

func TestAClaimThatCannotBeReadLeavesTheVolumeUnattached(t *testing.T) {
	claims := newClaimStatus(claimOf("data", "10Gi", "8Gi"))
	claims.err = errBroken
	w, v, _ := reportedWorld(t, claims)
	v.VolumeSpec = claimedSpec("data", "10Gi")
	op := w.ended(w.verifyController(v))
	require.ErrorIs(t, op.Err(), errBroken)
	assert.Equal(t, operationexecutor.Transient, op.Result().Class)
	assert.False(t, w.actual.VolumeExists(volumeName("data")))
}

// claimedSpec returns a PersistentVolume of that size that is bound to a claim.
func claimedSpec(name, size string) *volume.Spec {
	s := spec(name)
	s.PersistentVolume.Spec.ClaimRef = &v1.ObjectReference{Namespace: "default", Name: name}
	s.PersistentVolume.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)}
	return s
}
