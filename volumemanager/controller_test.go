package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/fake"
	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// controller is the least that a control plane does for a node: it attaches what the test says and detaches what the node
// does not use, and says so in the node's status.
type controller struct {
	*world
	plugin *fake.Plugin
	// has holds the claims whose volumes run has attached.
	has map[string]bool
}

// newController returns the controller of a node whose volumes are attached by one. The node's object is there.
func newController(w *world) *controller {
	w.options.AttachedBy = AttachedByController
	c := &controller{world: w, has: map[string]bool{}, plugin: fake.NewPlugin(fake.PluginOptions{Mounter: w.mounter, Backend: w.backend})}
	w.create(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: string(testNode)}})
	return c
}

func nameOfClaim(claim string) v1.UniqueVolumeName {
	return v1.UniqueVolumeName(fake.DefaultPluginName + "/disk-" + claim)
}

func deviceOf(claim string) string { return "/dev/fake/disk-" + claim }

func (c *controller) node() *v1.Node {
	c.t.Helper()
	node, err := store.Get[*v1.Node](c.t.Context(), c.store, "", string(testNode))
	require.NoError(c.t, err)
	return node
}

// inUse returns the claims whose volumes the node's status lists as in use.
func (c *controller) inUse() []string {
	c.t.Helper()
	claims := []string{}
	for _, name := range c.node().Status.VolumesInUse {
		claims = append(claims, strings.TrimPrefix(string(name), string(nameOfClaim(""))))
	}
	return claims
}

// changeNode changes the status of the node if the node exists. It retries while other writers change the node.
func (c *controller) changeNode(change func(*v1.NodeStatus)) {
	c.t.Helper()
	for {
		node, err := store.Get[*v1.Node](c.t.Context(), c.store, "", string(testNode))
		if err == nil {
			change(&node.Status)
			_, err = c.store.Update(c.t.Context(), node)
		}
		if err == nil || errors.Is(err, store.ErrNotFound) {
			return
		}
		require.ErrorIs(c.t, err, store.ErrConflict)
	}
}

func (c *controller) spec(claim string) *volume.Spec {
	c.t.Helper()
	pv, err := store.Get[*v1.PersistentVolume](c.t.Context(), c.store, "", "pv-"+claim)
	require.NoError(c.t, err)
	return volume.NewSpecFromPersistentVolume(pv, false)
}

// attach attaches the volumes of claims, and lists them.
func (c *controller) attach(claims ...string) {
	c.t.Helper()
	for _, claim := range claims {
		attacher, err := c.plugin.NewAttacher()
		require.NoError(c.t, err)
		_, err = attacher.Attach(c.t.Context(), c.spec(claim), testNode)
		require.NoError(c.t, err)
		c.list(claim)
	}
}

func (c *controller) list(claim string) {
	c.t.Helper()
	c.changeNode(func(s *v1.NodeStatus) {
		s.VolumesAttached = append(s.VolumesAttached, v1.AttachedVolume{Name: nameOfClaim(claim), DevicePath: deviceOf(claim)})
	})
}

// withdraw takes volumes from what the status lists as attached.
func (c *controller) withdraw(claim string) {
	c.t.Helper()
	c.changeNode(func(s *v1.NodeStatus) {
		s.VolumesAttached = slices.DeleteFunc(s.VolumesAttached, func(a v1.AttachedVolume) bool { return a.Name == nameOfClaim(claim) })
	})
}

func (c *controller) detach(claim string) {
	c.t.Helper()
	detacher, err := c.plugin.NewDetacher()
	require.NoError(c.t, err)
	name, err := c.plugin.GetVolumeName(c.spec(claim))
	require.NoError(c.t, err)
	require.NoError(c.t, detacher.Detach(c.t.Context(), name, testNode))
}

// run attaches what the node says it uses, and detaches what it does not, until the test ends: at each change of the node.
// It proves that nothing is mounted of what it detaches.
func (c *controller) run() {
	list, err := c.store.List(c.t.Context(), store.Nodes, "")
	require.NoError(c.t, err)
	ctx, cancel := context.WithCancel(c.t.Context())
	c.t.Cleanup(cancel)
	events, err := c.store.Watch(ctx, store.Nodes, "", list.ResourceVersion)
	require.NoError(c.t, err)
	go func() {
		for range events {
			c.follow()
		}
	}()
	synctest.Wait()
}

func (c *controller) follow() {
	node, err := store.Get[*v1.Node](c.t.Context(), c.store, "", string(testNode))
	if err != nil {
		return // It is gone.
	}
	used := map[string]bool{}
	for _, name := range node.Status.VolumesInUse {
		claim := strings.TrimPrefix(string(name), string(nameOfClaim("")))
		used[claim] = true
		listed := slices.ContainsFunc(node.Status.VolumesAttached, func(a v1.AttachedVolume) bool { return a.Name == name })
		if !listed && claim != "unknown" {
			c.attach(claim)
			c.has[claim] = true
		}
	}
	for claim := range c.has {
		if !used[claim] {
			c.takeAway(claim)
		}
	}
}

// takeAway withdraws a volume, and detaches it unless the node has begun to use it.
func (c *controller) takeAway(claim string) {
	c.withdraw(claim)
	node, err := store.Get[*v1.Node](c.t.Context(), c.store, "", string(testNode))
	if err != nil || slices.Contains(node.Status.VolumesInUse, nameOfClaim(claim)) {
		return // There will be another event.
	}
	assert.Empty(c.t, c.mountsOf(claim), "%s is detached", claim)
	c.detach(claim)
	delete(c.has, claim)
}

// mountsOf returns what is mounted of a claim's volume.
func (c *controller) mountsOf(claim string) []string {
	return slices.DeleteFunc(c.mounts(), func(path string) bool {
		return !strings.Contains(path, "pv-"+claim) && !strings.Contains(path, "disk-"+claim)
	})
}

// nodeStore is a store whose updates of nodes are what the test makes of them.
type nodeStore struct {
	store.Store
	update func(node *v1.Node) error
}

var errUpdate = errors.New("the node cannot be written")

func (s *nodeStore) Update(ctx context.Context, obj runtime.Object) (runtime.Object, error) {
	if node, ok := obj.(*v1.Node); ok {
		if err := s.update(node); err != nil {
			return nil, fmt.Errorf("node: %w", err)
		}
	}
	return s.Store.Update(ctx, obj)
}
