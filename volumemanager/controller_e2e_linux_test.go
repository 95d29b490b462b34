package volumemanager

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/loop"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins/loopblock"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// loopController is the least that a control plane does for a node: it attaches, by the plugin itself, what the node says it
// uses, and detaches what it does not, and says so in the node's status.
type loopController struct {
	t      *testing.T
	store  *store.Memory
	plugin *loopblock.Plugin
	spec   *volume.Spec
	name   v1.UniqueVolumeName
}

// startLoopController begins to control the one volume of a node until the test ends. Then it lets a step that has begun
// end, and detaches what a test that failed has left.
func startLoopController(t *testing.T, c *loopController, loops *loop.Manager, image string) {
	t.Helper()
	list, err := c.store.List(t.Context(), store.Nodes, "")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	events, err := c.store.Watch(ctx, store.Nodes, "", list.ResourceVersion)
	require.NoError(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for range events {
			c.follow(context.WithoutCancel(ctx)) // A device is free before the call that detaches it returns.
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		if device, err := loops.Find(context.WithoutCancel(t.Context()), image); err == nil {
			_ = loops.Detach(context.WithoutCancel(t.Context()), device)
		}
	})
}

func (c *loopController) follow(ctx context.Context) {
	node, err := store.Get[*v1.Node](ctx, c.store, "", string(testNode))
	if err != nil {
		return
	}
	used, attached := slices.Contains(node.Status.VolumesInUse, c.name), len(node.Status.VolumesAttached) > 0
	switch {
	case used && !attached:
		attacher, err := c.plugin.NewAttacher()
		assert.NoError(c.t, err)
		path, err := attacher.Attach(ctx, c.spec, testNode)
		assert.NoError(c.t, err)
		node.Status.VolumesAttached = []v1.AttachedVolume{{Name: c.name, DevicePath: path}}
		_, _ = c.store.Update(ctx, node) // After a conflict another event comes.
	case !used && attached:
		node.Status.VolumesAttached = nil
		if _, err := c.store.Update(ctx, node); err != nil {
			return
		}
		detacher, err := c.plugin.NewDetacher()
		assert.NoError(c.t, err)
		assert.NoError(c.t, detacher.Detach(ctx, "disk", testNode), "nothing is mounted of what is not in use")
	}
}

// TestARealDiskThatAControllerAttaches goes through its life, with another manager in between: the pod's file stays, the
// node never attaches or detaches, and the controller can detach when the node says that it uses the disk no more.
func TestARealDiskThatAControllerAttaches(t *testing.T) {
	mounttest.RequireRoot(t)
	n := newRealNode(t)
	loops := loop.New(loop.Options{})
	plugin := loopblock.New(loopblock.Options{Loops: loops})
	require.NoError(t, n.plugins.InitPlugins(t.Context(), plugin))
	memory := store.NewMemory(store.MemoryOptions{})
	n.options.Store, n.options.AttachedBy, n.options.DeviceUse = memory, AttachedByController, loops

	spec := provisionDisk(t, memory, plugin)
	c := &loopController{t: t, store: memory, plugin: plugin, spec: spec, name: volume.GetUniqueVolumeName(loopblock.Name, "disk")}
	startLoopController(t, c, loops, c.image(n.root))

	m, stop := n.start(t)
	_, err := store.Create(t.Context(), memory, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: string(testNode)}})
	require.NoError(t, err)
	pod := podOf("web", "data")
	require.NoError(t, m.AddPod(t.Context(), pod))
	m.PodsComplete()
	require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
	path := m.GetMountedVolumesForPod(volume.GetUniquePodName(pod))["data"].Path
	require.NoError(t, os.WriteFile(filepath.Join(path, "file"), []byte("content"), 0o600))
	device, err := loops.Find(t.Context(), c.image(n.root))
	require.NoError(t, err)
	assert.Equal(t, device.Path, m.PodStatus(pod.UID)[0].DevicePath)
	stop()

	m, stop = n.start(t)
	require.NoError(t, m.AddPod(t.Context(), pod))
	require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
	node, err := store.Get[*v1.Node](t.Context(), memory, "", string(testNode))
	require.NoError(t, err)
	assert.Equal(t, []v1.UniqueVolumeName{c.name}, node.Status.VolumesInUse)
	m.PodsComplete()
	content, err := os.ReadFile(filepath.Join(path, "file"))
	require.NoError(t, err)
	assert.Equal(t, "content", string(content))

	require.NoError(t, m.RemovePod(pod.UID))
	require.NoError(t, m.WaitForNodeEmpty(t.Context()))
	c.awaitDetached(loops, c.image(n.root))
	stop()
	assert.Empty(t, realMountsBelow(t, n.root))
}

// realMountsBelow returns the mounts below a directory.
func realMountsBelow(t *testing.T, root string) []string {
	t.Helper()
	table, err := mount.New(mount.Options{}).List(t.Context())
	require.NoError(t, err)
	var paths []string
	for _, mp := range table {
		if strings.HasPrefix(mp.Path, root+"/") {
			paths = append(paths, mp.Path)
		}
	}
	return paths
}

func (c *loopController) image(root string) string {
	return filepath.Join(root, "lib/plugins", loopblock.Name, "images/disk.img")
}

// provisionDisk makes an image with a filesystem, and the claim "data" that is bound to it.
func provisionDisk(t *testing.T, s store.Store, plugin *loopblock.Plugin) *volume.Spec {
	t.Helper()
	claim := claimOfName("data")
	claim.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	claim.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: resource.MustParse("16Mi")}
	claim.Spec.VolumeName, claim.Status.Phase = "disk", v1.ClaimBound
	claim, err := store.Create(t.Context(), s, claim)
	require.NoError(t, err)
	provisioner, err := plugin.NewProvisioner(volume.VolumeOptions{PVName: "disk", PVC: claim})
	require.NoError(t, err)
	pv, err := provisioner.Provision(t.Context(), nil, nil)
	require.NoError(t, err)
	pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
	pv, err = store.Create(t.Context(), s, pv)
	require.NoError(t, err)
	return volume.NewSpecFromPersistentVolume(pv, false)
}

// awaitDetached waits until the node's status lists nothing any more and the image has no device.
func (c *loopController) awaitDetached(loops *loop.Manager, image string) {
	c.t.Helper()
	gone := func() bool {
		node, err := store.Get[*v1.Node](c.t.Context(), c.store, "", string(testNode))
		_, device := loops.Find(c.t.Context(), image)
		return err == nil && len(node.Status.VolumesInUse)+len(node.Status.VolumesAttached) == 0 && errors.Is(device, loop.ErrNotAttached)
	}
	require.Eventually(c.t, gone, time.Minute, 10*time.Millisecond)
}

// detachCounter counts the detachers that are made.
type detachCounter struct {
	*loopblock.Plugin
	detachers atomic.Int32
}

func (p *detachCounter) NewDetacher() (volume.Detacher, error) {
	p.detachers.Add(1)
	return p.Plugin.NewDetacher()
}

// TestWhatAControllerHasAttachedIsItsOwnWhenRecordsAreLost: the node takes down what it has staged and set up, and leaves the
// attachment to the controller, which believes it there. So the next pod gets the volume at once.
func TestWhatAControllerHasAttachedIsItsOwnWhenRecordsAreLost(t *testing.T) {
	mounttest.RequireRoot(t)
	n := newRealNode(t)
	loops := loop.New(loop.Options{})
	plugin := loopblock.New(loopblock.Options{Loops: loops})
	counted := &detachCounter{Plugin: plugin}
	require.NoError(t, n.plugins.InitPlugins(t.Context(), counted))
	memory := store.NewMemory(store.MemoryOptions{})
	n.options.Store, n.options.AttachedBy, n.options.DeviceUse = memory, AttachedByController, loops
	_, err := store.Create(t.Context(), memory, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: string(testNode)}})
	require.NoError(t, err)
	c := &loopController{
		t: t, store: memory, plugin: plugin, spec: provisionDisk(t, memory, plugin),
		name: volume.GetUniqueVolumeName(loopblock.Name, "disk"),
	}
	startLoopController(t, c, loops, c.image(n.root))

	m, stop := n.start(t)
	pod := podOf("web", "data")
	require.NoError(t, m.AddPod(t.Context(), pod))
	m.PodsComplete()
	require.NoError(t, m.WaitForAttachAndMount(t.Context(), pod))
	stop()
	require.NoError(t, os.RemoveAll(n.options.RuntimeDir))
	require.NoError(t, os.RemoveAll(n.options.StateDir))

	m, stop = n.start(t)
	m.PodsComplete()
	require.NoError(t, m.WaitForNodeEmpty(t.Context()))
	assert.Zero(t, counted.detachers.Load(), "that is the controller's")
	next := podOf("next", "data")
	require.NoError(t, m.AddPod(t.Context(), next))
	require.NoError(t, m.WaitForAttachAndMount(t.Context(), next))
	require.NoError(t, m.RemovePod(next.UID))
	require.NoError(t, m.WaitForNodeEmpty(t.Context()))
	c.awaitDetached(loops, c.image(n.root))
	stop()
	assert.Empty(t, realMountsBelow(t, n.root))
}
