package loopblock_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/volume"
)

func (n *node) names() []string {
	n.t.Helper()
	entries, err := os.ReadDir(n.images)
	require.NoError(n.t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func blocks(t *testing.T, path string) int64 {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Stat(path, &st))
	return st.Blocks * 512
}

func TestProvisionSparseOrPreallocated(t *testing.T) {
	n := newNode(t)
	n.provision("sparse")
	assert.Less(t, blocks(t, n.image("sparse")), int64(32<<20))
	n.provision("full", "preallocate", "true")
	assert.GreaterOrEqual(t, blocks(t, n.image("full")), int64(32<<20))
	info, err := os.Stat(n.images)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o700), info.Mode().Perm())
}

func TestProvisionTwiceKeepsTheContent(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	n.stage(spec)
	path := n.setUp(spec, "pod")
	write(t, filepath.Join(path, "file"), "content")
	again := n.provision("pv")
	assert.Equal(t, spec.PersistentVolume, again.PersistentVolume)
	assertContent(t, filepath.Join(path, "file"), "content")
	n.tearDown(spec, "pod")
	n.release(spec)
	assert.Equal(t, []string{"pv.img"}, n.names())
}

func TestProvisionOfAnotherVolumeUnderTheName(t *testing.T) {
	n := newNode(t)
	n.provision("pv")
	before := sum(t, n.image("pv"))
	larger := claimOf("pv")
	larger.PVC.Spec.Resources.Requests[v1.ResourceStorage] = *larger.PVC.Spec.Resources.Requests.Storage()
	larger.Parameters["fstype"] = "xfs" // needs more than is there
	_, err := n.tryProvision(t.Context(), larger)
	require.ErrorIs(t, err, volume.ErrUncertain)
	require.NotErrorIs(t, err, volume.ErrInfeasible, "that says that no attempt made the image")
	assert.Equal(t, before, sum(t, n.image("pv")))

	require.NoError(t, os.Truncate(n.image("pv"), 400<<20))
	before = sum(t, n.image("pv"))
	_, err = n.tryProvision(t.Context(), larger)
	require.ErrorIs(t, err, volume.ErrUncertain, "it holds another filesystem")
	assert.Equal(t, before, sum(t, n.image("pv")))
}

func TestProvisionMakesALeftOverAnew(t *testing.T) {
	n := newNode(t)
	require.NoError(t, os.MkdirAll(n.images, 0o700))
	partial := filepath.Join(n.images, "pv.partial")
	write(t, partial, "half a filesystem")
	spec := n.provision("pv")
	assert.Equal(t, []string{"pv.img"}, n.names())
	n.stage(spec)
	n.release(spec)
}

func TestProvisionTouchesNoForeignPartial(t *testing.T) {
	n := newNode(t)
	require.NoError(t, os.MkdirAll(n.images, 0o700))
	outside := filepath.Join(n.root, "precious")
	write(t, outside, "precious")
	require.NoError(t, os.Symlink("../precious", filepath.Join(n.images, "pv.partial")))
	_, err := n.tryProvision(t.Context(), claimOf("pv"))
	require.ErrorIs(t, err, volume.ErrInvalid)
	assertContent(t, outside, "precious")
	assert.Equal(t, []string{"pv.partial"}, n.names())
}

func TestProvisionWhileAnotherProcessDoes(t *testing.T) {
	n := newNode(t)
	require.NoError(t, os.MkdirAll(n.images, 0o700))
	partial := filepath.Join(n.images, "pv.partial")
	write(t, partial, "another process works on it")
	other, err := os.Open(partial)
	require.NoError(t, err)
	defer other.Close()
	require.NoError(t, unix.Flock(int(other.Fd()), unix.LOCK_EX))
	_, err = n.tryProvision(t.Context(), claimOf("pv"))
	require.ErrorIs(t, err, volume.ErrTransient)
	assertContent(t, partial, "another process works on it")
	require.NoError(t, other.Close())
	n.provision("pv")
}

func TestProvisionAtOnceMakesOneImage(t *testing.T) {
	n := newNode(t)
	var group sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		group.Go(func() { _, errs[i] = n.tryProvision(t.Context(), claimOf("pv")) })
	}
	group.Wait()
	succeeded := 0
	for _, err := range errs {
		if err == nil {
			succeeded++
			continue
		}
		require.ErrorIs(t, err, volume.ErrTransient)
	}
	assert.Positive(t, succeeded)
	assert.Equal(t, []string{"pv.img"}, n.names())
	n.provision("pv")
}

func TestCancelledProvisionLeavesNothing(t *testing.T) {
	n := newNode(t)
	require.NoError(t, os.MkdirAll(n.images, 0o700))
	ended, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("the controller stops")
	cancel(cause)
	_, err := n.tryProvision(ended, claimOf("pv"))
	require.ErrorIs(t, err, cause)
	assert.Empty(t, n.names())
}

// endsOnceThere is a context that ends when a call waits for it and the path exists.
type endsOnceThere struct {
	context.Context //nolint:containedctx // it is a context
	path            string
	end             context.CancelCauseFunc
	cause           error
}

func (e endsOnceThere) Done() <-chan struct{} {
	if _, err := os.Lstat(e.path); err == nil {
		e.end(e.cause)
	}
	return e.Context.Done()
}

func TestProvisionThatIsCancelledHalfWayLeavesNothing(t *testing.T) {
	n := newNode(t)
	ctx, end := context.WithCancelCause(t.Context())
	half := endsOnceThere{ctx, filepath.Join(n.images, "pv.partial"), end, errors.New("the controller stops")}
	_, err := n.tryProvision(half, claimOf("pv"))
	require.ErrorIs(t, err, half.cause)
	assert.Empty(t, n.names())
	n.provision("pv")
}

func TestProvisionWithoutSpaceLeavesNothing(t *testing.T) {
	n := newNode(t)
	require.NoError(t, os.MkdirAll(n.images, 0o700))
	require.NoError(t, unix.Mount("tmpfs", n.images, "tmpfs", 0, "size=4m"))
	n.cleanMount(n.images)
	_, err := n.tryProvision(t.Context(), claimOf("pv", "preallocate", "true"))
	require.ErrorIs(t, err, unix.ENOSPC)
	assert.Empty(t, n.names())
}

func TestProvisionOfMoreThanAFileCanHoldIsInfeasible(t *testing.T) {
	n := newNode(t)
	outer := n.provision("outer")
	images := n.images
	n.images = n.stage(outer) // an ext4, in which a file has at most 16 TiB
	n.plugin = n.pluginOver(n.mounter)
	options := claimOf("pv")
	options.PVC.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse("900Pi")
	_, err := n.tryProvision(t.Context(), options)
	require.ErrorIs(t, err, volume.ErrInfeasible)
	require.ErrorIs(t, err, unix.EFBIG)
	assert.NoFileExists(t, filepath.Join(n.images, "pv.partial"))

	options.PVC.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse("7Ei")
	_, err = n.plugin.NewProvisioner(options)
	require.ErrorIs(t, err, volume.ErrInfeasible, "whatever lies below")

	n.images = images
	n.plugin = n.pluginOver(n.mounter)
	n.release(outer)
}

func TestProvisionForAnotherNode(t *testing.T) {
	n := newNode(t)
	provisioner, err := n.plugin.NewProvisioner(claimOf("pv"))
	require.NoError(t, err)
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-2"}}
	_, err = provisioner.Provision(t.Context(), node, nil)
	require.ErrorIs(t, err, volume.ErrInfeasible)
	_, err = provisioner.Provision(t.Context(), nil, []v1.TopologySelectorTerm{{}})
	require.ErrorIs(t, err, volume.ErrInfeasible)
	node.Name = nodeName
	_, err = provisioner.Provision(t.Context(), node, nil)
	require.NoError(t, err)
}

func TestDeleteRemovesALeftOver(t *testing.T) {
	n := newNode(t)
	spec := n.provision("pv")
	write(t, filepath.Join(n.images, "pv.partial"), "left over")
	write(t, filepath.Join(n.images, "pv2.img"), "of another volume")
	require.NoError(t, n.tryDelete(spec))
	assert.Equal(t, []string{"pv2.img"}, n.names())
}
